"""Housekeeping: which files of a directory are those of its run, and what `delete`, `prune` and `rename` do.

Only files that distsummary writes are removed: by their names, and of event files by the run id in them. What
else lies in the directory stays there, and the directory with it. The lock of run.json is held meanwhile, so
that no training begins in the directory; a run that may still be written is refused.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from distsummary.base.checks import check_choice
from distsummary.base.columns import numbered, paragraph, printable
from distsummary.base.publish import TEMPORARY, publish
from distsummary.checkpoints.metadata import METADATA, TrainMetadata
from distsummary.checkpoints.trajectory import read as read_trajectory
from distsummary.errors import DistSummaryError, InvalidValueError, MissingFileError, RunDirError, reason
from distsummary.events.index import is_index
from distsummary.events.reader import read_file
from distsummary.events.segment import is_live
from distsummary.events.segments import LANDSCAPE, source_of, stamp_of
from distsummary.rundir.rank_facts import COMMAND, FACTS
from distsummary.rundir.rank_parts import PARTS
from distsummary.rundir.run_dir import CRASH, LANDSCAPE_JOURNAL, MANIFEST, RANK_MANIFEST, STUCK, RunDir
from distsummary.rundir.states import read_run
from distsummary.runs.labels import change_labels, read_labels
from distsummary.runs.run_table import RunTable

_OVER = ("finished", "failed", "interrupted", "lost", "incomplete")
_OF_RANKS = (RANK_MANIFEST, FACTS, COMMAND, PARTS, STUCK, CRASH)
_OF_RUN = (MANIFEST, "labels.json", "alerts.jsonl", *_OF_RANKS)
_HIDDEN = re.compile(rf"\.lock|\.[a-z]+\.lock|\.numbered\.json|{re.escape(TEMPORARY)}.+")
_TORN = re.compile(r"torn-\d+\.bin")
_EXPORT = re.compile(r"export_\d+")
_PICTURE = re.compile(r"_(curve|surface)$")  # of a grid, after its name
_CHECKPOINT = re.compile(r".+_-?\d+_(step|epoch)(_rank_\d{5}_of_\d{5})?\.(ckpt|safetensors)")
_KEEP = re.compile(r"\s*(best|lowest|highest|newest)\s+(\d{1,6})(?:\s+by\s+(\S.*?))?\s*", re.IGNORECASE)
_AGE = re.compile(r"(\d{1,6}(?:\.\d+)?)\s*([mhdw])", re.ASCII)
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LOOKED_AT = 100  # events of a file, at most, until one has a run id
_SHOWN = 5  # foreign files of a run


class Keep(NamedTuple):
    """Such as "best 5 by eval/accuracy"; `which`: best, lowest, highest or newest."""

    which: str
    number: int
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is removed of a run, or would be.

    Attributes:
        path: the run dir. state: of the run. files: how many. size_bytes: of these.
        kept: what stays, as it is not of the run, as paths below the run dir.
        reason: why nothing is removed, or what could not be; empty: all is well.
        is_done: whether it was removed.
    """

    path: str
    state: str
    files: int = 0
    size_bytes: int = 0
    kept: tuple[str, ...] = ()
    reason: str = ""
    is_done: bool = False


def read_keep(text: str) -> Keep:
    """Read what `--keep` says; raises InvalidValueError."""
    found = _KEEP.fullmatch(text)
    which = found[1].lower() if found else ""
    if found is None or (which == "newest") != (found[3] is None):
        raise InvalidValueError(
            "--keep must be 'best N by COLUMN' (lowest and highest, too) or 'newest N', such as "
            f"'best 5 by eval/accuracy'; got {text!r}"
        )
    return Keep(which, int(found[2]), found[3] or "")


def read_age(text: str) -> float:
    """The seconds of an age such as 30d (m, h, d or w); raises InvalidValueError."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidValueError(f"--older must be a number of m, h, d or w, such as 30d or 12h; got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def kept_by(table: RunTable, keep: Keep) -> set[str]:
    """The paths of the runs that are kept; raises InvalidValueError for a column that cannot be ordered."""
    paths = table["path"].tolist()
    if keep.which == "newest":
        return set(paths[: keep.number])  # the table has the newest first
    check_choice("the column of --keep", keep.column, table.columns)
    direction = {"lowest": "min", "highest": "max"}.get(keep.which) or table.better.get(keep.column)
    if direction is None:
        raise InvalidValueError(
            f"whether high or low is better is unknown of {keep.column}: write lowest or highest in place of "
            'best, or say it in the training: run.define(TAG, best="min")'
        )
    values = [
        (value, path)
        for path, value in zip(paths, table[keep.column].tolist(), strict=True)
        if isinstance(value, (int, float)) and value == value
    ]
    values.sort(key=lambda one: one[0], reverse=direction == "max")
    return {path for _, path in values[: keep.number]}


def to_prune(
    table: RunTable, *, keep: Sequence[Keep] = (), older_s: float | None = None, now: float | None = None
) -> list[str]:
    """The paths of the runs to remove: none of those to keep, and none that was seen in `older_s` seconds.

    `now`: in seconds since the epoch; None: this machine's clock.
    """
    now = time.time() if now is None else now
    # What has no run.json is not ours, and takes no place among those to keep.
    table = table.where("id")
    kept: set[str] = set().union(*(kept_by(table, one) for one in keep))
    paths = []
    for path, row in zip(table["path"].tolist(), table.rows, strict=True):
        # Of a run without a known begin, it is unknown how old it is.
        ended = None if row.started is None else row.started + (row.duration_s or 0.0)
        is_old = older_s is None or (ended is not None and now - ended > older_s)
        if path not in kept and is_old:
            paths.append(path)
    return paths


def delete(path: str | os.PathLike[str], *, is_sure: bool, checkpoints_only: bool = False) -> Removal:
    """Remove a run, or say what would be removed.

    Args:
        is_sure: remove it. checkpoints_only: of its trajectory, all checkpoints but the last one.

    Raises MissingFileError if it is no run, and RunDirError if it may not be removed.
    """
    run_dir = RunDir(path)
    with _held(run_dir, path) as state:
        kept: list[Path] = []
        metadata = _last_alone(run_dir) if checkpoints_only else None
        if checkpoints_only:
            last = {METADATA, *_names(run_dir, metadata)} if metadata else set()
            found = [one for one in _of_checkpoints(run_dir.ckpt_dir) if metadata and one.name not in last]
        else:
            found = [*_own_files(run_dir, kept)]
        sizes = [one.lstat().st_size for one in found]
        removal = Removal(
            path=os.fspath(path),
            state=state,
            files=len(found),
            size_bytes=sum(sizes),
            kept=tuple(sorted(str(one.relative_to(run_dir.base)) for one in kept)),
        )
        if not is_sure:
            return removal
        if metadata is not None:
            # First, so that the metadata names no file that is gone.
            publish(run_dir.ckpt_dir / METADATA, metadata.to_bytes())
        failed = _remove(found, run_dir.base, removes_directories=not checkpoints_only)
        return replace(removal, is_done=not failed, reason=failed)


def rename(path: str | os.PathLike[str], name: str, *, is_sure: bool) -> Removal:
    """Give the directory of a run another name, and the run itself if it has a name of its own.

    Raises InvalidValueError for a name that is none, and the errors of `delete`.
    """
    run_dir = RunDir(path)
    if name in ("", ".", "..") or name.startswith(".") or not name.isprintable() or "/" in name:
        raise InvalidValueError(
            f"the new name must be that of a directory, without /, and begin with no dot; got {name!r}"
        )
    to = run_dir.base.with_name(name)
    with _held(run_dir, path) as state:
        if os.path.lexists(to):
            raise InvalidValueError(f"{to} is there already; choose another name")
        found = [one for one in run_dir.base.rglob("*") if one.is_file() and not one.is_symlink()]
        size = sum(one.lstat().st_size for one in found)
        moved = Removal(path=os.fspath(path), state=state, files=len(found), size_bytes=size)
        if is_sure:
            if read_labels(run_dir, run_dir.read_manifest()).name:
                change_labels(run_dir, name=name)
            os.rename(run_dir.base, to)
        return replace(moved, is_done=is_sure)


def each(paths: Sequence[str], act: Callable[[str], Removal]) -> list[Removal]:
    """What `act` does of each run; one that is refused hides no other."""
    found = []
    for path in paths:
        try:
            found.append(act(path))
        except (DistSummaryError, OSError) as error:
            said = (
                reason(error)
                if isinstance(error, OSError) and not isinstance(error, DistSummaryError)
                else str(error)
            )
            found.append(Removal(path=path, state="", reason=said))
    return found


def text_of(removals: Sequence[Removal], *, verb: str, is_sure: bool, width: int) -> str:
    """What was done or would be, in lines; `verb`: such as "remove"."""
    lines = []
    for one in removals:
        if not one.files and not one.reason:
            continue
        size = f"{numbered(one.files, 'file')}, {one.size_bytes / 1e6:.1f} MB"
        if one.reason and not one.files:
            lines += paragraph(f"keep {printable(one.path)}: {printable(one.reason)}", width)
            continue
        lines += paragraph(f"{verb} {printable(one.path)}: {one.state}, {size}", width)
        if one.reason:
            lines += paragraph(f"  not removed: {printable(one.reason)}", width, indent="    ")
        for name in one.kept[:_SHOWN]:
            lines += paragraph(f"  {printable(name)} stays: it is not of the run", width, indent="    ")
        if len(one.kept) > _SHOWN:
            lines.append(f"  and {len(one.kept) - _SHOWN} more: --json")
    acted = [one for one in removals if one.files and (one.is_done or not is_sure)]
    total = f"{numbered(len(acted), 'run')}, {sum(one.size_bytes for one in acted) / 1e6:.1f} MB"
    end = f"done: {total}" if is_sure else f"{total}; nothing was changed: repeat it with --yes"
    return "\n".join([*lines, end])


@contextmanager
def _held(run_dir: RunDir, path: str | os.PathLike[str]) -> Iterator[str]:
    """Hold the lock of run.json for the block, which gets the state of the run."""
    if not run_dir.base.is_dir():
        raise MissingFileError(f"there is no {os.fspath(path)}; {run_dir.remedy_if_missing()}")
    if not run_dir.manifest_path.is_file():
        raise MissingFileError(
            f"{os.fspath(path)} has no {MANIFEST}: it is no run of distsummary, or not known as one; rebuild "
            "that with distsummary fsck --repair, or remove the directory by hand"
        )
    lock = run_dir.lock(".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunDirError(f"{run_dir.base} is in use: a process holds its lock; try again later") from error
    try:
        state = read_run(run_dir)
        states = {state.state, *(one.state for one in state.attempts)} - {"superseded"}
        if "running" in states:
            raise RunDirError(f"{run_dir.base} is running; end it first")
        live = [one for one in _event_files(run_dir) if is_live(one)]
        if live:
            raise RunDirError(f"{run_dir.base} is in use: a process writes {live[0].name}; end it first")
        # Of a run whose end is unknown, its files show whether it may still run.
        if (
            states.difference(_OVER)
            and time.time() - max((one.lstat().st_mtime for one in _event_files(run_dir)), default=0.0) < 600
        ):
            raise RunDirError(
                f"{run_dir.base} is {state.state} and was written in the last 10 minutes; try again later"
            )
        yield state.state
    finally:
        lock.release()


def _directories(run_dir: RunDir) -> list[Path]:
    """The run dir and the directories of its ranks, of all roles."""
    found = [run_dir.base]
    for entry in sorted(run_dir.base.iterdir()):
        is_rank = run_dir.is_rank_dir(entry) or entry.name == run_dir.writer_dir("eval", 0, 1).name
        if is_rank and entry.is_dir() and not entry.is_symlink() and not (entry / MANIFEST).exists():
            found.append(entry)
    return found


def _event_files(run_dir: RunDir) -> list[Path]:
    return [
        one
        for directory in _directories(run_dir)
        for one in directory.iterdir()
        if stamp_of(one.name) is not None and stat.S_ISREG(one.lstat().st_mode)
    ]


def _own_files(run_dir: RunDir, kept: list[Path]) -> Iterator[Path]:
    """The files of a run; `kept` gets what is not of it.

    The manifests are last: a removal that was interrupted leaves a run in its state, to be removed again.
    """
    run_id = str(run_dir.read_manifest()["run_id"])
    directories = _directories(run_dir)
    last = [directory / RANK_MANIFEST for directory in directories] + [run_dir.manifest_path]
    for directory in directories:
        names = _OF_RUN if directory == run_dir.base else _OF_RANKS
        for one in sorted(directory.iterdir()):
            if one in (*last, *directories):
                continue
            if one.is_dir() and not one.is_symlink():
                yield from _of_folder(one, run_dir, kept)
            elif one.is_file() and not one.is_symlink() and _is_own(one, names, run_id):
                yield one
            else:
                kept.append(one)
    yield from (one for one in last if one.is_file())


def _is_own(path: Path, names: Collection[str], run_id: str) -> bool:
    """Whether a file in the directory of a rank is of the run."""
    if path.name in names or is_index(path.name) or any(one.fullmatch(path.name) for one in (_HIDDEN, _TORN)):
        return True
    if stamp_of(path.name) is None:
        return False
    return source_of(path.name) == LANDSCAPE or _is_of(path, run_id)


def _of_folder(folder: Path, run_dir: RunDir, kept: list[Path]) -> Iterator[Path]:
    """The files of a directory in that of a rank: checkpoints, landscapes, exported tensors."""
    inside = [one for one in folder.rglob("*") if one.is_symlink() or not one.is_dir()]
    own: Collection[Path] = ()
    if folder == run_dir.ckpt_dir:
        own = {*_of_checkpoints(folder)}
    elif folder == run_dir.landscape_dir:
        grids = {one.stem for one in inside if one.suffix == ".npz"}
        own = {
            one
            for one in inside
            if one.parent == folder
            and (
                stamp_of(one.name) is not None
                or is_index(one.name)
                or LANDSCAPE_JOURNAL.fullmatch(one.name)
                or _HIDDEN.fullmatch(one.name)
                or (one.suffix in (".npz", ".png") and _PICTURE.sub("", one.stem) in grids)
            )
        }
    elif _EXPORT.fullmatch(folder.name):
        own = {one for one in inside if one.parent == folder / "tensor" and one.suffix == ".npy"}
    own = {one for one in own if stat.S_ISREG(one.lstat().st_mode)}
    yield from sorted(own)
    if own or not inside:
        kept += [one for one in inside if one not in own]
    else:
        kept.append(folder)


def _of_checkpoints(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        for one in folder.iterdir():
            is_own = one.name == METADATA or _CHECKPOINT.fullmatch(one.name) or _HIDDEN.fullmatch(one.name)
            if is_own and stat.S_ISREG(one.lstat().st_mode):
                yield one


def _is_of(path: Path, run_id: str) -> bool:
    """Whether an event file is of a run: an event in it has the id; one without any event has nothing."""
    count = 0
    for count, event in enumerate(read_file(path, "skip"), 1):
        if event.run_id or count >= _LOOKED_AT:
            return event.run_id == run_id
    return count == 0


def _last_alone(run_dir: RunDir) -> TrainMetadata | None:
    """The metadata of a trajectory with its last checkpoint alone; None: there are no others to remove."""
    if not (run_dir.ckpt_dir / METADATA).is_file():
        return None
    found = read_trajectory(run_dir.ckpt_dir)
    if len(found.files) < 2 or not found.numbers:
        return None
    last = found.numbers[-1]
    return TrainMetadata(
        spec=found.spec,
        step_per_epoch=found.step_per_epoch,
        run_id=found.run_id,
        files={last: found.files[last]},
    )


def _names(run_dir: RunDir, metadata: TrainMetadata) -> set[str]:
    """The names of the files of the checkpoints that the metadata has."""
    found = read_trajectory(run_dir.ckpt_dir)
    return {
        found.path(number, rank).name
        for number, one in metadata.files.items()
        for rank in range(max(1, one.shards))
    }


def _remove(files: Sequence[Path], base: Path, *, removes_directories: bool) -> str:
    """Remove files, and their directories that are empty then; returns what could not be removed."""
    failed: list[str] = []
    for one in files:
        # Without its manifests, what is left of the run could not be removed by a second call.
        if failed and one.name in (MANIFEST, RANK_MANIFEST):
            break
        try:
            one.unlink(missing_ok=True)
        except OSError as error:
            failed.append(f"{one.relative_to(base)}: {reason(error)}")
    if removes_directories and not failed:
        inside = {parent for one in files for parent in one.parents if parent.is_relative_to(base)}
        for folder in sorted(inside, reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
    return "; ".join(failed[:3]) + (f"; and {len(failed) - 3} more" if len(failed) > 3 else "")

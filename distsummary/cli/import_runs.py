"""Makes runs of what other programs recorded: event files of TensorBoard, and the file store of MLflow.

A run is written next to its place and renamed, so that it is there whole or not at all. Nothing is changed
where it comes from.
"""

import heapq
import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.aggregate.merge import merge_run
from distsummary.base.columns import numbered, paragraph, printable
from distsummary.base.publish import ensure_directory, publish, temporary_name
from distsummary.base.redaction import redacted
from distsummary.base.terminal import doing
from distsummary.cli import mlflow_store
from distsummary.errors import DamagedFileError, DistSummaryError, MissingFileError, reason
from distsummary.events.reader import Damage, ReadEvent, read_directory, read_file
from distsummary.events.segments import dialect_of, segments
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import (
    DIALECTS,
    HPARAMS,
    MINDSPORE,
    SUMMARY_PLUGINS,
    TENSORBOARD,
    Batch,
    Event,
    Value,
)
from distsummary.rundir.rank_manifest import encoded, new_entry
from distsummary.rundir.run_dir import FORMAT, MANIFEST, RANK_MANIFEST, RunDir
from distsummary.rundir.topology import Topology

IMPORTED = "imported"  # the tag of such a run, and the key in run.json
AUTO, RANKS, RUNS = "auto", "ranks", "runs"
_DEPTH = 8  # directories below the given one that are looked into
_BATCH = 500  # events
_MOST_NAME, _MOST_NOTES, _MOST_TAGS = 200, 10_000, 100  # characters of a name, of notes; tags
_TRAIN = ("train", "training")
_ROLES = (*_TRAIN, "val", "valid", "validation", "eval", "evaluation", "test")
_RANK = re.compile(
    r"(?P<run>.*?)[_.-]?(?:rank|worker|replica|process|proc|gpu|device)[_.-]?(?P<rank>\d{1,5})", re.I
)
_HPARAMS_TAGS = "_hparams_/"
_SHOWN = 5  # of what was not read of a run


class Part(NamedTuple):
    """A directory of event files that belongs to a rank of a run; `renamed` gives the names of its tags."""

    directory: Path
    renamed: Callable[[str], str]


@dataclass(slots=True)
class Found:
    """A run that is to be made.

    `origin`: where it is from. `place`: its path below the directory of the new runs. `ranks`: number -> its
    parts; of MLflow's, that directory.
    """

    kind: str
    origin: Path
    place: str
    ranks: dict[int, list[Part]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Imported:
    """What became of a run: its new path (empty: none was made), and what was not read, one text each."""

    kind: str
    origin: str
    path: str = ""
    ranks: int = 1
    events: int = 0
    left_out: list[str] = field(default_factory=list)
    reason: str = ""  # why there is no run
    is_wrong: bool = False  # whether that is because it cannot be read or written


def import_runs(
    directory: str | os.PathLike[str], into: str | os.PathLike[str], *, each: str = AUTO
) -> list[Imported]:
    """Make runs below `into` of what is in a directory and below.

    Args:
        each: what a directory of event files is: "runs": a run; "ranks": a rank of one run; "auto": by its
            name, a rank such as `rank_0` if there are all of them from 0 on.

    Raises MissingFileError if there is nothing to import, and RunDirError if `into` cannot be made.
    """
    base, target = Path(os.path.realpath(directory)), Path(os.path.realpath(into))
    if not base.is_dir():
        raise MissingFileError(
            f"{os.fspath(directory)} is {'a file' if base.exists() else 'missing'}; name a directory"
        )
    refused: list[Imported] = []
    found = [*_find(base, target, each, refused)]
    if not found and not refused:
        raise MissingFileError(
            f"{os.fspath(directory)} has neither event files of other programs nor runs of MLflow's file "
            f"store in it or {_DEPTH} levels below"
        )
    ensure_directory(target)
    for number, one in enumerate(found, 1):
        doing("importing run", number, len(found))
        result = Imported(kind=one.kind, origin=str(one.origin), ranks=max(1, len(one.ranks)))
        try:
            _import(one, target, result)
        except Exception as error:
            # One broken history hides no other.
            known = isinstance(error, (DistSummaryError, OSError))
            result.reason = str(error) if known else f"{type(error).__name__}: {error}"
            result.is_wrong = True
        refused.append(result)
    return refused


def text_of(found: Iterable[Imported], *, width: int) -> str:
    """What was made and what was not read, in lines."""
    lines, made = [], 0
    for one in found:
        if one.reason:
            lines += paragraph(f"not imported: {printable(one.origin)}: {printable(one.reason)}", width)
            continue
        made += 1
        ranks = f", {one.ranks} ranks" if one.ranks > 1 else ""
        lines += paragraph(
            f"{printable(one.path)}: {numbered(one.events, 'event')}{ranks}, of {printable(one.origin)}",
            width,
        )
        for text in one.left_out[:_SHOWN]:
            lines += paragraph(f"  not read: {printable(text)}", width, indent="    ")
        if len(one.left_out) > _SHOWN:
            lines.append(f"  and {len(one.left_out) - _SHOWN} more: --json")
    return "\n".join([*lines, f"{numbered(made, 'run')} imported"])


def _find(base: Path, into: Path, each: str, refused: list[Imported]) -> Iterator[Found]:
    """The runs to make; `refused` gets what looks like one and cannot be."""
    events: dict[Path, str] = {}  # directory -> the first tag in it
    for directory in _directories(base, into, _DEPTH, refused):
        if mlflow_store.is_run(directory):
            yield Found("mlflow", directory, "")
            continue
        try:
            first = _first(directory)
        except (DistSummaryError, OSError) as error:
            refused.append(
                Imported(kind=TENSORBOARD, origin=str(directory), reason=str(error), is_wrong=True)
            )
            continue
        if first is not None:
            events[directory] = first
    runs: dict[Path, Found] = {}
    for number, directory in enumerate(events):
        run, rank, renamed = _place(directory, base, events, each)
        if each == RANKS:
            run, rank, renamed = base, number, str
        place = run.relative_to(base).as_posix() if run != base else base.name
        one = runs.setdefault(run, Found(TENSORBOARD, run, place))
        one.ranks.setdefault(rank, []).append(Part(directory, renamed))
    yield from runs.values()


def _directories(directory: Path, into: Path, depth: int, refused: list[Imported]) -> Iterator[Path]:
    """A directory and those below it, without runs of distsummary and without links."""
    if directory == into or (directory / MANIFEST).exists():
        return
    yield directory
    if mlflow_store.is_run(directory):
        return
    try:
        children = sorted(one for one in directory.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError as error:
        refused.append(Imported(kind="", origin=str(directory), reason=reason(error), is_wrong=True))
        return
    for child in children if depth else ():
        if not child.name.startswith("."):
            yield from _directories(child, into, depth - 1, refused)


def _first(directory: Path) -> str | None:
    """The first tag in the event files of a directory; None if it has none of other programs."""
    files = [file for dialect in DIALECTS for file in segments(directory, dialect)]
    for file in files:
        for event in read_file(file, "skip"):
            if event.run_id:
                return None
            if event.values:
                return event.values[0].tag
    return "" if files else None


def _place(
    directory: Path, base: Path, events: Mapping[Path, str], each: str
) -> tuple[Path, int, Callable[[str], str]]:
    """The run that a directory of event files belongs to, its rank, and the names that its tags get."""
    name, parent = directory.name, directory.parent
    if directory == base:
        return directory, 0, str
    tag = events.get(directory, "")
    if parent in events and tag.startswith(_HPARAMS_TAGS):
        # SummaryWriter.add_hparams has a directory for each call.
        return _place(parent, base, events, each)
    start = re.sub(r"[/ ]", "_", tag) + "_"
    if parent in events and tag and name.startswith(start):
        # SummaryWriter.add_scalars has a directory for each curve of a tag.
        run, rank, _ = _place(parent, base, events, each)
        return run, rank, partial(_joined, after=name[len(start) :])
    if name.lower() in _ROLES:
        # Keras and others have a directory for training and one for validation.
        run, rank, _ = _place(parent, base, events, each)
        return run, rank, str if name.lower() in _TRAIN else partial(_joined, before=name.lower())
    found = _RANK.fullmatch(name)
    if found is not None and each == AUTO:
        ranks = {
            int(other["rank"])
            for one in {*events, *(one.parent for one in events)}
            if one.parent == parent and (other := _RANK.fullmatch(one.name)) and other["run"] == found["run"]
        }
        if len(ranks) > 1 and ranks == {*range(len(ranks))}:
            return parent / found["run"] if found["run"] else parent, int(found["rank"]), str
    return directory, 0, str


def _joined(tag: str, *, before: str = "", after: str = "") -> str:
    return "/".join(filter(None, (before, tag, after)))


def _import(one: Found, into: Path, result: Imported) -> None:
    """Write a run and give it its place."""
    facts: dict[str, Any] = {
        "state": "finished",
        "name": "",
        "group": None,
        "tags": [],
        "notes": "",
        "config": {},
    }
    if one.kind == "mlflow":
        history = mlflow_store.read_run(one.origin)
        if history is None:
            result.reason = "it was deleted in MLflow"
            return
        result.left_out += history.left_out
        facts |= {name: getattr(history, name) for name in ("state", "name", "notes", "config")}
        facts |= {"group": history.experiment or None, "tags": [*history.tags], "commit": history.commit}
        facts |= {"started": history.started, "ended": history.ended}
        experiment = _as_folder(history.experiment or one.origin.parent.name)
        one.place = (
            f"{experiment}/{_as_folder(history.name or history.run_id)[:80]}-{_as_folder(history.run_id)[:8]}"
        )
    target = into.joinpath(*map(_as_folder, Path(one.place).parts))
    if target.exists():
        result.reason = f"{target} is there already; remove it to import this again"
        return
    ensure_directory(target.parent)
    staged = temporary_name(target.parent)
    staged.mkdir()
    try:
        _write(one, RunDir(staged), facts, target.name, result)
        if one.kind != "mlflow" and not result.events:
            raise DamagedFileError(f"nothing in it can be read: {'; '.join(result.left_out[:3])}")
        os.rename(staged, target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    result.path = str(target)


def _write(one: Found, run: RunDir, facts: dict[str, Any], folder: str, result: Imported) -> None:
    """Write the event files and manifests of a run."""
    run_id, world = secrets.token_hex(8), max(1, len(one.ranks))
    spans: dict[int, tuple[float, float, int]] = {}
    for rank in range(world):
        directory = run.writer_dir("train", rank, world)
        ensure_directory(directory)
        if one.kind == "mlflow":
            events: Iterator[Event] = mlflow_store.read_metrics(one.origin, result.left_out)
        else:
            events = _events([*one.ranks.values()][rank], facts, result)
        spans[rank] = _record(directory, run_id, rank, world, events, result)
    started = facts.get("started") or min((one[0] for one in spans.values() if one[0]), default=0.0)
    for rank, (_, last, step) in spans.items():
        ended = facts.get("ended") or last or started
        place = Topology(rank=rank, world_size=world, pid_space=IMPORTED, incarnation=IMPORTED)
        entry = new_entry(place, 0, facts["state"], started=started)
        entry |= {"ended": ended, "heartbeat": {"time": ended, "step": step}}
        if facts["state"] == "failed":
            entry["error"] = f"it failed, says {one.kind}"
        path = run.writer_dir("train", rank, world) / RANK_MANIFEST
        publish(path, encoded("train", rank, [entry]))
    attempt = {
        "role": "train", "attempt": 0, "incarnation": IMPORTED, "world_size": world, "started": started,
        "config": redacted(facts["config"]),
        "provenance": {"git": {"commit": facts["commit"]}} if facts.get("commit") else {},
    }  # fmt: skip
    name, tags = _line(facts["name"]), map(_line, facts["tags"])
    manifest = {
        "format": FORMAT, "run_id": run_id, "created": time.time(), "state": facts["state"],
        "attempts": [attempt], "tags": [IMPORTED, *dict.fromkeys(filter(None, tags))][:_MOST_TAGS],
        IMPORTED: {"kind": one.kind, "from": str(one.origin)},
    }  # fmt: skip
    manifest |= {"name": name} if name and name != folder else {}
    manifest |= {"group": _line(facts["group"])} if facts["group"] else {}
    manifest |= {"notes": redacted(facts["notes"][:_MOST_NOTES])} if facts["notes"] else {}
    publish(run.manifest_path, json.dumps(manifest, indent=1).encode())
    if world > 1:
        merge_run(run.base)


def _events(parts: list[Part], facts: dict[str, Any], result: Imported) -> Iterator[Event]:
    """The events of the parts of a rank, by their times; hyperparameters go to the config."""
    damage: list[Damage] = []
    left_out: Counter[str] = Counter()

    def read(part: Part) -> Iterator[Event]:
        dialect = TENSORBOARD if segments(part.directory, TENSORBOARD) else MINDSPORE
        for event in read_directory(part.directory, dialect, "skip", skipped=damage):
            values = []
            for value in event.values:
                if value.plugin == HPARAMS:
                    facts["config"] |= _hparams(value)
                elif value.plugin in SUMMARY_PLUGINS or value.plugin == "graph":
                    values.append(value._replace(tag=part.renamed(value.tag)))
                else:
                    left_out[value.plugin] += 1
            if not event.values:
                left_out.update(_kinds(event))
            if values:
                yield Event(event.step, event.wall_time, values)

    yield from heapq.merge(*map(read, parts), key=lambda event: event.wall_time)
    result.left_out += [f"{one.file}, byte {one.offset}: {one.reason}" for one in damage]
    result.left_out += [f"{numbered(count, 'value')} of {plugin}" for plugin, count in left_out.items()]


def _kinds(event: ReadEvent) -> list[str]:
    """The kinds of the values that readers skip, such as meshes."""
    if dialect_of(event.file) != TENSORBOARD:
        return []
    with open(event.file, "rb") as file:
        file.seek(event.offset)
        payload = file.read(event.end - event.offset)[12:-4]  # without its length and CRCs
    values = tensorboard_pb2.Event.FromString(payload).summary.value
    return [
        one.metadata.plugin_data.plugin_name or one.WhichOneof("value") or "an unknown kind" for one in values
    ]


def _hparams(value: Value) -> dict[str, Any]:
    found = {}
    for name, entered in value.data.session_start_info.hparams.items():
        kind = entered.WhichOneof("kind")
        found[name] = getattr(entered, kind) if kind and kind != "null_value" else None
    return found


def _record(
    directory: Path, run_id: str, rank: int, world: int, events: Iterator[Event], result: Imported
) -> tuple[float, float, int]:
    """Write the events of a rank; returns the first and the last wall time, and the last step."""
    spec = WriterSpec(
        directory=directory, run_id=run_id, rank=rank, formats=DIALECTS if world == 1 else (MINDSPORE,),
        hides_lineage=world > 1,
    )  # fmt: skip
    writer = RankWriter(spec)
    first, last, step, seq = 0.0, 0.0, 0, 0
    try:
        while some := [*islice(events, _BATCH)]:
            times = [event.wall_time for event in some]
            first = min([*times, *([first] if first else [])])
            last, step = max([last, *times]), max([step, *(event.step for event in some)])
            writer.write(Batch(run_id=run_id, attempt=0, rank=rank, first_seq=seq + 1, events=some))
            seq += len(some)
        writer.flush()
    finally:
        writer.close()
    result.events += seq
    if lost := writer.health().errors:
        result.left_out.append(
            "; ".join(f"{reason} ({numbered(count, 'value')})" for reason, count in lost.items())
        )
    return first, last, step


def _as_folder(name: str) -> str:
    """A name as that of a directory: printable, without a slash, not hidden."""
    text = "".join(one if one.isprintable() and one not in "/\\" else "_" for one in name).strip()
    text = text.encode(errors="replace")[:_MOST_NAME].decode(errors="ignore").strip().lstrip(".")
    return text or "run"


def _line(text: str) -> str:
    """A text as a name, group or tag of a run."""
    line = "".join(one if one.isprintable() else " " for one in text)[:_MOST_NAME].strip()
    return str(redacted(line))

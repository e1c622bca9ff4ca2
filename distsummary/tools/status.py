"""The states of a run as a text of one screen, for the commands `distsummary status` and `watch`."""

import os
import re
import shlex
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distsummary.errors import DistSummaryError, MissingFileError
from distsummary.publish import file_system_time
from distsummary.run_dir import MANIFEST, RunDir
from distsummary.states import AttemptState, RankState, RunState, read_run
from distsummary.tools.columns import WIDTH, aligned, cut, lasting, named, numbered, printable, short_ranges

EACH_RANK = 32  # up to so many ranks have a line each
ODD_RANKS = 12  # of more ranks, up to so many that are not as they should be
MAX_ROWS = 18  # of more ranks; with all else, 40 lines
BEHIND_S = 15.0  # three heartbeats; a rank that lacks more than the steps of this time is behind
BEHIND_STEPS = 10
EARLIER = 3  # attempts before the newest that have a line

_GOOD = ("running", "finished")
_HEAD = ("rank", "state", "step", "phase", "ms/step", "heard", "dropped", "process", "")
_RIGHT = (2, 4, 5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A run at one moment.

    `now`: seconds since the epoch, by the file system's clock. `merged_step`: the newest step of the merged
    run; None if the run has one rank or nothing is merged.
    """

    run: RunState
    now: float
    merged_step: int | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the run goes on or has finished, and so has each of its ranks."""
        newest = self.run.newest
        return (
            newest is not None
            and self.run.state in _GOOD
            and all(rank.state in _GOOD for rank in newest.ranks)
        )

    @property
    def exit_code(self) -> int:
        """0 if the run is healthy, else 1."""
        return 0 if self.is_healthy else 1

    @property
    def step(self) -> int | None:
        """The newest step that a rank has told or that is merged; None without any."""
        return max(newest_step(self.run.newest) or 0, self.merged_step or 0) or None

    def as_json(self) -> dict[str, Any]:
        """For JSON; docs/ranks.md lists the fields."""
        run = asdict(self.run)
        attempts = [_attempt_as_json(attempt) for attempt in self.run.attempts]
        newest = None if self.run.newest is None else self.run.attempts.index(self.run.newest)
        return {
            "path": str(self.run.path),
            "run_id": run["run_id"],
            "state": run["state"],
            "is_healthy": self.is_healthy,
            "step": self.step,
            "merged_step": self.merged_step,
            "now": self.now,
            "newest": newest,
            "attempts": attempts,
            "hints": hints(self),
        }


def read_status(path: str | os.PathLike[str]) -> Status:
    """Read the states of a run from its files.

    Raises:
        MissingFileError: it is no run; the message says what it is.
        DamagedFileError, RunDirError: run.json is damaged, of an older version, or cannot be read.
    """
    run_dir = RunDir(path)
    _check_is_run(run_dir.base, os.fspath(path))
    now = file_system_time(run_dir.base)
    run = read_run(run_dir, now=now)
    attempts = [
        _with_recorded_steps(run_dir, attempt, EACH_RANK if attempt is run.newest else 1)
        for attempt in run.attempts
    ]
    if run.newest is not None:
        run = replace(run, attempts=(*attempts,), newest=attempts[run.attempts.index(run.newest)])
    is_merged = run.newest is not None and run.newest.world_size > 1
    return Status(run=run, now=now, merged_step=_recorded_step(run_dir.base) if is_merged else None)


def newest_step(attempt: AttemptState | None) -> int | None:
    """The newest step that a rank of the attempt has told; None if none has."""
    return max((rank.step for rank in attempt.ranks if rank.step), default=None) if attempt else None


def text_of(status: Status, *, width: int = WIDTH) -> str:
    """The run, its ranks and what to do next, in lines of at most `width` characters."""
    run, newest = status.run, status.run.newest
    lines = [cut(line, width) for line in _head(status, width)]
    if newest is None:
        return "\n".join([*lines, *hints(status)])
    if newest.failure is not None:
        lines.append(
            cut(f"  first failure: rank {newest.failure.rank}, {printable(newest.failure.error)}", width)
        )
    if status.merged_step is not None:
        lines.append(f"  merged up to step {status.merged_step:,}")
    others = [one for one in run.attempts if one is not newest]
    if len(others) > EARLIER:
        lines.append(f"  {numbered(len(others) - EARLIER, 'earlier attempt')}: see --json")
    lines += [cut(f"  {_other_line(one, newest)}", width) for one in others[-EARLIER:]]
    lines += ["", *aligned([_HEAD, *_rows(newest)], right=_RIGHT, width=width), ""]
    return "\n".join(lines + hints(status))


def _head(status: Status, width: int) -> list[str]:
    """The run in one line; in two if it is too long for one."""
    run, newest = status.run, status.run.newest
    parts = [run.state]
    if newest is not None:
        role = "" if newest.role == "train" else f" of role {newest.role}"
        parts.append(f"attempt {newest.attempt}{role}")
        parts.append(numbered(newest.world_size, "rank"))
        if status.step is not None:
            parts.append(f"step {status.step:,}")
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest.started))
        parts.append(f"began {began} ({lasting(max(0.0, status.now - newest.started))} ago)")
    path, facts = f"{printable(str(run.path))}:", ", ".join(parts)
    return [f"{path} {facts}"] if len(path) + 1 + len(facts) <= width else [path, f"  {facts}"]


def hints(status: Status) -> list[str]:
    """What the states mean, and the next command; sentences, one in each line."""
    run, newest = status.run, status.run.newest
    path = shlex.quote(printable(str(run.path)))
    if newest is None:
        return ["No rank has registered: the job has not reached its first step."]
    bad = [rank for rank in newest.ranks if rank.state not in _GOOD]
    living = [rank for rank in newest.ranks if rank.state == "running"]
    said = [_verdict(newest, bad, living)]
    first = newest.failure.rank if newest.failure else -1
    causes = sorted(_alike(bad), key=lambda ranks: first not in [rank.rank for rank in ranks])
    for ranks in causes[:3]:
        why = printable(ranks[0].error or ranks[0].reason)
        said.append(
            f"  {named([rank.rank for rank in ranks])} {ranks[0].state}" + (f": {why}" if why else "")
        )
    if len(causes) > 3:
        said.append(f"  and {numbered(sum(map(len, causes[3:])), 'more rank')}: see --json")
    if newest.missing and bad + living:
        said.append(f"{named(newest.missing)} never registered; a training may record on some ranks only.")
    said += _standing_still(newest, living)
    if dropped := {rank.rank: count for rank in newest.ranks if (count := dropped_by(rank))}:
        values = numbered(sum(dropped.values()), "value")
        said.append(f"{named(dropped)} dropped {values}; the log names each reason once.")
    step = newest_step(newest)
    if newest.world_size > 1 and not living and step and (status.merged_step or 0) < step:
        at = f"ends at step {status.merged_step:,}" if status.merged_step is not None else "is missing"
        said.append(f"The merged run {at}, the ranks came to {step:,}: distsummary merge {path}")
    if living:
        said.append(f"next: distsummary watch {path}")
    elif bad:
        said.append(f"next: start the job again (attempt {newest.attempt + 1}), or: distsummary fsck {path}")
    else:
        said.append(f"next: tensorboard --logdir {path}")
    return said


def dropped_by(rank: RankState) -> int | None:
    """How many values the rank has dropped; None if it has not told."""
    count = rank.health.get("dropped")
    return count if isinstance(count, int) else None


def _check_is_run(base: Path, given: str) -> None:
    """Raise MissingFileError unless the directory has a run.json."""
    if (base / MANIFEST).exists():
        return
    if not base.is_dir():
        kind = "a file" if base.exists() else "missing"
        raise MissingFileError(f"{given} is {kind}; name the directory of a run (RUN)")
    remedy = "name the directory that ds.init was given, which has one as soon as a rank has registered"
    if (base.parent / MANIFEST).exists():
        remedy = f"it belongs to the run {base.parent}"
    elif any((child / MANIFEST).exists() for child in base.iterdir()):
        remedy = f"it holds runs: distsummary runs {given}"
    raise MissingFileError(f"{given} is not a run, for it has no {MANIFEST}; {remedy}")


def _with_recorded_steps(run_dir: RunDir, attempt: AttemptState, most: int) -> AttemptState:
    """The attempt with the newest recorded steps of ranks that have ended, whose last heartbeat was earlier.

    Of the first `most` such ranks: each costs the reading of an event file's end.
    """
    steps: dict[int, int | None] = {}
    for rank in [rank for rank in attempt.ranks if rank.state != "running"][:most]:
        place = run_dir.writer_dir(attempt.role, rank.rank, attempt.world_size)
        steps[rank.rank] = _recorded_step(place, attempt.attempt)
    ranks = [
        replace(rank, step=max(rank.step or 0, step)) if (step := steps.get(rank.rank)) else rank
        for rank in attempt.ranks
    ]
    return replace(attempt, ranks=tuple(ranks))


def _recorded_step(directory: Path, attempt: int | None = None) -> int | None:
    """The newest step in a directory's event files, of one attempt or of all; None if it has none."""
    from distsummary.reading.newest import newest_events  # loads NumPy, which a running rank does not need

    try:
        return max((event.step for event in newest_events(directory, attempt=attempt)), default=None)
    except (DistSummaryError, OSError):  # fsck names what cannot be read
        return None


def _attempt_as_json(attempt: AttemptState) -> dict[str, Any]:
    found = asdict(attempt)
    for rank, state in zip(found["ranks"], attempt.ranks, strict=True):
        rank["dropped"] = dropped_by(state)
        rank["health"] = dict(state.health)
    return found | {
        "failure": None if attempt.failure is None else attempt.failure._asdict(),
        "step": newest_step(attempt),
    }


def _other_line(attempt: AttemptState, newest: AttemptState) -> str:
    """What an attempt beside the newest one came to."""
    step = newest_step(attempt)
    came = "" if step is None else f", came to step {step:,}"
    if attempt.role != newest.role:
        return f"{attempt.role} attempt {attempt.attempt}: {attempt.state}{came}"
    why = f" (rank {attempt.failure.rank}: {printable(attempt.failure.error)})" if attempt.failure else ""
    ranks = numbered(attempt.world_size, "rank")
    return f"before: attempt {attempt.attempt}, {attempt.state}, {ranks}{came}{why}"


def _verdict(newest: AttemptState, bad: Sequence[RankState], living: Sequence[RankState]) -> str:
    others = numbered(len(living), "rank")
    lacking = named([rank.rank for rank in bad], "rank")
    goes_on = f"{others} {'goes' if len(living) == 1 else 'go'} on"
    if living and not bad:
        is_all = len(living) == newest.world_size > 1
        ended = len(newest.ranks) - len(living)
        finished = f", {ended:,} {'has' if ended == 1 else 'have'} finished" if ended else ""
        return f"The run is fine: {f'all {others} run' if is_all else goes_on}{finished}."
    if living:
        return f"The run goes on without {lacking}: {others} {'runs' if len(living) == 1 else 'run'}."
    if not newest.ranks:
        return "No rank has registered in this attempt."
    if not bad:
        return "The run is fine: it has finished."
    if newest.state == "finished":
        return "The run has finished, but events are missing from the files."
    if newest.state == "lost" and len(bad) < len(newest.ranks):
        return f"The run has ended without {lacking}, which did not finish."
    verb = {"interrupted": "was interrupted", "failed": "has failed", "lost": "is dead"}
    step = newest_step(newest)
    return f"The run {verb.get(newest.state, 'has ended')}" + (f" at step {step:,}." if step else ".")


def _standing_still(newest: AttemptState, living: Sequence[RankState]) -> list[str]:
    """Whether no rank makes steps any more, and at which one to look first."""
    training = [rank for rank in living if rank.phase == "training" and rank.step]
    if not training or len(training) < len(living) or any(rank.step_s for rank in training):
        return []
    least = min(rank.step or 0 for rank in training)
    slowest = [rank.rank for rank in training if rank.step == least]
    if len(slowest) == len(training):
        return [f"No rank has made a step since its last heartbeat; all are at step {least:,}."]
    return [
        f"No rank has made a step since its last heartbeat; look at {named(slowest, 'rank')} first: "
        f"at step {least:,}, the others are further."
    ]


def _rows(attempt: AttemptState) -> list[tuple[str, ...]]:
    """The rows of the table: a rank each or, if there are many, ranks that are alike."""
    ranks = attempt.ranks
    missing = (short_ranges(attempt.missing), "missing", *["-"] * 6, "never registered")
    end = [missing] if attempt.missing else []
    if len(ranks) <= EACH_RANK:
        return [_row([rank]) for rank in ranks] + end
    limit = _least_step(ranks)
    odd = [rank for rank in ranks if _is_odd(rank, limit)]
    rows = [_row(alike) for alike in ([[rank] for rank in odd] if len(odd) <= ODD_RANKS else _alike(odd))]
    rows += [_row(alike) for alike in _alike(rank for rank in ranks if not _is_odd(rank, limit))] + end
    if len(rows) > MAX_ROWS:
        rest = numbered(len(rows) - MAX_ROWS, "more line")
        rows[MAX_ROWS:] = [("...", f"{rest}: see --json", *[""] * 7)]
    return rows


def _alike(ranks: Iterable[RankState]) -> list[list[RankState]]:
    """Ranks of the same state, phase and reason together; numbers in the reason may differ."""
    groups: dict[tuple[str, str, bool, str], list[RankState]] = defaultdict(list)
    for rank in ranks:
        why = re.sub(r"\d+", "#", rank.error or rank.reason)
        groups[rank.state, rank.phase, bool(dropped_by(rank)), why].append(rank)
    return sorted(groups.values(), key=len)


def _least_step(ranks: Iterable[RankState]) -> int:
    """The step below which a running rank is behind the others."""
    running = [rank for rank in ranks if rank.state == "running"]
    paces = [rank.step_s for rank in running if rank.step_s]
    allowed = max(BEHIND_STEPS, BEHIND_S / statistics.median(paces) if paces else 0)
    return int(max((rank.step or 0 for rank in running), default=0) - allowed)


def _is_odd(rank: RankState, least_step: int) -> bool:
    is_behind = rank.state == "running" and (rank.step or 0) < least_step
    return rank.state not in _GOOD or is_behind or bool(dropped_by(rank))


def _row(ranks: Sequence[RankState]) -> tuple[str, ...]:
    """One rank, or ranks that are alike, as the cells of a line."""
    first = ranks[0]
    steps = [rank.step for rank in ranks if rank.step is not None]
    paces = [1e3 * rank.step_s for rank in ranks if rank.step_s]
    dropped = [count for rank in ranks if (count := dropped_by(rank)) is not None]
    hosts = {rank.host for rank in ranks}
    process = f"{first.host}:{first.pid}" if len(ranks) == 1 else first.host
    if len(hosts) > 1:
        process = numbered(len(hosts), "host")
    return (
        short_ranges([rank.rank for rank in ranks]),
        first.state,
        _span([f"{min(steps)}", f"{max(steps)}"] if steps else []),
        "-" if first.state == "finished" else printable(first.phase) or "-",
        _span([f"{min(paces):.1f}", f"{max(paces):.1f}"] if paces else []),
        lasting(max(rank.heard_s for rank in ranks)),
        f"{sum(dropped)}" if dropped else "-",
        printable(process),
        printable(first.error or first.reason),
    )


def _span(ends: Sequence[str]) -> str:
    return "-".join(dict.fromkeys(ends)) or "-"

"""The bill of a run: its wall time, over all attempts, in parts that add up to it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.cost import excess_of_all, intervals_of, median_of_others
from distsummary.diagnosis.sentence import LEAST_S, seconds
from distsummary.diagnosis.verdict import LOADER, NAN, OVERHEAD, SLOW, STOPPED, UNEVEN, UNSAVED, Verdict

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PARTS = {  # in the order of the bill, with the words for each
    "start": "start, until the first step",
    "compile": "compilation and first steps",
    "training": "kept training",
    "waiting": "waiting for",
    "data": "waiting for data",
    "recording": "recording",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "hang": "hang of",
    "rollback": "steps that a later attempt repeated",
    "nan": "training on numbers that are not finite",
    "unsaved": "steps after the newest checkpoint",
    "pause": "between attempts",
    "end": "after the last step",
    "unmeasured": "not measured",
}
SPENT = ("recording", "checkpoint", "evaluation")  # what a rank itself adds up
FIRST_STEPS = 10  # of an attempt, or half of its steps if these are fewer
LEAST_SHARE = 0.01  # of the attempt, that ranks without a verdict have a row of their own for
BLOCK = 1 << 20  # numbers that are looked at together


class Part(NamedTuple):
    """A row of the bill.

    `part`: one of PARTS. `rank`: the rank that was waited for; None: several, or no matter. `cause`: that of
    the verdict which says so; None without one. `seconds`: of the wall time.
    """

    part: str
    rank: int | None
    cause: str | None
    seconds: float


class Measured(NamedTuple):
    """What R ranks did at M steps, in milliseconds (M, R), NaN where a rank measured nothing.

    `own_ms`: by themselves, without `apart_ms`: on recording, checkpoints and evaluations. `wait_ms`: waiting
    for other ranks. `work` (R,): equal numbers for ranks that do the same work.
    """

    steps: Ints
    ranks: Ints
    own_ms: Floats
    apart_ms: Floats
    wait_ms: Floats
    work: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """When an attempt did what.

    Attributes:
        begun, ended: its first process and its last sign of life, in seconds since the epoch.
        is_cut: it ended without finishing, so that the time after its last step was no training.
        first_s, steps_s: seconds from `begun` to the first step, and from there to the end of the last.
        steps, step_ms: (N,) the steps that one rank timed, which rise, and their milliseconds.
        data_steps, data_ms: (D,) some or all of these steps, and how long the ranks waited for data at each.
        measured: None for a single rank.
        spent_s: by SPENT, seconds.
        repeated: the step from which on a later attempt made the steps again; infinity: none.
        saved: the step of the newest checkpoint of an attempt that did not finish; infinity: none is known.
    """

    attempt: int
    begun: float
    ended: float
    is_cut: bool = False
    first_s: float = 0.0
    steps_s: float = 0.0
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    step_ms: Floats = field(default_factory=lambda: np.zeros(0))
    data_steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    data_ms: Floats = field(default_factory=lambda: np.zeros(0))
    measured: Measured | None = None
    spent_s: Mapping[str, float] = field(default_factory=dict)
    repeated: float = math.inf
    saved: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What the wall time of a run was spent on.

    Attributes:
        wall_s: seconds from the first process of the first attempt to the last sign of life of the last.
        parts: its parts, which add up to it, in the order of PARTS.
        goodput: the share of kept training; None if no step was timed.
        measured: the share of the steps of several ranks at which their waiting was measured; the others are
            taken to be like them. None: of no step.
        saved: rank and cause -> by how many seconds the run is shorter without it: less than its part, if
            another rank is then the last.
    """

    wall_s: float
    parts: tuple[Part, ...]
    goodput: float | None = None
    measured: float | None = None
    saved: Mapping[tuple[int, str], float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For JSON; docs/goodput.md lists the fields."""
        what_if = [{"rank": rank, "cause": cause, "seconds": s} for (rank, cause), s in self.saved.items()]
        parts = [one._asdict() for one in self.parts]
        head = {"wall_s": self.wall_s, "goodput": self.goodput, "parts": parts}
        return head | {"measured": self.measured, "what_if": what_if}


def bill(attempts: Iterable[AttemptTimes], verdicts: Iterable[tuple[int, Verdict]]) -> Bill:
    """The bill of a run.

    Args:
        attempts: of one role. verdicts: each with its attempt, a rank and a cause once in an attempt.
    """
    ordered = sorted(attempts, key=lambda one: one.attempt)
    found: dict[tuple[str, int | None, str | None], float] = defaultdict(float)
    saved: dict[tuple[int, str], float] = defaultdict(float)
    of_attempt: dict[int, list[Verdict]] = defaultdict(list)
    for number, verdict in verdicts:
        of_attempt[number].append(verdict)
    end = -math.inf
    for place, one in enumerate(ordered):
        # By the end of an attempt's steps: a rank that was killed reported its last sign of life before.
        until = max(one.ended, one.begun + one.first_s + one.steps_s)
        for following in ordered[place + 1 : place + 2]:
            until = max(one.begun, min(until, following.begun))
        if end > -math.inf:
            found["pause", None, None] += max(0.0, one.begun - end)
        wall_s, end = until - one.begun, until
        rows = dict(_parts(one, wall_s, of_attempt[one.attempt], saved))
        # Where files contradict each other, nothing is left for the training; the rest fills the time.
        spent_s = math.fsum(rows.values())
        scale = min(1.0, wall_s / spent_s) if spent_s else 1.0
        for key, value in rows.items():
            found[key] += scale * value
        kept_s = max(0.0, wall_s - scale * spent_s)
        for part, share in _shares(one, of_attempt[one.attempt]).items():
            found[part, None, None] += share * kept_s
    order = [*PARTS]
    rows_found = [Part(*key, value) for key, value in found.items() if value > 0.0]
    rows_found.sort(key=lambda one: (order.index(one.part), -one.seconds))
    total_s = math.fsum(found.values())
    steps = sum(one.steps.size for one in ordered if one.measured is not None)
    looked = sum(one.measured.steps.size for one in ordered if one.measured is not None)
    has_steps = any(one.steps.size for one in ordered) and total_s > 0.0
    return Bill(
        wall_s=total_s,
        parts=tuple(rows_found),
        goodput=found["training", None, None] / total_s if has_steps else None,
        measured=min(1.0, looked / steps) if steps and looked else None,
        saved=dict(sorted(saved.items(), key=lambda one: -one[1])),
    )


Row = tuple[tuple[str, int | None, str | None], float]


def _parts(
    one: AttemptTimes,
    wall_s: float,
    verdicts: Sequence[Verdict],
    saved: dict[tuple[int, str], float],
) -> Iterator[Row]:
    """The rows of an attempt, but for its training and what of it was lost."""
    if not one.steps.size:
        yield ("unmeasured" if one.steps_s else "start", None, None), wall_s
        return
    yield ("start", None, None), one.first_s
    data_ms = _data_ms(one)
    yield ("compile", None, None), _compiled_s(one.step_ms - data_ms)
    slow = [verdict for verdict in verdicts if verdict.cause in SLOW]
    spent_s = {name: one.spent_s.get(name, 0.0) for name in SPENT}
    for verdict in slow:
        # Ranks that are slow in turns share a verdict.
        yield ("waiting", None if verdict.ranks else verdict.rank, verdict.cause), verdict.lost_s
        # What a verdict has is not counted a second time.
        if verdict.cause in spent_s:
            spent_s[verdict.cause] -= verdict.lost_s
    stopped = [verdict for verdict in verdicts if verdict.cause in STOPPED]
    if one.measured is not None:
        yield from _split_waiting(_waiting(one, one.measured, slow, stopped, wall_s), verdicts)
        for verdict in (each for each in slow if not each.ranks):
            share = _saved_share(one.measured, verdict)
            saved[verdict.rank, verdict.cause] = saved.get((verdict.rank, verdict.cause), 0.0) + (
                share * verdict.lost_s
            )
    yield from _split("data", 1e-3 * float(data_ms.sum()), LOADER, verdicts)
    yield from _split("recording", spent_s.pop("recording"), OVERHEAD, verdicts)
    for name, value in spent_s.items():
        yield (name, None, None), max(0.0, value)
    hung_s = 0.0
    for verdict, lost_s in _hangs(stopped):
        yield ("hang", verdict.rank, verdict.cause), lost_s
        hung_s += lost_s if verdict.until_step is None else 0.0
    if one.is_cut:
        yield ("end", None, None), max(0.0, wall_s - one.first_s - one.steps_s - hung_s)


def _data_ms(one: AttemptTimes) -> Floats:
    """How long the ranks waited for data at each step; steps that were not read are like others."""
    if not one.data_steps.size:
        return np.zeros(one.steps.size)
    return np.interp(one.steps, one.data_steps, one.data_ms)


def _compiled_s(body_ms: Floats) -> float:
    """By how much the first steps, but for their data, took longer than the others."""
    first = _first_steps(body_ms.size)
    return 1e-3 * float(np.maximum(body_ms[:first] - np.median(body_ms[first:]), 0.0).sum()) if first else 0.0


def _first_steps(steps: int) -> int:
    return min(FIRST_STEPS, steps // 2)


def _split(part: str, total_s: float, cause: str, verdicts: Sequence[Verdict]) -> Iterator[Row]:
    """A part of which a verdict of all ranks may have its own row."""
    for verdict in verdicts:
        if verdict.cause == cause:
            yield (part, None, cause), verdict.lost_s
            total_s -= verdict.lost_s
    yield (part, None, None), max(0.0, total_s)


def _split_waiting(rows: Iterable[Row], verdicts: Sequence[Verdict]) -> Iterator[Row]:
    """The waiting for ranks without a verdict; that for steps of different lengths has a row."""
    if all(verdict.cause != UNEVEN for verdict in verdicts):
        yield from rows
    else:
        yield from _split("waiting", math.fsum(value for _, value in rows), UNEVEN, verdicts)


def _hangs(stopped: Sequence[Verdict]) -> Iterator[tuple[Verdict, float]]:
    """The verdicts on ranks that stopped, and what each cost: those of one moment share the time."""
    alike: dict[int, list[Verdict]] = defaultdict(list)
    for verdict in sorted(stopped, key=lambda one: one.since_step):
        # Ranks that wait for each other are at most one step apart.
        near = verdict.since_step - 1 in alike
        alike[verdict.since_step - near].append(verdict)
    for several in alike.values():
        total_s = sum(verdict.lost_s for verdict in several)
        share = max(verdict.lost_s for verdict in several) / total_s if total_s else 0.0
        yield from ((verdict, share * verdict.lost_s) for verdict in several)


def _shares(one: AttemptTimes, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Of an attempt's steps, by their time, the share that was kept, and those that were not, by part."""
    causes = {verdict.cause for verdict in verdicts}
    is_nan = [
        verdict.since_step for verdict in verdicts if verdict.cause == NAN and verdict.until_step is None
    ]
    # A step counts once: the first of these that has it.
    sinces = {
        "rollback": one.repeated,
        "nan": min(is_nan, default=math.inf),
        "unsaved": math.inf if UNSAVED in causes or one.repeated < math.inf else one.saved + 1,
    }
    total_ms = float(one.step_ms.sum())
    if not total_ms:
        return {"training": 1.0}
    left = np.ones(one.steps.size, np.bool_)
    shares = {}
    for part, since in sinces.items():
        shares[part] = float(one.step_ms[left & (one.steps >= since)].sum()) / total_ms
        left &= one.steps < since
    return {**shares, "training": float(one.step_ms[left].sum()) / total_ms}


def _covered(measured: Measured, rows: slice, verdicts: Iterable[Verdict]) -> NDArray[np.bool_]:
    """Where a verdict says what a rank took longer for, bool (rows, R)."""
    steps = measured.steps[rows]
    found = np.zeros((steps.size, measured.ranks.size), np.bool_)
    for verdict in verdicts:
        for since, until in intervals_of(verdict):
            # Others may wait for the rank at the step after it only.
            last = math.inf if until is None else until + 1
            ranks = np.isin(measured.ranks, verdict.ranks or (verdict.rank,))
            found[np.ix_((steps >= since) & (steps <= last), ranks)] = True
    return found


def _waiting(
    one: AttemptTimes,
    measured: Measured,
    slow: Sequence[Verdict],
    stopped: Sequence[Verdict],
    wall_s: float,
) -> Iterator[Row]:
    """The waiting for ranks without a verdict: at each step for the rank with the largest excess.

    What verdicts have of the ranks' waiting is subtracted before. The steps between two that were measured
    are taken to have the same share as the first of these.
    """
    if not measured.steps.size or measured.ranks.size < 2:
        return
    lost_ms = np.zeros(measured.ranks.size)
    before, left_ms = 0, 0.0  # the rank that was the last one, and what was not waited for yet
    # The first steps have a part of their own.
    begun = int(np.searchsorted(measured.steps, one.steps[_first_steps(one.steps.size)]))
    weights = _weights(one, measured.steps)
    # While a rank hangs, the others wait for it, as its verdict says.
    hung = [replace(each, until_step=each.since_step) for each in stopped]
    for rows in _blocks(begun, measured.steps.size, measured.ranks.size):
        excess, waited = _excess(measured, rows), np.nan_to_num(measured.wait_ms[rows])
        is_slow = _covered(measured, rows, slow)
        charged = np.minimum(np.where(is_slow, excess, 0.0), np.nan_to_num(median_of_others(waited)))
        waited = np.maximum(waited - charged.sum(axis=1, keepdims=True), 0.0)
        excess[is_slow | _covered(measured, rows, hung)] = 0.0
        whole_ms = np.nanmax(measured.own_ms[rows] + measured.apart_ms[rows] + measured.wait_ms[rows], axis=1)
        others_wait = np.nan_to_num(median_of_others(waited))
        has_waited = (np.nan_to_num(measured.wait_ms[rows]) > 0.0).max(axis=1)
        longest = excess.argmax(axis=1)
        for row, (last, step_ms) in enumerate(zip(longest.tolist(), whole_ms.tolist(), strict=True)):
            weight = weights[rows.start + row] if step_ms > 0.0 else 0.0
            late_ms = 0.0
            if left_ms and last != before:
                late_ms = min(left_ms, float(others_wait[row, before]))
                lost_ms[before] += late_ms * (1.0 + weight / max(step_ms, 1e-9))
            of_step = float(excess[row, last])
            found_ms = of_step + (left_ms if last == before else 0.0)
            found_ms = min(found_ms, max(0.0, float(others_wait[row, last]) - late_ms))
            lost_ms[last] += found_ms * (1.0 + weight / max(step_ms, 1e-9))
            behind_ms = max(0.0, of_step + (left_ms if last == before else 0.0) - found_ms)
            # Where no rank waits, as in gradient accumulation, it falls back further.
            left_ms = min(of_step, behind_ms) if has_waited[row] else behind_ms
            before = last
    # Ranks that are the last now and then share a row.
    is_named = lost_ms >= 1e3 * max(LEAST_S, LEAST_SHARE * wall_s)
    for place in np.flatnonzero(is_named).tolist():
        yield ("waiting", int(measured.ranks[place]), None), 1e-3 * float(lost_ms[place])
    yield ("waiting", None, None), 1e-3 * float(lost_ms[~is_named].sum())


def _weights(one: AttemptTimes, measured: Ints) -> Floats:
    """For how many milliseconds of other steps each measured step stands."""
    owner = np.clip(np.searchsorted(measured, one.steps, side="right") - 1, 0, measured.size - 1)
    is_other = measured[owner] != one.steps
    weights = np.bincount(owner[is_other], one.step_ms[is_other], minlength=measured.size)
    return weights.astype(np.float64)


def _blocks(begun: int, ended: int, ranks: int) -> Iterator[slice]:
    size = max(1, BLOCK // ranks)
    return (slice(start, min(start + size, ended)) for start in range(begun, ended, size))


def _excess(measured: Measured, rows: slice) -> Floats:
    """The excess of each rank over the ranks that do the same work, in milliseconds (rows, R)."""
    found = np.zeros(measured.own_ms[rows].shape)
    for number in np.unique(measured.work):
        peers = measured.work == number
        found[:, peers] = excess_of_all(measured.own_ms[rows][:, peers])
    return found


def _saved_share(measured: Measured, verdict: Verdict) -> float:
    """The share of a slow rank's excess after which the next rank is not the last one in its place."""
    excess_ms = saved_ms = 0.0
    mine = measured.ranks == verdict.rank
    if not mine.any():
        return 1.0
    for rows in _blocks(0, measured.steps.size, measured.ranks.size):
        is_slow = _covered(measured, rows, [verdict])[:, mine][:, 0]
        excess = _excess(measured, rows)[is_slow][:, mine][:, 0]
        own = measured.own_ms[rows][is_slow] + measured.apart_ms[rows][is_slow]
        others = np.nan_to_num(own[:, ~mine]).max(axis=1, initial=0.0)
        ahead = np.maximum(np.nan_to_num(own[:, mine][:, 0]) - others, 0.0)
        excess_ms += float(excess.sum())
        saved_ms += float(np.minimum(excess, ahead).sum())
    return saved_ms / excess_ms if excess_ms else 1.0


def text_of(name: str, found: Bill) -> str:
    """The bill in lines: each part with its seconds and its share of the wall time."""
    head = f"{name}: {seconds(found.wall_s)}"
    if found.goodput is not None:
        head += f", {found.goodput:.0%} of it kept training"
    rows = [(_words(one), seconds(one.seconds), f"{one.seconds / found.wall_s:.0%}") for one in found.parts]
    sizes = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    lines = [f"  {words:<{sizes[0]}}  {took:>{sizes[1]}}  {share:>{sizes[2]}}" for words, took, share in rows]
    for (rank, cause), saved_s in found.saved.items():
        if saved_s >= max(LEAST_S, LEAST_SHARE * found.wall_s):
            lines.append(f"Without rank {rank}'s {cause} the run takes {seconds(saved_s)} less.")
    if found.measured is not None and (share := f"{found.measured:.0%}") != "100%":
        lines.append(f"Waiting was measured at {share} of the steps; the others are like them.")
    return "\n".join([head, *lines])


def _words(one: Part) -> str:
    """What a part is called, such as: waiting for rank 3: data."""
    words = PARTS[one.part]
    if one.part in ("waiting", "hang"):
        words += " the last rank" if one.rank is None else f" rank {one.rank}"
    return words if one.cause in (None, one.part) else f"{words}: {one.cause}"

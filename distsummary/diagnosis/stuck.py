"""hung: which rank holds up the others, from what each rank reports when its step does not end.

A rank whose step is late reports where it is (see `collect/watcher.py`): step, phase, source line, and the
collectives of torch.distributed that it has begun. So does one that a signal ends, or whose connection to
another rank broke. All ranks count the collectives of a group alike, so that the first number under which
they differ says who is missing, or did something else. A rank that reports nothing, although the others wait
for it, cannot: it was stopped, is dead, or native code holds its interpreter lock.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from distsummary.diagnosis.sentence import named_ranks, seconds
from distsummary.diagnosis.source_lines import is_same_line
from distsummary.diagnosis.verdict import AWAITED, FAILED, HANG, LOST, WARNING, Verdict
from distsummary.rundir.consequences import follows_from_another

# A late step is reported after CONFIRM_S: by then each rank has reported where it is. If no one waits for the
# rank, APART_S later, as the others may be about to report that they do. A rank that computes, and ranks none
# of which waits for another one, have at least LONG_S. After a rank has ended, the others have PATIENCE_S to
# report where they are.
CONFIRM_S = 2.0
APART_S = 1.0
LONG_S = 60.0
COMPILE = "compile"  # the phase in which code is compiled
WAITING = "wait"  # the phase in which a rank waits for the gradients of others
# The states of ranks for which others may still wait; those of RAISED ended by an exception, such as
# SystemExit.
ENDED = ("finished", "incomplete", "failed", "lost")
RAISED = ("failed", "interrupted")
ABSENT = "absent"  # the state of a rank that is in a group of the others, and has not begun to record
# The collectives whose sizes are equal on all ranks.
ALIKE = ("all_reduce", "broadcast", "reduce", "allreduce")
START = "start"  # the phase of a rank that has called `ds.init` and has not come to its first step
AFTER_RUN = "after the run"  # the phase of a rank whose process continues although its run is closed
PATIENCE_S = 10.0
# What a rank does by itself may end: another program, a file, a socket, a lock, a pause. It is no error for
# LONG_S, nor is computing for MOVING_S.
MOVING_S = 600.0
STANDS = ("has been at", "was at")  # of a rank that reports where it is
_PHASES = {  # how a phase is said, where its name says little
    "rest": "outside of data, forward, backward and optimizer",
    "outside": "between two loops over steps",
    WAITING: "where it waits for other ranks",
    START: "before its first step",
    AFTER_RUN: "after the end of its run",
}
NAMED = 8  # ranks whose places are given
_BRIEF_S = 0.5  # that a rank is at a line for so short a time is not worth a word
_NEVER = 1 << 62  # the number of no collective
_CAUSES = {"lost": LOST, "failed": FAILED}  # of ranks that have ended, by state


class Collective(NamedTuple):
    """A collective that a rank has begun.

    `number`: counts those of its group. `name`: such as all_reduce. `sizes`: the shapes of its input.
    `is_pending`: whether it has not ended yet.
    """

    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    is_pending: bool = False

    def same_as(self, other: "Collective") -> bool:
        """Whether two ranks that begin these do the same."""
        return self.name == other.name and (self.name not in ALIKE or self.sizes == other.sizes)

    @property
    def elements(self) -> int:
        """How many numbers it takes."""
        return sum(map(math.prod, self.sizes))


class ProcessGroup(NamedTuple):
    """A process group as one rank sees it: its newest collectives by rising number, and its ranks."""

    name: str
    ranks: tuple[int, ...]
    collectives: tuple[Collective, ...] = ()

    @property
    def pending(self) -> Collective | None:
        """The first pending collective."""
        return next((one for one in self.collectives if one.is_pending), None)

    @property
    def newest(self) -> int:
        """The number of the newest collective; 0 before the first."""
        return self.collectives[-1].number if self.collectives else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What is known of a rank; `late_s` is None if it does not report where it is.

    One that reported at this step, and does not any more, has begun the collectives in `groups` nevertheless.

    Attributes:
        step: the one that does not end; of a rank that does not report, its newest.
        phase: of the step, such as forward. late_s: seconds without progress. limit_s: how long its steps,
            or this phase, usually take at most; None: unknown yet.
        is_moving: whether the loop's thread computes or waits for a processor, or its stack changes.
        is_cut_off: whether its newest collective has raised, as another rank is gone.
        went_on_s: seconds since a step that was late ended; None if that was not reported.
        recorder: "on", "off" (its size is 0), or empty without torch.distributed.
        line: the line of the user's code at which it is, such as `train.py:12 in step: y = model(x)`.
        stack: the lines of its stack, the innermost first.
        root: the rank from or to which the collective goes in which it waits; None: all alike, or unknown.
        crash: how native code ended its process, such as Aborted; `line` is then where that was.
        crashed_in: the collective that it had called then, such as all_reduce; empty: none, or unknown.
        ended_s: seconds since it has ended.
        state, error: see `states.RankState`; of a lost rank, the error is the reason.
        process: what the kernel says, such as "stopped by a signal". is_stopped: whether it says that, or
            its host is not reached.
    """

    rank: int
    step: int = 0
    phase: str = ""
    late_s: float | None = None
    limit_s: float | None = None
    is_moving: bool = False
    is_cut_off: bool = False
    went_on_s: float | None = None
    recorder: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    line: str = ""
    stack: tuple[str, ...] = ()
    state: str = "running"
    error: str = ""
    process: str = ""
    is_stopped: bool = False
    root: int | None = None
    crash: str = ""
    crashed_in: str = ""
    ended_s: float = math.inf

    def as_json(self) -> dict[str, Any]:
        """For stuck.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned, after a way through JSON; raises KeyError, TypeError or ValueError."""
        groups = [
            ProcessGroup(
                str(name),
                tuple(map(int, ranks)),
                tuple(
                    Collective(int(number), str(what), tuple(map(tuple, sizes)), bool(is_pending))
                    for number, what, sizes, is_pending in collectives
                ),
            )
            for name, ranks, collectives in stored["groups"]
        ]
        late_s, limit_s, root = stored["late_s"], stored["limit_s"], stored.get("root")
        return cls(
            rank=int(stored["rank"]),
            step=int(stored["step"]),
            phase=str(stored["phase"]),
            late_s=None if late_s is None else float(late_s),
            limit_s=None if limit_s is None else float(limit_s),
            is_moving=bool(stored["is_moving"]),
            is_cut_off=bool(stored["is_cut_off"]),
            recorder=str(stored["recorder"]),
            groups=tuple(groups),
            line=str(stored["line"]),
            stack=tuple(map(str, stored["stack"])),
            root=None if root is None else int(root),
        )

    @property
    def pending(self) -> tuple[ProcessGroup, Collective] | None:
        """The collective for which it waits, if any, and its group."""
        return next(((group, one) for group in self.groups if (one := group.pending) is not None), None)

    @property
    def has_ended(self) -> bool:
        """Whether its training has ended by itself: no other one was gone, and no signal asked for it."""
        is_exit = self.state == "interrupted" and self.error.startswith("SystemExit")
        return (self.state in ENDED or is_exit) and not self.has_lost_another

    @property
    def has_lost_another(self) -> bool:
        """Whether it ended, or is about to end, because another rank was gone."""
        return self.is_cut_off or follows_from_another(self.error)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks."""
        return self.pending is not None or self.phase == WAITING or self.has_lost_another

    def may_end(self, waited_s: float) -> bool:
        """Whether what it does by itself may end, while others have waited so long.

        A rank that reports nothing may be in native code; a process that is stopped continues for no one.
        """
        if self.state != "running" or self.is_stopped or self.is_waiting or self.phase == AFTER_RUN:
            return False
        if self.late_s is None:
            return waited_s < LONG_S
        return self.late_s < (MOVING_S if self.is_moving else LONG_S)

    def is_over_limit(self, *, least_s: float = 0.0, more_s: float = 0.0, is_waited_for: bool = True) -> bool:
        """Whether it has stood still for `more_s` longer than it usually does at most, and for `least_s`.

        `is_waited_for`: ranks wait in a collective, so that a first step of LONG_S is long.
        """
        if self.late_s is None or self.limit_s is None:
            return False
        if self.is_moving:
            least_s = max(least_s, LONG_S)
        # A thread that is blocked in its first step, for which there is no usual length.
        begins = is_waited_for and self.step <= 1 and bool(self.groups)
        begins = begins and not self.is_moving and self.phase != COMPILE
        limit_s = min(self.limit_s, LONG_S) if begins else self.limit_s
        return self.late_s >= max(limit_s + CONFIRM_S + more_s, least_s)


def hung(reports: Sequence[RankReport]) -> list[Verdict]:
    """The ranks for which others wait, or that stand still while others continue; none if all is well.

    While what they do by themselves may end, that is a warning (AWAITED), and no hang.

    Args:
        reports: one for each rank that has registered, by rising rank.
    """
    # The first step may take long: data are prepared, code is compiled.
    begins = all(one.step <= 1 and (one.late_s or 0.0) < MOVING_S for one in reports)
    return [_no_error(one) if begins and one.cause == HANG else one for one in _stuck(reports)]


def _no_error(verdict: Verdict) -> Verdict:
    return replace(verdict, cause=AWAITED, level=WARNING)


def _stuck(reports: Sequence[RankReport]) -> list[Verdict]:
    """What `hung` says, whichever step it is."""
    # What a rank that has ended reported at an earlier step is no longer where it was.
    left = [one.step for one in reports if one.is_waiting and not one.has_ended and _has_stopped(one)]
    if left:
        reports = [
            replace(one, late_s=None, groups=())
            if one.has_ended and one.step < max(left) and one.phase != AFTER_RUN
            else one
            for one in reports
        ]
    waiting = [one for one in reports if one.is_waiting and _has_stopped(one) and one.phase != AFTER_RUN]
    if not waiting:
        return _still(reports)
    if not any(one.is_over_limit() or one.has_lost_another for one in reports):
        return []
    # A rank that a signal ends, or that waits itself, says more than those it took with it: wait for it.
    if any(map(_may_report, reports)) and any(one.ended_s < PATIENCE_S for one in reports):
        return []
    return _differing(reports, waiting) or _missing(reports, waiting)


def _may_report(report: RankReport) -> bool:
    """Whether it runs and has not reported where it is."""
    return report.state == "running" and not report.is_stopped and not report.groups


def _has_stopped(report: RankReport) -> bool:
    """Whether it makes no progress, though perhaps not for long."""
    return report.late_s is not None or report.has_lost_another


class _Side(NamedTuple):
    """Ranks that began the same collective under a number: this one, as the first of them did."""

    first: RankReport
    begun: Collective
    ranks: list[int]  # those without reports of their own come last


def _differing(reports: Sequence[RankReport], waiting: Sequence[RankReport]) -> list[Verdict]:
    """The ranks that began another collective than most, under the first number at which they differ."""
    by_rank = {one.rank: one for one in reports}
    for name, ranks in _groups(waiting):
        begun: dict[int, dict[int, Collective]] = defaultdict(dict)  # number -> rank -> collective
        for one in reports:
            # What a rank begins after the end of its loop is not what the loops of the others begin.
            group = None if one.phase == AFTER_RUN else _in_group(one, name, ranks)
            for collective in () if group is None else group.collectives:
                begun[collective.number][one.rank] = collective
        for number in sorted(begun):
            sides: list[_Side] = []
            for rank, collective in begun[number].items():
                report = by_rank[rank]
                same = next((side for side in sides if _do_the_same(side, report, collective)), None)
                if same is None:
                    sides.append(_Side(report, collective, [rank]))
                else:
                    same.ranks.append(rank)
            # The first difference decides: those under later numbers follow from it.
            if len(sides) > 1:
                silent = [by_rank[rank] for rank in ranks if rank in by_rank and rank not in begun[number]]
                return _odd_sides(reports, sides, silent, f"collective {number} of group {name}")
    return []


def _do_the_same(side: _Side, report: RankReport, begun: Collective) -> bool:
    if not side.begun.same_as(begun):
        return False
    roots = {
        one.root
        for one, collective in ((side.first, side.begun), (report, begun))
        if collective.is_pending and one.root is not None
    }
    return len(roots) < 2


def _odd_sides(
    reports: Sequence[RankReport], sides: list[_Side], silent: Sequence[RankReport], where: str
) -> list[Verdict]:
    """The verdict on the ranks that are not of the largest side.

    If none is the largest, it is on the side that is a step ahead, which has skipped a collective; of two
    ranks, and if no side is ahead, on all.

    `silent`: ranks of the group that have not reported what they began. One that crashed began what the ranks
    did that are at the same line; if these differ, or its line is unknown, it is of the side with the least
    data, as gloo ends a rank that receives more than it expects.
    """
    for one in silent:
        there = [side for side in sides if is_same_line(side.first.line, one.line)]
        if not there and one.crash and not one.line:
            there = sides
        if there:
            min(there, key=lambda side: side.begun.elements).ranks.append(one.rank)
    by_rank = {one.rank: one for one in reports}
    # Only ranks that reported what they began count here: the steps of silent ones may be old.
    steps = [[by_rank[rank].step for rank in side.ranks if by_rank[rank].groups] for side in sides]
    ahead = max(range(len(sides)), key=lambda place: min(steps[place]))
    is_ahead = all(max(steps[place]) < min(steps[ahead]) for place in range(len(sides)) if place != ahead)
    sides = [sides[ahead], *(side for place, side in enumerate(sides) if place != ahead)]
    usual = max(sides, key=lambda side: len(side.ranks))
    has_majority = all(len(side.ranks) < len(usual.ranks) for side in sides if side is not usual)
    # Without a majority, the side that is ahead is the odd one, which is why it was put first.
    if not has_majority:
        usual = max(sides[1:], key=lambda side: len(side.ranks))
    odd = [side for side in sides if side is not usual]
    first = odd[0]
    # Of two ranks, or if no side is ahead, any may be wrong.
    names_all = not has_majority and (len(by_rank) == 2 or not is_ahead)
    ranks = sorted(by_rank) if names_all else [rank for side in odd for rank in side.ranks]
    who = "it" if len(ranks) == 1 else named_ranks(first.ranks)
    text = f"{who} began {_what(first.begun)}{_root(first)} as {where}, where " + ", ".join(
        f"{named_ranks(side.ranks)} began {_what(side.begun)}{_root(side)}" for side in [usual, *odd[1:]]
    )
    if usual.first.line and not is_same_line(usual.first.line, first.first.line):
        text += f" at {usual.first.line}"
    if is_ahead and first is sides[0]:
        has = "it has" if len(first.ranks) == 1 else "they have"
        text += f"; at step {min(steps[ahead]):,} already, {has} skipped one, or the others made one more"
    elif not has_majority:
        text += "; there is no majority"
    if crashed := [one for one in silent if one.crash]:
        text += f"; {named_ranks(one.rank for one in crashed)} crashed because of that ({crashed[0].crash})"
    text += f"; {'it' if len(ranks) == 1 else f'rank {first.first.rank}'} {_place(first.first)}"
    return [_verdict(first.first, reports, text, ranks=ranks, since=min(map(min, steps)))]


def _root(side: _Side) -> str:
    return _root_of(side.first) if side.begun.is_pending else ""


def _root_of(report: RankReport) -> str:
    return "" if report.root is None else f" (root: rank {report.root})"


def _missing(reports: Sequence[RankReport], waiting: Sequence[RankReport]) -> list[Verdict]:
    """The ranks without which a collective cannot end, for which others wait."""
    by_rank = {one.rank: one for one in reports}
    awaited: dict[int, str] = {}  # rank -> which collective it has not begun, and which ranks wait there
    inside_of: dict[int, str] = {}  # the same, without the rank
    for name, ranks in _groups(waiting):
        inside = [one for one in waiting if _in_group(one, name, ranks) is not None]
        first = min(inside, key=lambda one: _pending_number(one, name, ranks))
        number = _pending_number(first, name, ranks)
        group = _in_group(first, name, ranks)
        pending = group.pending if group is not None else None
        what = f"{_what(pending)} (collective {number} of group {name})"
        # For each rank of the group that has not begun what the first of the others wait in, note who waits.
        for rank in ranks:
            other = by_rank.setdefault(rank, RankReport(rank=rank, state=ABSENT))
            seen = None if other.phase == AFTER_RUN else _in_group(other, name, ranks)
            if seen is not None and seen.newest >= number:
                continue
            # It waits, too. What for, it reports when it is late by its own measure.
            if other.phase == WAITING and _has_stopped(other) and not other.groups:
                continue
            here = [one for one in inside if pending is None or _pending_number(one, name, ranks) < _NEVER]
            who = [one.rank for one in here if one.rank != rank]
            if who:
                awaited.setdefault(rank, f"has not begun {what}, in which {_waits(who, inside)}")
                inside_of.setdefault(rank, f"{_waits(who, inside)} in {what}")
    # No rank reported which collective it is: then those that do not wait at all are missing.
    if not awaited:
        waits = _waits([one.rank for one in waiting], waiting)
        text = f"is not where {waits}{_no_recorder(waiting)}"
        awaited = {one.rank: text for one in reports if not one.is_waiting}
        inside_of = dict.fromkeys(awaited, waits)
    found = [
        (by_rank[rank], text)
        for rank, text in awaited.items()
        if by_rank[rank].pending is None
        or by_rank[rank].phase == AFTER_RUN
        or not _has_stopped(by_rank[rank])
    ]
    # A lost rank that had reported where it is may have been killed only later: its end is not the reason.
    ended = [
        (one, text) for one, text in found if one.has_ended and (one.state != "lost" or not _has_stopped(one))
    ]
    if ended:
        return _because_of_ends(reports, waiting, ended, inside_of)
    # A rank that a signal interrupted was asked to end.
    if any(one.state == "interrupted" and one.late_s is None for one, _ in found):
        return []
    # Some were cut off a moment ago, and none has ended; the others may be cut off, too.
    if not any(one.is_over_limit() for one in waiting):
        return []
    if not found:
        return _all_wait(reports, waiting, awaited)
    longest_s = max(one.late_s or 0.0 for one in waiting)
    # The others wait for an evaluation, a checkpoint, or a rank that has continued.
    if any(_goes_on(one, longest_s) for one, _ in found):
        return []
    return _on_each(found, reports, waited_s=longest_s)


def _on_each(
    found: Sequence[tuple[RankReport, str]], reports: Sequence[RankReport], *, waited_s: float = math.inf
) -> list[Verdict]:
    """A verdict for each text, on the ranks of which it says something, and where they are.

    `waited_s`: how long others have waited for what these ranks do by themselves; inf: for nothing that ends.
    """
    alike: dict[str, list[RankReport]] = defaultdict(list)
    for one, text in found:
        alike[text].append(one)
    verdicts = []
    for text, ranks in alike.items():
        places = "; ".join(
            f"{'it' if len(ranks) == 1 else f'rank {one.rank}'} {_place(one)}" for one in ranks[:NAMED]
        )
        evidence = f"{_they(text, len(ranks))}; {places}"
        verdict = _verdict(ranks[0], reports, evidence, ranks=[one.rank for one in ranks])
        may_end = waited_s < math.inf and all(one.may_end(waited_s) for one in ranks)
        verdicts.append(_no_error(verdict) if may_end else verdict)
    return verdicts


def _because_of_ends(
    reports: Sequence[RankReport],
    waiting: Sequence[RankReport],
    ended: Sequence[tuple[RankReport, str]],
    inside_of: Mapping[int, str],
) -> list[Verdict]:
    """One verdict on the ranks for which others wait because they have ended, if they are the reason.

    What more than half of the ranks raise is an error of the training; those that still run may raise it too.
    """
    if any(one.state in RAISED for one, _ in ended):
        raised = Counter(one.error for one in reports if one.state in RAISED and one.has_ended)
        if 2 * max(raised.values()) > len(reports):
            return []
        if any(one.state == "running" and not _has_stopped(one) for one in reports):
            return []
    first, text = ended[0]
    alike = [one.rank for one, _ in ended if one.state == first.state]
    others = [one.rank for one, _ in ended if one.state != first.state]
    # All are lost, and no connection broke: something ended all ranks after the first one had become silent.
    together = first.state == "lost" and all(one.state == "lost" for one in waiting)
    if together and not any(one.has_lost_another for one in waiting):
        text = f"{_they(text, len(alike))}; it {_silence(first)}, and all have ended since"
        return [_verdict(first, reports, text, ranks=alike)]
    elsewhere = [one for one, _ in ended if one.crashed_in and not _is_at_line_of(one, waiting)]
    if len(elsewhere) >= len(waiting):
        return _crashed_elsewhere(reports, waiting, elsewhere)
    cause = _CAUSES.get(first.state, HANG)
    why = first.crash or first.error
    if first.line and (first.crash or (first.late_s is not None and first.state == "failed")):
        why += f" at {first.line}"
    if cause == HANG:
        how = f"it has ended its training{f' ({why})' if why else ''} after step {first.step:,}"
        if first.late_s is not None:
            how += f" and {_place(first)}"
        text = f"{how}; {_they(text, 1)}" if len(alike) == 1 else f"{_they(text, len(alike))}; {how}"
    else:
        text = f"{why or first.state}; {inside_of[first.rank]}"
    if others:
        text += f"; {named_ranks(others)} {'has' if len(others) == 1 else 'have'} ended, too"
    return [_verdict(first, reports, text, ranks=alike, cause=cause)]


def _is_at_line_of(report: RankReport, others: Iterable[RankReport]) -> bool:
    return any(is_same_line(report.line, other.line) for other in others)


def _crashed_elsewhere(
    reports: Sequence[RankReport], waiting: Sequence[RankReport], crashed: Sequence[RankReport]
) -> list[Verdict]:
    """The verdict on ranks that wait in another collective than the one in which as many, or more, crashed.

    gloo ends a rank that receives more than it expects: the others have skipped what it called, or it calls
    one more.
    """
    first, theirs = waiting[0], named_ranks(one.rank for one in crashed)
    is_tie = len(waiting) == len(crashed)
    ranks = [one.rank for one in (*waiting, *(crashed if is_tie else ()))]
    who = named_ranks(one.rank for one in waiting) if len(ranks) > 1 else "it"
    text = (
        f"{who} began {_where(first)}{f' at {first.line}' if first.line else ''}, where {theirs} called "
        f"{crashed[0].crashed_in} at {crashed[0].line} and crashed because of that ({crashed[0].crash}): one "
        f"has skipped a collective, or the other made one more{'; there is no majority' if is_tie else ''}"
    )
    return [_verdict(first, reports, text, ranks=ranks)]


def _goes_on(report: RankReport, waited_s: float) -> bool:
    """Whether a rank for which others have waited so long does, or did, something that takes its time."""
    if report.late_s is not None:
        return not report.is_over_limit()
    if report.state != "running":
        return False
    if report.is_moving and waited_s < LONG_S:
        return True
    return report.went_on_s is not None and report.went_on_s < waited_s


def _all_wait(
    reports: Sequence[RankReport],
    waiting: Sequence[RankReport],
    awaited: Mapping[int, str],
) -> list[Verdict]:
    """All that report wait: for each other in a circle, or for the network."""
    # One that has hardly come to where it waits makes steps, such as while the others are in `DDP.join`.
    if any(one.late_s is not None and one.late_s < CONFIRM_S + APART_S for one in waiting):
        return []
    by_rank = {one.rank: one for one in reports}
    # Each waits in another collective than the one that it has not begun.
    if awaited:
        circle = [by_rank[rank] for rank in awaited if by_rank[rank].pending is not None]
        if not circle:
            return []
        texts = {one.rank: f"{awaited[one.rank]}, and waits in {_where(one)}" for one in circle}
        # A minority has left a collective out, as by an early return, and waits in the next one.
        if fewer := _minority(circle):
            return _on_each([(one, texts[one.rank]) for one in fewer], reports)
        text = "; ".join(f"rank {rank} {one}" for rank, one in texts.items())
        return [_verdict(circle[0], reports, text, ranks=[one.rank for one in circle])]
    first = waiting[0]
    # The connection broke, and the reason is not known.
    if first.has_lost_another:
        return []
    if behind := _behind(waiting):
        others = [one.rank for one in waiting if one not in behind]
        text = f"is in {_where(behind[0])}{_root_of(behind[0])}, which {named_ranks(others)} ended"
        return _on_each([(one, text) for one in behind], reports)
    all_s = min(one.late_s or 0.0 for one in waiting)
    if any(one.late_s is None for one in reports):
        # The rank that has not reported has begun the collective all the same.
        text = f"has begun {_where(first)}, in which {_waits([one.rank for one in waiting], waiting)}"
        return _on_each([(one, text) for one in reports if one.is_stopped], reports)
    elif not any(one.groups for one in waiting) and (odd := _elsewhere(reports, waiting)):
        return odd
    else:
        why = "all have begun it: look at the network, or at the backend of torch.distributed"
    text = f"they have waited {seconds(all_s)} in {_where(first)}{_no_recorder(waiting)}; {why}"
    return [_verdict(first, reports, text, ranks=[one.rank for one in waiting])]


def _minority(circle: Sequence[RankReport]) -> list[RankReport]:
    """The ranks that wait elsewhere than more than half of them; empty if no collective has so many."""
    sides: dict[tuple[str, tuple[int, ...], int], list[RankReport]] = defaultdict(list)
    for one in circle:
        if one.pending is not None:
            group, begun = one.pending
            sides[group.name, group.ranks, begun.number].append(one)
    most = max(sides.values(), key=len)
    return [one for one in circle if one not in most] if 2 * len(most) > len(circle) else []


def _behind(waiting: Sequence[RankReport]) -> list[RankReport]:
    """The ranks that wait in a collective which others have ended that wait in a later one of the group."""
    for name, ranks in _groups(waiting):
        inside = [one for one in waiting if _pending_number(one, name, ranks) < _NEVER]
        numbers = [_pending_number(one, name, ranks) for one in inside]
        if min(numbers) < max(numbers):
            return [one for one, number in zip(inside, numbers, strict=True) if number == min(numbers)]
    return []


def _still(reports: Sequence[RankReport]) -> list[Verdict]:
    """No rank waits for a collective: some stand still while others continue, or all do."""
    running = [one for one in reports if one.state == "running"]
    late = [one for one in running if one.is_over_limit(is_waited_for=False)]
    if not late:
        return []
    # If no rank makes progress, all may do the same long work: ranks at another line than most are named at
    # once, otherwise all have LONG_S.
    if len(late) == len(running):
        if odd := _elsewhere(reports, late):
            return odd
        late = [one for one in late if one.is_over_limit(least_s=LONG_S, is_waited_for=False)]
        text = "has made no progress" + (", and no other rank has" if len(reports) > 1 else "")
    else:
        late = [one for one in late if one.is_over_limit(more_s=APART_S, is_waited_for=False)]
        text = "has made no progress, while other ranks have"
    return _on_each([(one, text + _no_recorder(late)) for one in late], reports, waited_s=0.0)


def _elsewhere(reports: Sequence[RankReport], late: Sequence[RankReport]) -> list[Verdict]:
    """The ranks that are at another line than most of them."""
    [(usual, count)] = Counter(one.line for one in late).most_common(1)
    odd = [one for one in late if one.line != usual]
    if count <= len(odd):
        return []
    there = named_ranks(one.rank for one in late if one.line == usual)
    text = f"is not where {there} wait ({usual}){_no_recorder(late)}"
    return _on_each([(one, text) for one in odd], reports, waited_s=0.0)


def _groups(reports: Iterable[RankReport]) -> list[tuple[str, tuple[int, ...]]]:
    """The process groups in which some of the ranks wait, as their names and ranks."""
    found = {
        (group.name, group.ranks): None
        for one in reports
        for group in one.groups
        if group.pending is not None
    }
    return list(found)


def _in_group(report: RankReport, name: str, ranks: tuple[int, ...]) -> ProcessGroup | None:
    return next((group for group in report.groups if (group.name, group.ranks) == (name, ranks)), None)


def _pending_number(report: RankReport, name: str, ranks: tuple[int, ...]) -> int:
    group = _in_group(report, name, ranks)
    pending = group.pending if group is not None else None
    return _NEVER if pending is None else pending.number


def _what(collective: Collective | None) -> str:
    if collective is None:
        return "a collective"
    sizes = ", ".join("x".join(f"{size:,}" for size in shape) or "1" for shape in collective.sizes[:3])
    elements = "element" if sizes == "1" else "elements"
    return f"{collective.name} of {sizes} {elements}" if sizes else collective.name


def _where(report: RankReport) -> str:
    """What a waiting rank waits for."""
    pending = report.pending
    if pending is None:
        return report.line or f"phase {report.phase}"
    group, collective = pending
    return f"{_what(collective)} (collective {collective.number} of group {group.name})"


def _waits(ranks: Collection[int], waiting: Sequence[RankReport]) -> str:
    waited_s = max((one.late_s or 0.0 for one in waiting), default=0.0)
    if all(one.has_lost_another for one in waiting):
        return f"{named_ranks(ranks)} waited until the connection broke"
    return f"{named_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} waited {seconds(waited_s)}"


def _they(text: str, count: int) -> str:
    """A text that begins with "has" or "is", with its subject: one rank, or several."""
    if count == 1:
        return f"it {text}"
    verb, _, rest = text.partition(" ")
    return f"they { {'has': 'have', 'is': 'are'}[verb] } {rest}"


def _silence(report: RankReport) -> str:
    """What is known of a rank that reports nothing."""
    if report.state == ABSENT:
        return "has recorded nothing: it has not come to its first step, or it makes no run"
    process = report.process or (
        "its process was stopped, is dead, or native code in it holds the interpreter lock"
    )
    if report.state != "running":
        process = ""
    last = f"; its last report was from {report.line}" if report.line and not report.crash else ""
    return f"reports nothing{f': {process}' if process else ''}{last}"


def _place(report: RankReport) -> str:
    if report.late_s is None:
        return _silence(report)
    where = report.line or "an unknown line"
    phase = f", {_PHASES.get(report.phase, f'in {report.phase}')}" if report.phase else ""
    # After the run a rank reports once, so that its time does not grow.
    if report.late_s < _BRIEF_S or report.phase == AFTER_RUN:
        return f"{STANDS[1]} {where}{phase}"
    return f"{STANDS[0]} {where} for {seconds(report.late_s)}{phase}"


def _no_recorder(reports: Iterable[RankReport]) -> str:
    if any(one.recorder == "off" for one in reports):
        return " (torch's flight recorder is off, TORCH_FR_BUFFER_SIZE=0: which collective is unknown)"
    return ""


def says_where(verdict: Verdict) -> bool:
    """Whether a verdict has where its rank was, as the rank itself reported."""
    return any(words in verdict.evidence for words in STANDS)


def _verdict(
    report: RankReport,
    reports: Iterable[RankReport],
    evidence: str,
    *,
    ranks: Sequence[int] = (),
    cause: str = HANG,
    since: int | None = None,
) -> Verdict:
    """`since`: the first step; None: that of the rank or, if it does not report, of the others."""
    present = [one for one in reports if one.late_s is not None and one.phase != AFTER_RUN]
    step = max((one.step for one in present), default=report.step + 1)
    is_there = report.late_s is not None and report.phase != AFTER_RUN
    since = (report.step if is_there else step) if since is None else since
    return Verdict(
        rank=report.rank,
        cause=cause,
        since_step=since,
        until_step=None,
        evidence=evidence,
        reported_step=max(step, since),
        lost_s=max((one.late_s or 0.0 for one in present), default=0.0),
        ranks=tuple(sorted(ranks)) if len(ranks) > 1 else (),
    )

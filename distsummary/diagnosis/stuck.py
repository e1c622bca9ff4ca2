"""hung: which rank holds up the others, from what each rank tells when its step does not end.

A rank whose step is late tells where it stands (see `collect/watcher.py`): step, phase, source line, and the
collectives of torch.distributed that it has begun. All ranks count the collectives of a group alike, so that
the number for which some wait and another one lacks says who is missing. A rank that tells nothing, although
the others wait for it, cannot: it was stopped, is dead, or native code holds its interpreter lock.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from distsummary.consequences import follows_from_another
from distsummary.diagnosis.verdict import HANG, Verdict

CONFIRM_S = 2.0  # a step that is late is told after so long: each rank has told where it stands by then
APART_S = 1.0  # and so much later if nobody waits for it: the others may be about to tell that they do
LONG_S = 60.0  # the least limit for a rank that computes, and for ranks none of which waits for another one
WAITING = "wait"  # the phase in which a rank waits for the gradients of others
ENDED = ("finished", "incomplete", "failed", "lost")  # states of ranks for which others may still wait
RAISED = ("failed", "interrupted")  # of those that have ended: by an exception, such as SystemExit
ALIKE = ("all_reduce", "broadcast", "reduce", "allreduce")  # collectives whose sizes are equal on all ranks
NAMED = 8  # ranks in a sentence
STOOD = "it has stood for"  # of a rank that tells where it is
_PHASES = {  # how a phase is said, where its name says little
    "rest": "outside of data, forward, backward and optimizer",
    "outside": "between two loops over steps",
    WAITING: "after its last gradient, before the optimizer",
}


class Collective(NamedTuple):
    """A collective that a rank has begun.

    `number`: counts those of its group. `name`: such as all_reduce. `sizes`: the shapes of its input.
    `is_pending`: whether it goes on.
    """

    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    is_pending: bool = False

    def same_as(self, other: "Collective") -> bool:
        """Whether two ranks that begin these do the same."""
        return self.name == other.name and (self.name not in ALIKE or self.sizes == other.sizes)


class Group(NamedTuple):
    """A process group as one rank sees it: its newest collectives by rising number, and its ranks."""

    name: str
    ranks: tuple[int, ...]
    collectives: tuple[Collective, ...] = ()

    @property
    def pending(self) -> Collective | None:
        """The first collective that goes on."""
        return next((one for one in self.collectives if one.is_pending), None)

    @property
    def newest(self) -> int:
        """The number of the newest collective; 0 before the first."""
        return self.collectives[-1].number if self.collectives else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What is known of a rank; `late_s` is None if it does not tell that its step is late.

    One that told so at this step, and does not any more, has begun the collectives in `groups` nevertheless.

    Attributes:
        step: the one that does not end; of a rank that does not tell, its newest.
        phase: of the step, such as forward. late_s: seconds without progress. limit_s: how long its steps,
            or this phase, usually take at most; None: unknown yet.
        is_moving: whether the loop's thread computes or waits for a processor, or its stack changes.
        is_cut_off: whether its newest collective has raised, as another rank is gone.
        went_on_s: seconds since a step that was late ended; None if that was not told.
        recorder: "on", "off" (its size is 0), or empty without torch.distributed.
        line: the line of the user's code at which it stands, such as `train.py:12 in step: y = model(x)`.
        stack: the lines of its stack, the innermost first.
        state, error: see `states.RankState`; of a lost rank, the error is the reason.
        process: what the kernel says, such as "stopped by a signal". is_stopped: whether it says that.
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
    groups: tuple[Group, ...] = ()
    line: str = ""
    stack: tuple[str, ...] = ()
    state: str = "running"
    error: str = ""
    process: str = ""
    is_stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        """For stuck.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned, after a way through JSON; raises KeyError, TypeError or ValueError."""
        groups = [
            Group(
                str(name),
                tuple(map(int, ranks)),
                tuple(
                    Collective(int(number), str(what), tuple(map(tuple, sizes)), bool(is_pending))
                    for number, what, sizes, is_pending in collectives
                ),
            )
            for name, ranks, collectives in stored["groups"]
        ]
        late_s, limit_s = stored["late_s"], stored["limit_s"]
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
        )

    @property
    def pending(self) -> tuple[Group, Collective] | None:
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

    def is_over_limit(self, *, least_s: float = 0.0, more_s: float = 0.0) -> bool:
        """Whether it has stood still for `more_s` longer than it usually does at most, and for `least_s`."""
        if self.late_s is None or self.limit_s is None:
            return False
        if self.is_moving:
            least_s = max(least_s, LONG_S)
        return self.late_s >= max(self.limit_s + CONFIRM_S + more_s, least_s)


def hung(tellings: Sequence[Telling]) -> list[Verdict]:
    """The ranks for which others wait, or that stand still while others go on; none if all is well.

    Args:
        tellings: one for each rank that has registered, by rising rank.
    """
    left = [one.step for one in tellings if one.is_waiting and not one.has_ended and _has_stopped(one)]
    if left:  # what a rank that has ended told at an earlier step is no longer where it was
        tellings = [
            replace(one, late_s=None, groups=()) if one.has_ended and one.step < max(left) else one
            for one in tellings
        ]
    waiting = [one for one in tellings if one.is_waiting and _has_stopped(one)]
    if waiting:
        if not any(one.is_over_limit() or one.has_lost_another for one in tellings):
            return []
        return _out_of_order(tellings, waiting) or _missing(tellings, waiting)
    return _still(tellings)


def _has_stopped(telling: Telling) -> bool:
    """Whether it makes no progress, though perhaps not for long."""
    return telling.late_s is not None or telling.has_lost_another


def _out_of_order(tellings: Sequence[Telling], waiting: Sequence[Telling]) -> list[Verdict]:
    """The ranks that began another collective than most, under the first number at which they differ."""
    for name, ranks in _groups(waiting):
        begun: dict[int, dict[int, Collective]] = defaultdict(dict)  # number -> rank -> collective
        for one in tellings:
            for group in one.groups:
                if (group.name, group.ranks) == (name, ranks):
                    for collective in group.collectives:
                        begun[collective.number][one.rank] = collective
        for number in sorted(begun):
            alike: list[dict[int, Collective]] = []
            for rank, collective in begun[number].items():
                same = next((one for one in alike if next(iter(one.values())).same_as(collective)), None)
                if same is None:
                    alike.append({rank: collective})
                else:
                    same[rank] = collective
            if len(alike) < 2:
                continue
            alike.sort(key=len)
            has_majority = len(alike[-1]) > len(alike[-2])
            by_rank = {one.rank: one for one in tellings}
            others = "; ".join(f"{_named(group)} began {_words(group)}" for group in reversed(alike))
            return [
                _verdict(
                    by_rank[rank],
                    tellings,
                    f"rank {rank} began {_words(group)} as collective {number} of group {name}, where ranks "
                    f"differ: {others}; {_place(by_rank[rank])}",
                )
                for group in (alike[:-1] if has_majority else alike)
                for rank in group
            ]
    return []


def _missing(tellings: Sequence[Telling], waiting: Sequence[Telling]) -> list[Verdict]:
    """The ranks without which a collective cannot end, for which others wait."""
    by_rank = {one.rank: one for one in tellings}
    awaited: dict[int, str] = {}  # rank -> which collective it lacks, and who waits for it
    unknown: set[int] = set()
    for name, ranks in _groups(waiting):
        inside = [one for one in waiting if _in_group(one, name, ranks) is not None]
        first = min(inside, key=lambda one: _pending_number(one, name, ranks))
        number = _pending_number(first, name, ranks)
        group = _in_group(first, name, ranks)
        pending = group.pending if group is not None else None
        what = f"{_what(pending)} (collective {number} of group {name})"
        for rank in ranks:
            other = by_rank.get(rank)
            if other is None:
                unknown.add(rank)
                continue
            seen = _in_group(other, name, ranks)
            if seen is not None and seen.newest >= number:
                continue
            if other.phase == WAITING and _has_stopped(other) and not other.groups:
                continue  # it waits, too; what for, it tells when it is late by its own measure
            who = [one.rank for one in inside if one.rank != rank]
            if who:
                awaited.setdefault(rank, f"lacks {what}, for which {_waits(who, inside)}")
    if not awaited:  # nobody knows which collective it is
        waits = [one.rank for one in waiting]
        text = f"is not where {_waits(waits, waiting)}{_no_recorder(waiting)}"
        awaited = {one.rank: text for one in tellings if not one.is_waiting}
    found = [
        (by_rank[rank], text)
        for rank, text in awaited.items()
        if by_rank[rank].pending is None or not _has_stopped(by_rank[rank])
    ]
    ended = [
        (one, text)
        for one, text in found
        if one.has_ended and (one.state != "lost" or not _has_stopped(one))  # it may have been killed since
    ]
    if ended:
        return _because_of_ends(tellings, waiting, ended)
    if any(one.state == "interrupted" for one, _ in found):
        return []  # the job is asked to end
    if not any(one.is_over_limit() for one in waiting):
        return []  # some were cut off a moment ago, and nobody has ended; the others may be cut off, too
    if not found:
        return _all_wait(tellings, waiting, awaited, unknown)
    longest_s = max(one.late_s or 0.0 for one in waiting)
    if any(_goes_on(one, longest_s) for one, _ in found):
        return []  # the others wait for an evaluation, a checkpoint, or a rank that has gone on
    return [_verdict(one, tellings, _standing(one, text)) for one, text in found]


def _because_of_ends(
    tellings: Sequence[Telling], waiting: Sequence[Telling], ended: Sequence[tuple[Telling, str]]
) -> list[Verdict]:
    """One verdict on the ranks for which others wait because they have ended, if they are the reason.

    What more than half of the ranks raise is an error of the training; those that still run may raise it too.
    """
    if any(one.state in RAISED for one, _ in ended):
        raised = Counter(one.error for one in tellings if one.state in RAISED and one.has_ended)
        if 2 * max(raised.values()) > len(tellings):
            return []
        if any(one.state == "running" and not _has_stopped(one) for one in tellings):
            return []
    first, text = ended[0]
    others = [one.rank for one, _ in ended[1:]]
    also = f"; {_named(others)} {'has' if len(others) == 1 else 'have'} ended, too" if others else ""
    together = first.state == "lost" and all(one.state == "lost" for one in waiting)
    if together and not any(one.has_lost_another for one in waiting):
        said = f"{text}; it told nothing meanwhile, and all of them have ended since"
        return [_verdict(first, tellings, f"rank {first.rank} {said}{also}")]
    return [_verdict(first, tellings, _ended(first, text) + also)]


def _goes_on(telling: Telling, waited_s: float) -> bool:
    """Whether a rank for which others have waited so long does something that takes its time."""
    if telling.state != "running":
        return False
    if telling.late_s is not None:
        return not telling.is_over_limit()
    if telling.is_moving and waited_s < LONG_S:
        return True
    return telling.went_on_s is not None and telling.went_on_s < waited_s


def _all_wait(
    tellings: Sequence[Telling],
    waiting: Sequence[Telling],
    awaited: Mapping[int, str],
    unknown: Collection[int],
) -> list[Verdict]:
    """All that tell wait: for each other in a circle, for ranks that do not record, or for the network."""
    by_rank = {one.rank: one for one in tellings}
    if awaited:  # each lacks a collective, and waits in another one
        circle = [
            _verdict(by_rank[rank], tellings, f"rank {rank} {text}, while it waits itself in {_where(one)}")
            for rank, text in awaited.items()
            if (one := by_rank[rank]).pending is not None
        ]
        return circle
    first = waiting[0]
    if first.has_lost_another:
        return []  # the connection broke, and nobody knows why
    all_s = min(one.late_s or 0.0 for one in waiting)
    if unknown:
        why = f"{_named(sorted(unknown))} of the group, for which they may wait, recorded nothing here"
    elif any(one.late_s is None for one in tellings):  # it has begun the collective, and tells nothing now
        text = f"has begun {_where(first)}, in which {_waits([one.rank for one in waiting], waiting)}"
        return [_verdict(one, tellings, _standing(one, text)) for one in tellings if one.is_stopped]
    elif not any(one.groups for one in waiting) and (odd := _elsewhere(tellings, waiting)):
        return odd
    else:
        why = "no rank lacks it: look at the network, or at the backend of torch.distributed"
    all_ranks = [one.rank for one in waiting]
    text = f"{_named(all_ranks)} have waited {all_s:.1f} s in {_where(first)}{_no_recorder(waiting)}; {why}"
    return [_verdict(first, tellings, text)]


def _still(tellings: Sequence[Telling]) -> list[Verdict]:
    """Nobody waits for a collective: ranks that stand still while others go on, or all of them."""
    running = [one for one in tellings if one.state == "running"]
    late = [one for one in running if one.is_over_limit()]
    if not late:
        return []
    if len(late) == len(running):
        if odd := _elsewhere(tellings, late):
            return odd
        late = [one for one in late if one.is_over_limit(least_s=LONG_S)]
        text = "stands still, as all ranks do"
    else:
        late = [one for one in late if one.is_over_limit(more_s=APART_S)]
        text = "stands still, while others go on"
    return [_verdict(one, tellings, _standing(one, text + _no_recorder(late))) for one in late]


def _elsewhere(tellings: Sequence[Telling], late: Sequence[Telling]) -> list[Verdict]:
    """The ranks that stand at another line than most of them do."""
    [(usual, count)] = Counter(one.line for one in late).most_common(1)
    odd = [one for one in late if one.line != usual]
    if count <= len(odd):
        return []
    text = f"is not where {_named(one.rank for one in late if one.line == usual)} stand ({usual})"
    return [_verdict(one, tellings, _standing(one, text + _no_recorder(late))) for one in odd]


def _groups(tellings: Iterable[Telling]) -> list[tuple[str, tuple[int, ...]]]:
    """The process groups in which some of the ranks wait, as their names and ranks."""
    found = {
        (group.name, group.ranks): None
        for one in tellings
        for group in one.groups
        if group.pending is not None
    }
    return list(found)


def _in_group(telling: Telling, name: str, ranks: tuple[int, ...]) -> Group | None:
    return next((group for group in telling.groups if (group.name, group.ranks) == (name, ranks)), None)


def _pending_number(telling: Telling, name: str, ranks: tuple[int, ...]) -> int:
    group = _in_group(telling, name, ranks)
    pending = group.pending if group is not None else None
    return 1 << 62 if pending is None else pending.number


def _what(collective: Collective | None) -> str:
    if collective is None:
        return "a collective"
    sizes = ", ".join("x".join(f"{size:,}" for size in shape) or "1" for shape in collective.sizes[:3])
    elements = "element" if sizes == "1" else "elements"
    return f"{collective.name} of {sizes} {elements}" if sizes else collective.name


def _words(group: Mapping[int, Collective]) -> str:
    return _what(next(iter(group.values())))


def _where(telling: Telling) -> str:
    """What a waiting rank waits for."""
    pending = telling.pending
    if pending is None:
        return telling.line or f"phase {telling.phase}"
    group, collective = pending
    return f"{_what(collective)} (collective {collective.number} of group {group.name})"


def _waits(ranks: Collection[int], waiting: Sequence[Telling]) -> str:
    waited_s = max((one.late_s or 0.0 for one in waiting), default=0.0)
    if all(one.has_lost_another for one in waiting):
        return f"{_named(ranks)} waited until the connection broke"
    return f"{_named(ranks)} {'has' if len(ranks) == 1 else 'have'} waited {waited_s:.1f} s"


def _ended(telling: Telling, text: str) -> str:
    why = f": {telling.error}" if telling.error else ""
    return f"rank {telling.rank} {text}; it has ended ({telling.state}{why})"


def _standing(telling: Telling, text: str) -> str:
    """What is known of a rank that stands still."""
    said = f"rank {telling.rank} {text}; "
    if telling.late_s is None:
        process = telling.process or (
            "its process was stopped, is dead, or native code in it holds the interpreter lock"
        )
        last = f"; when it told last, it stood at {telling.line}" if telling.line else ""
        return f"{said}it tells nothing: {process}{last}"
    return f"{said}{_place(telling)}"


def _place(telling: Telling) -> str:
    where = telling.line or "an unknown line"
    phase = f", {_PHASES.get(telling.phase, f'in phase {telling.phase}')}" if telling.phase else ""
    return f"{STOOD} {telling.late_s or 0.0:.1f} s at {where}{phase}"


def _no_recorder(tellings: Iterable[Telling]) -> str:
    if any(one.recorder == "off" for one in tellings):
        return " (torch's flight recorder is off, TORCH_FR_BUFFER_SIZE=0: which collective is unknown)"
    return ""


def _verdict(telling: Telling, tellings: Iterable[Telling], evidence: str) -> Verdict:
    step = max((one.step for one in tellings if one.late_s is not None), default=telling.step + 1)
    since = telling.step if telling.late_s is not None else step
    return Verdict(
        rank=telling.rank,
        cause=HANG,
        since_step=since,
        until_step=None,
        evidence=evidence,
        first_told_step=max(step, since),
    )


def _named(ranks: Iterable[int]) -> str:
    """Such as: ranks 0, 1, 3."""
    listed = [*ranks]
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed[:NAMED]))}{more}"

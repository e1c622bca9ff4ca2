"""Drift: finds the rank whose copy of a parameter is no longer equal to those of its replicas."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.check_tags import PARTS, axes_of, group_of, located
from distsummary.diagnosis.verdict import DRIFT, ERROR, INFO, WARNING, Verdict
from distsummary.format.own_tags import BITS_TAGS, WAIT_MS
from distsummary.rundir.rank_facts import RankFacts
from distsummary.rundir.topology import DATA_AXES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Sums = tuple[int, ...]

SILENT = 128  # steps: a rank that has reported nothing at all for so long is not waited for
# Ranks that average their parameters now and then (local SGD) all differ in between, and stages of a pipeline
# always do. So where no two ranks agree, that is an error only after PATIENCE steps, and APART times the
# longest time after which they were equal again. Of ranks that never were, after an update, it is none.
PATIENCE, APART = 64, 2
# But ranks that exchange anything wait for each other at times. Those that never did, at so many measured
# steps, train alone, as where the model was not wrapped.
ALONE = 512
NAMED = 8  # ranks that are named at a step

# a group of parameters, the digest of their names and shapes, and the place of the ranks that hold them
_Peers = tuple[str, int | None, tuple[tuple[str, int], ...]]


class Drift:
    """Compares the bit sums of the parameters that ranks have copies of, step by step.

    Parameters of other names or shapes, as of the stages of a pipeline, are no copies. Of three or more
    copies, the majority is right. Of two, or if there is no majority, all are named. It is an error only of
    ranks that agreed with others after an update, or if a single one of several parameters differs.

    Args:
        coordinates: of a rank: its coordinate on each axis of the mesh; empty if there is none. Only ranks
            that differ in nothing but data axes along which the parameters are not split are compared.
        facts: those of a rank, None as long as it has not reported them.
    """

    def __init__(
        self,
        coordinates: Callable[[int], Mapping[str, int]],
        facts: Callable[[int], RankFacts | None],
    ) -> None:
        self._coordinates, self._facts = coordinates, facts
        self._replicas: defaultdict[_Peers, _Replicas] = defaultdict(_Replicas)
        self._last_seen = _LastSeen()
        self._is_aligned = False
        self._first: int | None = None  # the first step
        self._have_waited = False  # ranks for each other, after that
        self._unwaited = 0  # as long as they have not: at how many steps that was measured

    def add(
        self,
        tags: Sequence[str],
        which: Ints,
        ranks: Ints,
        steps: Ints,
        values: Floats,
        *,
        aligned: int = 0,
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
            aligned: the first step that ranks count in other ways, see `SameSteps`; 0: none. From then on,
                ranks must be equal at one step before a difference is an error.
        """
        self._last_seen.add(ranks, steps)
        self._note_waits(tags, which, steps, values)
        is_mine = np.array([tag.startswith(BITS_TAGS) for tag in tags], np.bool_)
        if not is_mine.any():
            return []
        reported: dict[int, dict[_Peers, dict[int, list[int]]]] = {}
        places: dict[tuple[int, str], _Peers] = {}
        rows = np.flatnonzero(is_mine[which])
        for number, rank, step, value in zip(
            which[rows].tolist(),
            ranks[rows].tolist(),
            steps[rows].tolist(),
            values[rows].tolist(),
            strict=True,
        ):
            group, part = group_of(tags[number])
            peers = places.get((rank, group))
            if peers is None:
                peers = places[rank, group] = self._peers(rank, group)
            # A copy has PARTS sums; it is compared only when none of them is still -1.
            sums = reported.setdefault(step, {}).setdefault(peers, {}).setdefault(rank, [-1] * PARTS)
            sums[part] = int(value)
        found: list[Verdict] = []
        for step in sorted(reported):
            if 0 < aligned <= step and not self._is_aligned:
                self._is_aligned = True
                for one in self._replicas.values():
                    one.alike.clear()
            for peers, by_rank in reported[step].items():
                whole = {rank: tuple(sums) for rank, sums in by_rank.items() if -1 not in sums}
                found += self._compare(step, peers, dict(sorted(whole.items())))
        return found

    def _note_waits(self, tags: Sequence[str], which: Ints, steps: Ints, values: Floats) -> None:
        """Note whether ranks wait for each other; at the first step they may, to begin together."""
        if self._have_waited or not len(steps):
            return
        self._first = int(steps.min()) if self._first is None else self._first
        if WAIT_MS in tags:
            is_wait = (which == tags.index(WAIT_MS)) & (steps > self._first)
            self._have_waited = bool(np.any(values[is_wait]))
            self._unwaited = 0 if self._have_waited else self._unwaited + len(np.unique(steps[is_wait]))

    def _peers(self, rank: int, group: str) -> _Peers:
        """What the ranks that hold copies of a group of parameters have in common."""
        split, facts = axes_of(group), self._facts(rank)
        axes = self._coordinates(rank).items()
        place = tuple(sorted(one for one in axes if one[0] in split or one[0] not in DATA_AXES))
        return group, None if facts is None else facts.layouts.get(group), place

    def _compare(self, step: int, peers: _Peers, reported: Mapping[int, Sums]) -> list[Verdict]:
        replicas = self._replicas[peers]
        replicas.seen.update(reported)
        if len(reported) < 2:
            return []
        # Two copies that differ do not show which one is right. A third one may be late, and decide it.
        if len(reported) == 2 and any(
            step - self._last_seen.before(rank, step) < SILENT for rank in replicas.seen.difference(reported)
        ):
            return []
        vote = _voted(reported)
        replicas.note(step, reported, vote)
        # A verdict ends when none of the ranks that it names differs any more.
        over = {
            id(verdict): replace(verdict, until_step=replicas.last)
            for rank, verdict in sorted(replicas.open.items())
            if rank in reported and not set(verdict.ranks or (verdict.rank,)).intersection(vote.others)
        }
        replicas.open = {rank: one for rank, one in replicas.open.items() if id(one) not in over}
        replicas.last = step if vote.others else replicas.last
        return [*over.values(), *self._differing(step, peers, vote)]

    def settle(self) -> list[Verdict]:
        """What is found of the newest comparisons if no others follow."""
        return [
            found
            for peers, replicas in self._replicas.items()
            if replicas.apart is not None and replicas.last is not None
            for found in self._differing(replicas.last, peers, _voted(replicas.sums), is_end=True)
        ]

    def _differing(self, step: int, peers: _Peers, vote: "_Vote", *, is_end: bool = False) -> list[Verdict]:
        """The verdicts on ranks that differ at a step and have none yet."""
        replicas = self._replicas[peers]
        new = [rank for rank in vote.others if rank not in replicas.open][:NAMED]
        if not new or replicas.apart is None:
            return []
        is_single = not self._is_aligned and self._is_single(peers[0], vote, replicas.sums)
        apart = step - replicas.apart
        is_decided = is_end or not 0 < self._unwaited < ALONE
        is_long = is_decided and apart >= max(0 if is_end else PATIENCE, APART * replicas.longest)
        changed = []
        # With a majority, each odd rank has its own verdict; without one, a single verdict names all ranks.
        for ranks in [[rank] for rank in new] if vote.has_majority else [new]:
            were_alike = len(replicas.alike.intersection(ranks)) >= min(2, len(ranks))
            is_clear = is_single or (vote.has_majority and were_alike)
            if not is_clear and not is_long:
                continue
            since = step if is_clear else replicas.apart
            are_alone = self._unwaited >= ALONE
            level = ERROR if is_single or were_alike else WARNING if are_alone else INFO
            verdict = Verdict(
                rank=ranks[0],
                cause=DRIFT,
                since_step=since,
                until_step=None,
                evidence=self._evidence(peers, ranks[0], vote, are_alone=level == WARNING),
                reported_step=step,
                ranks=tuple(ranks) if len(ranks) > 1 else (),
                level=level,
            )
            replicas.open |= dict.fromkeys(ranks, verdict)
            changed.append(verdict)
        return changed

    def _is_single(self, group: str, vote: "_Vote", sums: Mapping[int, Sums]) -> bool:
        """Whether one of several parameters differs, and no other: no average of them comes to that."""
        facts = self._facts(vote.model)
        is_one = located(sums[vote.model], sums[vote.second]) is not None
        return is_one and facts is not None and len(facts.names_of(group)) > 1

    def _evidence(self, peers: _Peers, rank: int, vote: "_Vote", *, are_alone: bool) -> str:
        group, replicas = peers[0], self._replicas[peers]
        reported = replicas.sums
        other = vote.model if reported[rank] != reported[vote.model] else vote.second
        place = located(reported[rank], reported[other])
        facts = self._facts(rank)
        names = [] if facts is None else facts.names_of(group)
        if place is None:
            what = "more than one parameter differs"
        elif place < len(names):
            what = f"the parameter {names[place]!r} differs"
        else:
            what = f"the parameter number {place + 1} differs"
        if vote.has_majority:
            what += f" from {len(reported) - len(vote.others)} replicas that agree"
        elif len(reported) == 2:
            what += ", and of two copies either may be right"
        else:
            what += f", and no majority of {len(reported)} agrees"
        if are_alone:
            return (
                f"{what}, and no rank has waited for another one at {self._unwaited:,} measured steps: each "
                "trains alone. Wrap the model in DistributedDataParallel, or average its gradients; if ranks "
                "are to train apart, ds.init(checksums=False)"
            )
        if replicas.equal is not None:
            return f"{what}; all were equal at step {replicas.equal:,}"
        return (
            f"{what}, from the first comparison on: is the model wrapped in DDP? Ranks that hold parts of a "
            "model, or mean to train apart, differ so"
        )


class _Vote(NamedTuple):
    """`model`: a rank that most agree with; `second`: one that does not; `others`: those that are named."""

    model: int
    second: int
    others: list[int]
    has_majority: bool


def _voted(reported: Mapping[int, Sums]) -> _Vote:
    counts = Counter(reported.values())
    if len(counts) == 1:
        first = next(iter(reported))
        return _Vote(first, first, [], has_majority=True)
    value, count = counts.most_common(1)[0]
    others = [rank for rank, sums in reported.items() if sums != value]
    model = next(rank for rank, sums in reported.items() if sums == value)
    has_majority = 2 * count > len(reported)
    return _Vote(model, others[0], others if has_majority else [*reported], has_majority=has_majority)


class _Replicas:
    """What is known of ranks that hold copies of the same parameters."""

    __slots__ = ("alike", "apart", "equal", "last", "longest", "open", "seen", "sums")

    def __init__(self) -> None:
        self.seen: set[int] = set()  # the ranks that reported sums
        self.sums: Mapping[int, Sums] = {}  # the newest ones
        self.open: dict[int, Verdict] = {}  # rank -> what was reported of it
        self.equal: int | None = None  # the newest step at which all were equal
        self.last: int | None = None  # the newest one at which they were not
        self.apart: int | None = None  # the first one since they were equal; None: they are
        self.longest = 0  # steps after which they were equal again
        self.alike: set[int] = set()  # the ranks that agreed with others after an update

    def note(self, step: int, sums: Mapping[int, Sums], vote: "_Vote") -> None:
        """Note a comparison."""
        before, self.sums = self.sums, sums
        # Parameters that do not move, as while the learning rate is 0, are equal whoever trains them.
        agree = {
            rank for rank, one in sums.items() if one == sums[vote.model] and before.get(rank, one) != one
        }
        self.alike |= agree if len(agree) > 1 else set()
        if vote.others:
            self.apart = step if self.apart is None else self.apart
            return
        if self.apart is not None:
            self.longest = max(self.longest, step - self.apart)
        self.apart, self.equal = None, step


class _LastSeen:
    """At which steps each rank has reported anything."""

    def __init__(self) -> None:
        self._newest = np.empty(0, np.int64)  # of each rank, before the steps that were added last
        self._ranks = self._steps = np.empty(0, np.int64)  # that were added last
        self._of: dict[int, Ints] = {}  # of some of these ranks: their steps, in rising order

    def add(self, ranks: Ints, steps: Ints) -> None:
        """Add steps that are larger than those before."""
        # What was added last becomes the past. A new rank starts far enough back to count as silent.
        more = int(self._ranks.max(initial=-1)) + 1 - len(self._newest)
        self._newest = np.append(self._newest, np.full(max(0, more), -SILENT))
        np.maximum.at(self._newest, self._ranks, self._steps)
        self._ranks, self._steps, self._of = ranks, steps, {}

    def before(self, rank: int, step: int) -> int:
        """The newest step of a rank up to this one, which is among those that were added last."""
        if rank not in self._of:
            self._of[rank] = np.unique(self._steps[self._ranks == rank])
        steps = self._of[rank]
        place = int(np.searchsorted(steps, step, "right"))
        return int(steps[place - 1] if place else self._newest[rank])

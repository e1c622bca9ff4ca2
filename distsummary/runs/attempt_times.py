"""Reads from the files of a run when each attempt did what, for its bill."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.cost import work_of
from distsummary.events.recorded import Recorded
from distsummary.format.own_tags import DATA_WAIT_MS, OWN_MS, PHASE_TAGS, STEP_MS, WAIT_MS
from distsummary.rundir.deal import CHECKPOINT_MS, EVALUATION_MS, RECORDING_MS, START_MS
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.states import AttemptState, RankState, is_over
from distsummary.runs.cost import SPENT, AttemptTimes, Measured
from distsummary.runs.table import steps_of_all

LOOKED = 16  # ranks among which the one that came farthest is looked for, besides by their heartbeats
CELLS = 1 << 22  # numbers of one tag that are read; of more steps, as many as that are
_SPENT = dict(zip(SPENT, (RECORDING_MS, CHECKPOINT_MS, EVALUATION_MS), strict=True))
_SAVES = tuple(f"{PHASE_TAGS}checkpoint/{kind}" for kind in ("cpu_ms", "blocked_ms"))
_APART = tuple(f"{PHASE_TAGS}{part}/{kind}" for part in SPENT for kind in ("cpu_ms", "blocked_ms"))

Array = NDArray[Any]  # of one of several dtypes


def attempt_times(
    ranks: Mapping[int, Recorded], attempts: Iterable[AttemptState], meshes: Meshes, *, now: float
) -> list[AttemptTimes]:
    """The times of all attempts of a role.

    Args:
        ranks: what each rank recorded. attempts: empty for a run without run.json.
        now: seconds since the epoch, when the states of the attempts were read.
    """
    states = {one.attempt: one for one in attempts}
    lows = {rank: recorded.lows() for rank, recorded in ranks.items()}
    begun: dict[int, list[float]] = defaultdict(list)
    for number, low in chain.from_iterable(one.items() for one in lows.values()):
        begun[number].append(low)
    found = []
    for number in sorted({*states, *begun}):
        # Of all attempts but this one, no step counts.
        only = {other: -np.inf for other in begun} | {number: np.inf}
        there = {rank: recorded for rank, recorded in ranks.items() if number in lows[rank]}
        repeated = min((min(begun[other]) for other in begun if other > number), default=np.inf)
        read = _Attempt(there, number, only)
        found.append(read.times(states.get(number), meshes, now=now, repeated=float(repeated)))
    return found


class _Attempt:
    """Reads one attempt.

    Args:
        ranks: those that recorded something in it. only: makes no step of another attempt count.
    """

    def __init__(self, ranks: Mapping[int, Recorded], number: int, only: Mapping[int, float]) -> None:
        self._ranks, self._number, self._only = ranks, number, only

    def times(
        self, state: AttemptState | None, meshes: Meshes, *, now: float, repeated: float
    ) -> AttemptTimes:
        """See `attempt_times`."""
        steps, step_ms, first, last, steps_s = self._timeline(state.ranks if state else ())
        begun, ended, spent_s = first, last, dict.fromkeys(SPENT, 0.0)
        if state is not None:
            health = [rank.health for rank in state.ranks]
            # The ranks' processes begin together, and the attempt with the first that registers.
            begun = (state.started or first) - 1e-3 * min(
                (_number(one, START_MS) for one in health), default=0.0
            )
            is_running = any(rank.state == "running" for rank in state.ranks) or not state.ranks
            ended = now - (0.0 if is_running else min(rank.last_seen_s for rank in state.ranks))
            # Other ranks wait for the one that evaluates, or saves, longest.
            for part, name in _SPENT.items():
                spent_s[part] = 1e-3 * max((_number(one, name) for one in health), default=0.0)
        # The clock of the rank may be another one than that of the files: only its differences are used.
        room_s = max(0.0, ended - begun - steps_s)
        data_steps, data_ms = self._data(steps)
        is_cut = state is not None and is_over(state) and state.state != "finished"
        return AttemptTimes(
            attempt=self._number,
            begun=begun,
            ended=max(begun, ended),
            is_cut=is_cut,
            first_s=min(max(0.0, first - begun), room_s) if steps.size else 0.0,
            steps_s=steps_s,
            steps=steps,
            step_ms=step_ms,
            data_steps=data_steps,
            data_ms=data_ms,
            measured=self._measured(meshes) if len(self._ranks) > 1 else None,
            spent_s=spent_s,
            repeated=repeated,
            saved=self._saved() if is_cut else np.inf,
        )

    def _saved(self) -> float:
        """The step of the newest checkpoint that a rank reported; infinity without one."""
        found = (
            one.curve(tag, self._only)[0]
            for one in self._ranks.values()
            for tag in _SAVES
            if tag in one.tags()
        )
        return max((float(steps.max()) for steps in found if steps.size), default=np.inf)

    def _timeline(self, states: Sequence[RankState]) -> tuple[Array, Array, float, float, float]:
        """Steps, their milliseconds, when the first began and the last ended, and the seconds between.

        They are those of the rank that came farthest, by its clock. Without a step that was timed: when its
        first and last values were recorded.
        """
        if not self._ranks:
            return np.zeros(0, np.int64), np.zeros(0), 0.0, 0.0, 0.0
        # The steps in all files of 1,000 ranks take seconds to look through.
        reported = sorted(
            (one for one in states if one.rank in self._ranks), key=lambda one: -(one.step or 0)
        )
        some = [*(one.rank for one in reported[:1]), *[*self._ranks][:LOOKED]]
        farthest = max(some, key=lambda rank: self._ranks[rank].highs().get(self._number, 0))
        recorded = self._ranks[farthest]
        _, _, steps, at, ms = recorded.scalars(STEP_MS, self._only)
        order = np.argsort(steps, kind="stable")
        steps, at, step_ms = steps[order], at[order], ms[order].astype(np.float64)
        if not steps.size:
            times = [recorded.scalars(tag, self._only).wall_times for tag in recorded.tags()]
            ends = [(one.min(), one.max()) for one in times if one.size]
            first, last = (min(one[0] for one in ends), max(one[1] for one in ends)) if ends else (0.0, 0.0)
            return steps, step_ms, float(first), float(last), float(last - first)
        step_ms = np.where(np.isfinite(step_ms), np.maximum(step_ms, 0.0), 0.0)
        # What lies between two steps; a clock that was set back says nothing of it.
        between_s = np.maximum(np.diff(at) - 1e-3 * step_ms[1:], 0.0)
        begun = float(at[0] - 1e-3 * step_ms[0])
        return steps, step_ms, begun, float(at[-1]), float(1e-3 * step_ms.sum() + between_s.sum())

    def _data(self, steps: Array) -> tuple[Array, Array]:
        """At some steps, how long the ranks waited for data; of two, the quicker one."""
        if not self._ranks:
            return np.zeros(0, np.int64), np.zeros(0)
        values, chosen = self._matrix([DATA_WAIT_MS], steps)
        known = ~np.isnan(values).all(axis=1)
        values, chosen = values[known], chosen[known]
        # The median without NaN is ten times as quick.
        median = np.nanmedian if np.isnan(values).any() else np.median
        return chosen, median(values, axis=1) if len(self._ranks) > 2 else np.nanmin(values, axis=1)

    def _measured(self, meshes: Meshes) -> Measured | None:
        """What the ranks did at the steps that they measured together."""
        steps = steps_of_all(self._series(OWN_MS, one)[0] for one in self._ranks.values())
        own_ms, chosen = self._matrix([OWN_MS], steps)
        wait_ms, _ = self._matrix([WAIT_MS], steps)
        apart_ms, _ = self._matrix(_APART, steps)
        # A rank whose steps are shorter measures fewer of them; those have all ranks that live.
        counts = (~np.isnan(own_ms)).sum(axis=1)
        is_shared = counts >= max(2, len(self._ranks) // 2)
        chosen, own_ms, wait_ms = chosen[is_shared], own_ms[is_shared], wait_ms[is_shared]
        apart_ms = np.nan_to_num(apart_ms[is_shared])
        works: dict[object, int] = {}
        work = [
            works.setdefault(work_of(meshes.place(self._number, rank).coordinates), len(works))
            for rank in self._ranks
        ]
        return Measured(
            chosen,
            np.array([*self._ranks], np.int64),
            np.maximum(own_ms - apart_ms, 0.0),
            apart_ms,
            np.where(np.isnan(own_ms), np.nan, np.nan_to_num(wait_ms)),
            np.array(work, np.int64),
        )

    def _series(self, tag: str, recorded: Recorded) -> tuple[Array, Array]:
        """The steps, which rise, and the values of a tag."""
        steps, values = recorded.curve(tag, self._only)
        if (steps[1:] > steps[:-1]).all():
            return steps, values
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def _matrix(self, tags: Iterable[str], steps: Array) -> tuple[Array, Array]:
        """The sums of some tags, float32 (steps, ranks), NaN where a rank has none of them, and the steps.

        Of too many steps, some are read.
        """
        chosen = steps[:: max(1, -(-steps.size * len(self._ranks) // CELLS))]
        found = np.full((chosen.size, len(self._ranks)), np.nan, np.float32)
        for column, recorded in enumerate(self._ranks.values()):
            there = set(recorded.tags())
            for tag in tags:
                if tag not in there:
                    continue
                known, values = self._series(tag, recorded)
                places = np.searchsorted(known, chosen)
                is_there = places < known.size
                is_there[is_there] = known[places[is_there]] == chosen[is_there]
                now = found[is_there, column]
                new = values[places[is_there]]
                found[is_there, column] = np.where(np.isnan(now), new, now + new)
        return found, chosen


def _number(health: Mapping[str, int | str], name: str) -> int:
    value = health.get(name, 0)
    return value if isinstance(value, int) else 0

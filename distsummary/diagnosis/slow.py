"""SlowRanks: finds the rank that holds up its peers, and the phase in which it is longer than they.

Ranks that train together wait for each other, so that their steps have the same wall time. What differs is
the time of their own: the CPU time of the loop's thread, and the time it was blocked by something other than
its peers. The excess of a rank in a phase is its own time less the median of its peers, as a fraction of
their step; it is compared with what it was while all was well. Of two ranks each is compared with the other:
by the quicker one at each step, lengths that vary alike would make an excess for both.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PHASES = ("data", "forward", "backward", "optimizer", "python", "recording", "checkpoint", "rest")
# An excess, a fraction of the peers' own step, is averaged over windows of so many steps. It is reported
# above the floor of its window; until it is known what is usual, above UNKNOWN times that. It must also take
# LEAST_MS a step. It is over only below OVER, so that one that becomes smaller is not reported twice.
WINDOWS = (5, 10, 20, 40)
FLOORS = np.array([0.20, 0.15, 0.11, 0.085])
UNKNOWN = 1.4
LEAST_MS = 1.0
OVER = 0.03
# Other processes also slow what the thread computes, since caches and cores are shared: seen were factors of
# up to 1.5 in forward and backward alike, for tens of steps, with hardly any in the optimizer. So what a rank
# computes in a phase counts as far as its factor is above the largest one of its other phases, of those that
# take at least SIZEABLE of the step, but above 1 + SHARED always: longer batches make forward and backward
# longer alike.
COMPUTE = ("forward", "backward", "optimizer", "rest", "data", "recording")
SHARED = 0.5
SIZEABLE = 0.1
# A single step counts no more than CLIP, so that one long step is no alarm. An excess is compared with the
# history of the rank: it must be SIGMAS standard errors above it, and MARGIN times the largest excess while
# all was well.
CLIP = 0.35
SIGMAS = 6.0
MARGIN = 1.5
# The history has up to HISTORY clean steps and shows what is usual from KNOWN on: a host may be busy for half
# of the first hundred. No alarm comes in the FIRST steps, which are not typical. The history is looked at
# every REFRESH steps. In the first SKIPPED steps caches are filled and code is compiled.
HISTORY = 400
KNOWN = 200
FIRST = 20
REFRESH = 20
SKIPPED = 5

_COMPUTE = [PHASES.index(phase) for phase in COMPUTE]
_EXCESS, _OWN, _COMPUTED, _AT_ONCE = range(4)  # the places in a row of what each rank spent
_SIZES = np.array(WINDOWS)
_LAST = _SIZES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank that is slower than its peers in a phase since a step; `until` is None while it lasts.

    `own_ms` and `peers_ms` are the milliseconds of the phase a step, of the rank and of the median of its
    peers, and `peers_step_ms` those of a whole step of the peers' own. `excess` is the excess by which it was
    found: a fraction of that step, each single step counted up to CLIP. `when`: the steps for which the
    milliseconds hold.
    """

    rank: int
    phase: str
    since: int
    reported: int
    excess: float
    own_ms: float
    peers_ms: float
    peers_step_ms: float
    until: int | None = None
    when: str = "a step"

    def over(self, until: int) -> "Slow":
        """The same, which has ended with this step."""
        return replace(self, until=until)


class SlowRanks:
    """Judges the steps of ranks that are each other's peers, one after the other.

    Its attributes are windows over the newest steps, which one step moves together.

    Args:
        ranks: the peers; of one alone nothing is said.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        shape = (len(self._ranks), len(PHASES))
        self._steps: deque[int] = deque(maxlen=WINDOWS[-1])
        self._scales: deque[float] = deque(maxlen=WINDOWS[-1])
        self._scale = 1.0  # milliseconds of a step of the peers' own
        self._seen = 0
        # of the newest steps, oldest first: what ranks spent, see _EXCESS; that of the peers, and the largest
        # mean of each window
        self._rows = np.zeros((WINDOWS[-1], 4, *shape))
        # what own and computed milliseconds are compared with, see `references_of`
        self._reference = np.zeros((WINDOWS[-1], 2 if len(self._ranks) == 2 else 1, 2, len(PHASES)))
        self._means = np.zeros((WINDOWS[-1], len(WINDOWS), len(PHASES)))
        self._is_clean = np.zeros((WINDOWS[-1], len(self._ranks)), bool)
        # of clean steps before them
        self._history: deque[Floats] = deque(maxlen=HISTORY)
        self._largest: deque[Floats] = deque(maxlen=HISTORY)
        self._usual = np.zeros(shape)
        self._limits = np.repeat(UNKNOWN * FLOORS[:, None], len(PHASES), axis=1)
        self._now = np.zeros((len(WINDOWS), *shape))  # the mean excess of each window, above the usual one
        self._open: dict[int, Slow] = {}  # the index of a rank -> what was reported of it
        self._reported_at: dict[int, int] = {}  # and `_seen` then

    def join(self, ranks: Sequence[int]) -> None:
        """Compare more ranks from now on; what is known of those before stays.

        Args:
            ranks: all of them, in rising order.
        """
        old = {rank: index for index, rank in enumerate(self._ranks)}
        self._ranks = tuple(ranks)
        place = {old[rank]: index for index, rank in enumerate(ranks) if rank in old}
        new = sorted(set(range(len(ranks))).difference(place.values()))
        if new:
            self._reference = self._reference.mean(axis=1, keepdims=True)
        for index in new:
            own, computed = np.moveaxis(self._reference[:, 0], 1, 0)
            row = np.stack([np.zeros_like(own), own, computed, own], axis=1)
            self._rows = np.insert(self._rows, index, row, axis=2)
            self._is_clean = np.insert(self._is_clean, index, False, axis=1)
            self._history = deque((np.insert(row, index, np.nan, axis=0) for row in self._history), HISTORY)
            self._usual = np.insert(self._usual, index, 0.0, axis=0)
            self._now = np.insert(self._now, index, 0.0, axis=1)
        self._open = {place[index]: one for index, one in self._open.items()}
        self._reported_at = {place[index]: one for index, one in self._reported_at.items()}

    def add(
        self,
        step: int,
        own: Floats,
        computed: Floats,
        *,
        at_once: Floats | None = None,
        is_busy: bool = False,
    ) -> list[Slow]:
        """Judge a step; returns what begins or ends with it.

        Args:
            step: larger than in the calls before.
            own: the milliseconds of the ranks' own in each of PHASES (W, P); a row of NaN for a rank that did
                not report this step.
            computed: of these, the CPU time (W, P).
            at_once: what each phase took at this step (W, P), where `own` is what is usual; it is reported.
            is_busy: the ranks wait so long for processors that nothing begins with this step.
        """
        present = ~np.isnan(own[:, 0])
        if present.sum() < 2:
            return []
        self._seen += 1
        if self._seen <= SKIPPED:
            return []
        both: Floats = np.stack([own, computed], axis=1)
        reference = references_of(both[present], len(self._ranks))
        # The scale is a median over many steps, so that one long step of all ranks does not hide an excess.
        self._scales.append(float(median(own[present].sum(axis=1), 0)))
        self._scale = float(median(np.array(self._scales), 0)) or 1.0
        excess = np.clip((own - reference[:, 0]) / self._scale, -CLIP, CLIP)
        # A rank that does not report the step counts as usual: the windows of all ranks move together.
        excess = np.where(present[:, None], excess, self._usual)
        both = np.where(present[:, None, None], both, reference)
        self._remember(step, both, reference, excess, at_once)
        return [*self._ended(step), *([] if is_busy else self._begun(step))]

    def _remember(
        self, step: int, both: Floats, reference: Floats, excess: Floats, at_once: Floats | None
    ) -> None:
        """Push a step; the one that falls out becomes history, as far as it was clean."""
        if len(self._steps) == self._steps.maxlen:
            clean = self._is_clean[0]
            if clean.any():
                self._history.append(np.where(clean[:, None], self._rows[0, _EXCESS], np.nan))
                self._largest.append(self._means[0].copy())
        for ring in (self._rows, self._reference, self._is_clean, self._means):
            ring[:-1] = ring[1:]
        newest = self._rows[-1]
        newest[_EXCESS], newest[_OWN], newest[_COMPUTED] = excess, both[:, 0], both[:, 1]
        newest[_AT_ONCE] = both[:, 0] if at_once is None else at_once
        self._reference[-1] = reference
        self._steps.append(step)
        # Steps of a rank that is reported as slow must not become what is usual of it, or of its only peer.
        self._is_clean[-1] = [index not in self._open for index in range(len(self._ranks))]
        if len(self._ranks) == 2 and self._open:
            self._is_clean[-1] = False
        if self._seen % REFRESH == 0:
            self._refresh()
        self._now = self._moving_means()
        self._means[-1] = np.where(self._is_clean[-1][None, :, None], self._now, 0.0).max(axis=1)

    def _refresh(self) -> None:
        """Look at the history again: what is usual of each rank and phase, and what would not be."""
        is_known = len(self._history) >= KNOWN
        past = np.stack(self._history) if is_known else self._rows[-len(self._steps) :, _EXCESS]
        floors = FLOORS if is_known else UNKNOWN * FLOORS
        middle = median_of_those_there(past)
        are_there = ~np.isnan(middle)
        if is_known:
            # A rank that was quicker than its peers may become as slow as they.
            self._usual[are_there] = np.maximum(middle[are_there], 0.0)
        # 1.4826 times the median absolute deviation estimates the standard deviation of normal noise,
        # whatever the outliers. The mean of a window varies less, by the root of its length.
        deviation = 1.4826 * median_of_those_there(np.abs(past - middle).reshape(-1, len(PHASES)))
        noise = SIGMAS * deviation / np.sqrt(np.array(WINDOWS)[:, None])
        largest = np.max(self._largest, axis=0) if self._largest else np.zeros(())
        self._limits = np.maximum(np.maximum(floors[:, None], noise), MARGIN * largest)

    def _moving_means(self) -> Floats:
        """The mean excess above the usual one (windows, ranks, phases).

        It is 0 if it is less than LEAST_MS, and for a window that is not filled yet.
        """
        # Sums from the newest step backwards, of which each window takes the one at its length.
        sums = np.cumsum(self._rows[::-1, :_AT_ONCE], axis=0)[_LAST] / _SIZES[:, None, None, None]
        reference = np.cumsum(self._reference[::-1], axis=0)[_LAST] / _SIZES[:, None, None, None]
        means: Floats = sums[:, _EXCESS] - self._usual
        # What the other phases of the rank take longer is due to the host, see SHARED: the largest of their
        # factors is subtracted, and for the phase with the largest one the second largest.
        computed, peers = sums[:, _COMPUTED][:, :, _COMPUTE], reference[:, :, 1, _COMPUTE]
        is_sizeable = peers > SIZEABLE * self._scale
        more = np.where(is_sizeable, computed / np.where(is_sizeable, peers, 1.0) - 1.0, 0.0)
        second, largest = np.moveaxis(np.sort(more, axis=2)[:, :, -2:, None], 2, 0)
        others = np.where(more == largest, second, largest)
        means[:, :, _COMPUTE] -= np.clip(others, 0.0, SHARED) * peers / self._scale
        means[(sums[:, _OWN] - reference[:, :, 0]) < LEAST_MS] = 0.0
        means[len(self._steps) < _SIZES] = 0.0
        return means

    def _begun(self, step: int) -> list[Slow]:
        if self._seen < FIRST + SKIPPED:
            return []
        ratios = self._now / self._limits[:, None, :]
        ratios[:, list(self._open), :] = 0.0
        if ratios.max() < 1.0:
            return []
        _, index, phase = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
        since = self._onset(int(index), int(phase))
        rows = slice(len(self._rows) - len(self._steps) + self._steps.index(since), None)
        of_phase = self._rows[rows, _AT_ONCE, :, phase]
        found = Slow(
            rank=self._ranks[index],
            phase=PHASES[phase],
            since=since,
            reported=step,
            excess=float((self._rows[rows, _EXCESS, index, phase] - self._usual[index, phase]).mean()),
            own_ms=float(np.nanmean(of_phase[:, index])),
            peers_ms=float(np.nanmean([self._of_peers(row, int(index)) for row in of_phase])),
            peers_step_ms=self._scale,
        )
        self._open[int(index)], self._reported_at[int(index)] = found, self._seen
        # The steps since the onset counted as clean until now.
        self._is_clean[rows, index if len(self._ranks) > 2 else slice(None)] = False
        self._means[rows] = 0.0
        return [found]

    @staticmethod
    def _of_peers(times: Floats, index: int) -> float:
        """The median of the others' times (W,); NaN: not there."""
        others = np.delete(times, index)
        return float(np.median(others[~np.isnan(others)])) if not np.isnan(others).all() else np.nan

    def _onset(self, index: int, phase: int) -> int:
        """The step at which the excess began: from there on, it is at least half of the newest on average."""
        steps = list(self._steps)
        excess = self._rows[-len(steps) :, _EXCESS, index, phase] - self._usual[index, phase]
        half = float(excess[-WINDOWS[0] :].mean()) / 2
        # The sum of what exceeds half, from the newest step backwards, is largest at the onset.
        gains = np.cumsum((excess - half)[::-1])
        return steps[len(steps) - 1 - int(np.argmax(gains))]

    def _ended(self, step: int) -> list[Slow]:
        over = []
        for index, slow in list(self._open.items()):
            phase = PHASES.index(slow.phase)
            last = self._rows[-WINDOWS[2] :, _EXCESS, index, phase] - self._usual[index, phase]
            rows = last[-WINDOWS[1] :]
            is_low = rows.mean() < min(slow.excess / 3, OVER) and last.mean() < 0.6 * slow.excess
            if self._seen - self._reported_at[index] >= WINDOWS[1] and is_low:
                del self._open[index]
                quiet = np.flatnonzero(rows >= slow.excess / 2)
                place = int(quiet[-1]) + 1 if len(quiet) else 0
                until = self._steps[len(self._steps) - len(rows) + place - 1]
                over.append(replace(slow, until=until))
                # Its windows become those of its peers, so that what is over is not reported again.
                self._rows[:, _EXCESS, index] = self._usual[index]
                reference = self._reference[:, min(index, self._reference.shape[1] - 1)]
                self._rows[:, _OWN:_AT_ONCE, index] = reference
                self._now[:, index] = 0.0
        return over


def references_of(times: Floats, ranks: int) -> Floats:
    """What is compared with, of the times of those that are there (W, ...): (1, ...), their median.

    Of two `ranks` in all, what each of them is compared with (2, ...): the other one's.
    """
    return times[::-1] if ranks == 2 else median(times, 0)[None]


def median(values: Floats, axis: int) -> Floats:
    """The median along an axis; of a few numbers, ten times as quick as NumPy's. No value is NaN."""
    ordered = np.sort(values, axis=axis)
    size = values.shape[axis]
    middle: Floats = ordered.take([(size - 1) // 2, size // 2], axis=axis).sum(axis=axis) / 2
    return middle


def median_of_those_there(values: Floats) -> Floats:
    """The median of those of N values that are not NaN (N, ...); NaN where there is none."""
    ordered, counts = np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0)
    low, high = (np.take_along_axis(ordered, at[None], 0)[0] for at in ((counts - 1) // 2, counts // 2))
    middle: Floats = np.where(counts, (low + high) / 2, np.nan)
    return middle

"""SlowRanks: finds the rank that holds up its peers, and the phase in which it is longer than they.

Ranks that train together wait for each other, so that their steps have the same wall time. What differs is
the time of their own: the CPU time of the loop's thread, and the time it was blocked by something other than
its peers. The excess of a rank in a phase is its own time less the median of its peers, as a fraction of
their step; it is compared with what it was while all was well.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PHASES = ("data", "forward", "backward", "optimizer", "python", "recording", "checkpoint", "rest", "host")
WINDOWS = (5, 10, 20, 40)  # steps over which an excess is averaged
# An excess (a fraction of the peers' own step) that is told if it lasts as many steps as the window has.
FLOORS = np.array([0.18, 0.13, 0.072, 0.048])
OVER = 0.03  # an excess is over only below this, so that one that becomes smaller is not told twice
# The host, if other processes keep the rank's thread waiting in the run queue: on shared hosts all ranks wait
# now and then, some steps fifty times as long as others. So the excess is what exceeds HOST_FACTOR times the
# median of the peers, the median of 40 steps counts in place of the mean, and nothing is usual. Beside a load
# of 85 on 4 cores, that of a rank was above the floor for up to 40 steps in a row, with nothing wrong.
HOST_FLOORS = np.array([np.inf, np.inf, np.inf, 0.75])
HOST_STEPS = 80  # so many steps in a row it must be above the floor
HOST_FACTOR = 1.5
HOST_CLIP = 10.0
HOST_OVER = 0.5
# A host that is busy also slows what the thread computes, all of it alike, since caches and cores are shared.
# That factor is told from what the first four of these phases have in common. A rank that computes quicker
# than its peers, up to QUICKER, need not load quicker.
COMPUTE = ("forward", "backward", "optimizer", "rest", "data", "recording")
QUICKER = 0.08
CLIP = 0.25  # a single step counts no more than this, so that one long step is no alarm
SIGMAS = 6.0  # an excess is told only if it is so many standard errors above its history
MARGIN = 1.5  # and so many times larger than the largest one while all was well
HISTORY = 400  # clean steps that are remembered
KNOWN = 200  # so many of them tell what is usual: a host may be busy for half of the first hundred
FIRST = 20  # steps until the first alarm; those of the start are not typical
REFRESH = 20  # steps between two looks at the history
SIZEABLE = 0.02  # phases shorter than this fraction of the peers' own step tell nothing about the factor
SKIPPED = 5  # first steps, in which caches are filled and code is compiled

_TELLING = [PHASES.index(phase) for phase in COMPUTE[:4]]
_HOST = PHASES.index("host")
_DATA = PHASES.index("data")
_SIZES = np.array(WINDOWS)
_LAST = _SIZES - 1
_CLIPS = np.array([HOST_CLIP if phase == "host" else CLIP for phase in PHASES])
_FACTORS = np.array([HOST_FACTOR if phase == "host" else 1.0 for phase in PHASES])
_IS_COMPUTE = np.array([phase in COMPUTE for phase in PHASES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank that is slower than its peers in a phase since a step; `until` is None while it lasts.

    `own_ms` and `peers_ms` are the milliseconds of the phase a step, of the rank and of the median of its
    peers, and `peers_step_ms` those of a whole step of the peers' own. `excess` is the excess by which it was
    found: a fraction of that step, each single step counted up to CLIP.
    """

    rank: int
    phase: str
    since: int
    told: int
    excess: float
    own_ms: float
    peers_ms: float
    peers_step_ms: float
    until: int | None = None


class SlowRanks:
    """Judges the steps of ranks that are each other's peers, one after the other.

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
        # of the newest steps, oldest first: excess, own and peers' milliseconds, largest mean of each window
        self._excess = np.zeros((WINDOWS[-1], *shape))
        self._own = np.zeros((WINDOWS[-1], *shape))
        self._reference = np.zeros((WINDOWS[-1], len(PHASES)))
        self._means = np.zeros((WINDOWS[-1], len(WINDOWS), len(PHASES)))
        self._is_clean = np.zeros((WINDOWS[-1], len(self._ranks)), bool)
        # of clean steps before them
        self._history: deque[Floats] = deque(maxlen=HISTORY)
        self._largest: deque[Floats] = deque(maxlen=HISTORY)
        self._usual = np.zeros(shape)
        self._floors = np.repeat(FLOORS[:, None], len(PHASES), axis=1)
        self._floors[:, _HOST] = HOST_FLOORS
        self._limits = self._floors
        self._now = np.zeros((len(WINDOWS), *shape))  # the mean excess of each window, above the usual one
        # of ranks that wait for a processor longer than their peers: `_seen` then, and the first such step
        self._waiting: dict[int, tuple[int, int]] = {}
        self._open: dict[int, Slow] = {}  # the index of a rank -> what was told of it
        self._told_at: dict[int, int] = {}  # and `_seen` then

    def join(self, ranks: Sequence[int]) -> None:
        """Compare more ranks from now on; what is known of those before stays.

        Args:
            ranks: all of them, in rising order.
        """
        old = {rank: index for index, rank in enumerate(self._ranks)}
        self._ranks = tuple(ranks)
        place = {old[rank]: index for index, rank in enumerate(ranks) if rank in old}
        for index in sorted(set(range(len(ranks))).difference(place.values())):
            self._excess = np.insert(self._excess, index, 0.0, axis=1)
            self._own = np.insert(self._own, index, self._reference, axis=1)
            self._is_clean = np.insert(self._is_clean, index, False, axis=1)
            self._history = deque((np.insert(row, index, np.nan, axis=0) for row in self._history), HISTORY)
            self._usual = np.insert(self._usual, index, 0.0, axis=0)
            self._now = np.insert(self._now, index, 0.0, axis=1)
        self._waiting = {place[index]: one for index, one in self._waiting.items()}
        self._open = {place[index]: one for index, one in self._open.items()}
        self._told_at = {place[index]: one for index, one in self._told_at.items()}

    def add(self, step: int, own: Floats) -> list[Slow]:
        """Judge a step; returns what begins or ends with it.

        Args:
            step: larger than in the calls before.
            own: the milliseconds of the ranks' own in each of PHASES (W, P); a row of NaN for a rank that did
                not tell this step.
        """
        present = ~np.isnan(own[:, 0])
        if present.sum() < 2:
            return []
        self._seen += 1
        if self._seen <= SKIPPED:
            return []
        # of two, the quicker one is the measure
        reference = _median(own[present], 0) if present.sum() > 2 else own[present].min(axis=0)
        self._scales.append(float(_median(own[present, :_HOST].sum(axis=1), 0)))
        self._scale = float(_median(np.array(self._scales), 0)) or 1.0
        excess = (own - _FACTORS * reference) / self._scale
        excess = np.where(present[:, None], np.clip(excess, -_CLIPS, _CLIPS), self._usual)
        self._remember(step, np.where(present[:, None], own, reference), reference, excess)
        return [*self._ended(step), *self._begun(step)]

    def _remember(self, step: int, own: Floats, reference: Floats, excess: Floats) -> None:
        """Push a step; the one that falls out becomes history, as far as it was clean."""
        if len(self._steps) == self._steps.maxlen:
            clean = self._is_clean[0]
            self._history.append(np.where(clean[:, None], self._excess[0], np.nan))
            self._largest.append(self._means[0].copy())
        for ring, row in (
            (self._excess, excess),
            (self._own, own),
            (self._reference, reference),
        ):
            ring[:-1] = ring[1:]
            ring[-1] = row
        self._steps.append(step)
        for ring in (self._is_clean, self._means):
            ring[:-1] = ring[1:]
        self._is_clean[-1] = [index not in self._open for index in range(len(self._ranks))]
        if self._seen % REFRESH == 0:
            self._refresh()
        self._now = self._moving_means()
        self._means[-1] = np.where(self._is_clean[-1][None, :, None], self._now, 0.0).max(axis=1)

    def _refresh(self) -> None:
        """Look at the history again: what is usual of each rank and phase, and what would not be."""
        recent = self._excess[-len(self._steps) :]
        if len(self._history) >= KNOWN:
            past = np.stack(self._history)
            known = ~np.isnan(past).all(axis=0)
            self._usual[known] = np.nanmedian(past[:, known], axis=0)
            self._usual[:, _HOST] = 0.0
        else:
            past = recent
        deviation = 1.4826 * np.nanmedian(np.abs(past - self._usual), axis=(0, 1))
        noise = SIGMAS * deviation / np.sqrt(np.array(WINDOWS)[:, None])
        largest = np.max(self._largest, axis=0) if self._largest else np.zeros(())
        self._limits = np.maximum(np.maximum(self._floors, noise), MARGIN * largest)
        self._limits[:, _HOST] = HOST_FLOORS

    def _moving_means(self) -> Floats:
        """The mean excess above the usual one (windows, ranks, phases); 0 for a window not filled yet."""
        rows = np.concatenate([self._excess, self._own], axis=2)
        sums = np.cumsum(rows[::-1], axis=0)[_LAST] / _SIZES[:, None, None]
        peers = np.cumsum(self._reference[::-1], axis=0)[_LAST] / _SIZES[:, None]
        means: Floats = sums[:, :, : len(PHASES)] - self._usual
        sizeable = [i for i in _TELLING if peers[-1, i] > SIZEABLE * self._scale]
        if len(sizeable) >= 3:
            factor = _median(sums[:, :, [len(PHASES) + i for i in sizeable]] / peers[:, None, sizeable], 2)
            alike = np.where(_IS_COMPUTE, peers / self._scale, 0.0)
            common = np.repeat(np.maximum(factor - 1.0, -QUICKER)[:, :, None], len(PHASES), axis=2)
            common[:, :, _DATA] = np.maximum(common[:, :, _DATA], 0.0)
            means -= common * alike[:, None, :]
        means[-1, :, _HOST] = _median(self._excess[:, :, _HOST], 0)
        means[len(self._steps) < _SIZES] = 0.0
        return means

    def _begun(self, step: int) -> list[Slow]:
        if self._seen < FIRST + SKIPPED:
            return []
        ratios = self._now / self._limits[:, None, :]
        ratios[:, list(self._open), :] = 0.0
        self._waiting = {
            index: self._waiting.get(index) or (self._seen, self._onset(index, _HOST))
            for index in np.flatnonzero(ratios[-1, :, _HOST] >= 1.0).tolist()
        }
        for rank, (seen, _) in self._waiting.items():
            if self._seen - seen < HOST_STEPS:
                ratios[-1, rank, _HOST] = 0.0
        if ratios.max() < 1.0:
            return []
        _, index, phase = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
        since = self._waiting[int(index)][1] if phase == _HOST else self._onset(int(index), int(phase))
        place = self._steps.index(since) if since in self._steps else 0
        rows = slice(len(self._own) - len(self._steps) + place, None)
        found = Slow(
            rank=self._ranks[index],
            phase=PHASES[phase],
            since=since,
            told=step,
            excess=_level(self._excess[rows, index, phase] - self._usual[index, phase], int(phase)),
            own_ms=float(self._own[rows, index, phase].mean()),
            peers_ms=float(self._reference[rows, phase].mean()),
            peers_step_ms=self._scale,
        )
        self._open[int(index)], self._told_at[int(index)] = found, self._seen
        self._is_clean[rows, index] = False
        self._means[rows] = 0.0
        return [found]

    def _onset(self, index: int, phase: int) -> int:
        """The step at which the excess began: from there on, it is at least half of the newest on average."""
        steps = list(self._steps)
        excess = self._excess[-len(steps) :, index, phase] - self._usual[index, phase]
        half = float(excess[-WINDOWS[0] :].mean()) / 2
        gains = np.cumsum((excess - half)[::-1])
        return steps[len(steps) - 1 - int(np.argmax(gains))]

    def _ended(self, step: int) -> list[Slow]:
        over = []
        for index, slow in list(self._open.items()):
            phase = PHASES.index(slow.phase)
            last = self._excess[-WINDOWS[2] :, index, phase] - self._usual[index, phase]
            rows = last[-WINDOWS[1] :]
            over_at = HOST_OVER if phase == _HOST else OVER
            is_low = _level(rows, phase) < min(slow.excess / 3, over_at)
            is_low = is_low and _level(last, phase) < 0.6 * slow.excess
            if self._seen - self._told_at[index] >= WINDOWS[1] and is_low:
                del self._open[index]
                quiet = np.flatnonzero(rows >= slow.excess / 2)
                place = int(quiet[-1]) + 1 if len(quiet) else 0
                until = self._steps[len(self._steps) - len(rows) + place - 1]
                over.append(replace(slow, until=until))
                self._excess[:, index] = self._usual[index]
                self._own[:, index] = self._reference
                self._now[:, index] = 0.0
        return over


def _level(excess: Floats, phase: int) -> float:
    return float(_median(excess, 0) if phase == _HOST else excess.mean())


def _median(values: Floats, axis: int) -> Floats:
    """The median along an axis; of a few numbers, ten times as quick as NumPy's."""
    ordered = np.sort(values, axis=axis)
    size = values.shape[axis]
    middle: Floats = ordered.take([(size - 1) // 2, size // 2], axis=axis).sum(axis=axis) / 2
    return middle

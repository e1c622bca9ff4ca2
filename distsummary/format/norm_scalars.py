"""The scalars that viewers show of the norms of whole parameters: four totals, and the few that stand out.

Which parameters stand out at a step depends on that step and on earlier ones, never on later ones: so the
writer of a run of one rank, a merge that follows a training and a merge of its files show the same. Norms
themselves, of every parameter, are in the event files; see `format/norms.py`.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.format.norms import ParameterNorms
from distsummary.format.records import MAX_TAG_BYTES, Value

GRADIENT, WEIGHT, UPDATE = "norms/gradient", "norms/weight", "norms/update"
UPDATE_TO_WEIGHT = "norms/update_to_weight"
SHOWN = 8  # parameters that are shown at a time
HOLD = 100  # records for which a parameter is shown after it stood out last
WARM = 32  # norms of a parameter before its past says anything
LIMIT = 8.0  # deviations from the past beyond which a norm stands out
FLOOR = 0.1  # the least deviation, in the logarithm of the norm: a tenth of it
_MEMORY = 64  # norms over which the past is averaged
_CLIP = 3.0  # deviations that enter the average at most, so that one outlier does not widen it
_RARE = 1 / 32  # a gradient that is 0 less often stands out when it is
_PEERS = 8  # with fewer parameters, none says what is usual for all

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class NormScalars:
    """Makes the scalars of rising steps of one attempt.

    At each step that has norms:

    - GRADIENT and WEIGHT are the L2 norms over all parameters, of those that have a gradient. Without the
      norm of a single one, because the part of a rank is missing, the total is left out.
    - UPDATE is the norm of the optimizer's change, at the step at which every parameter with a gradient has
      been measured since the last such step: at each step if 8 ranks measure them, at every eighth if one
      does. UPDATE_TO_WEIGHT is UPDATE by WEIGHT.
    - `norms/gradient/<name>` is the norm of a parameter that stands out, or has in the last HOLD records; of
      at most SHOWN at a time, those that deviate most first, then in the order of the model.

    A parameter stands out if an element of its weight or gradient is not finite; if the logarithm of its
    gradient's norm is more than LIMIT mean deviations (at least FLOOR each) from its running mean, after as
    much as the median parameter is from its own has been taken off, and after WARM norms; or if its gradient
    is 0, which is rare for it.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._past = _Past(0)
        self._shown: dict[str, int] = {}  # name -> for how many more records

    def add(self, norms: ParameterNorms) -> list[Value]:
        """The scalars of the next step."""
        if norms.table.names != self._names:
            self._past = self._past.of(self._names, norms.table.names)
            self._names = norms.table.names
        with np.errstate(all="ignore"):  # the numbers may be NaN, infinite or 0
            totals = self._totals(norms)
            found = {tag: float(np.sqrt(total)) for tag, total in totals.items() if total is not None}
            if UPDATE in found and found.get(WEIGHT, 0.0) > 0:
                found[UPDATE_TO_WEIGHT] = found[UPDATE] / found[WEIGHT]
            self._choose(*self._past.stand_out(norms))
            for row, name in enumerate(self._names) if self._shown else ():
                if (
                    name in self._shown
                    and norms.has_gradient[row]
                    and not _is_missing(norms, "gradient")[row]
                ):
                    found[f"{GRADIENT}/{name}"] = float(np.sqrt(norms.gradient_sums[row]))
        return [Value("scalar", tag, number) for tag, number in found.items()]

    def _totals(self, norms: ParameterNorms) -> dict[str, float | None]:
        """The sums of squares over all parameters; None for those that are not complete."""
        past, has_gradient = self._past, norms.has_gradient
        is_whole = not (_is_missing(norms, "gradient") & has_gradient).any()
        gradient = norms.gradient_sums[has_gradient].sum() if is_whole and has_gradient.any() else None
        weight = None if _is_missing(norms, "weight").any() else norms.weight_sums.sum()
        measured = ~np.isnan(norms.update_sums)
        past.updates[measured] = norms.update_sums[measured]
        past.is_moved |= has_gradient
        is_measured = ~np.isnan(past.updates)
        update = None
        if past.is_moved.any() and (is_measured | ~past.is_moved).all():
            update = past.updates[is_measured].sum()
            past.updates.fill(np.nan)
            past.is_moved.fill(False)
        return {GRADIENT: gradient, WEIGHT: weight, UPDATE: update}

    def _choose(self, rows: NDArray[np.int64], sizes: Floats) -> None:
        """Show the parameters that stand out, by how much, as far as there are places."""
        for name in [*self._shown]:
            self._shown[name] -= 1
            if self._shown[name] <= 0:
                del self._shown[name]
        for row in rows[np.argsort(-sizes, kind="stable")].tolist():
            name = self._names[row]
            is_short = len(f"{GRADIENT}/{name}".encode()) <= MAX_TAG_BYTES
            if name in self._shown or (len(self._shown) < SHOWN and is_short):
                self._shown[name] = HOLD


def with_scalars(values: Sequence[Value], more: Iterable[Value]) -> Iterator[Value]:
    """The values of a step and more, without scalars of norms whose names the values have already."""
    yield from values
    taken = {value.tag for value in values if value.plugin == "scalar"}
    yield from (value for value in more if value.plugin != "scalar" or value.tag not in taken)


class _Past:
    """What is known of n parameters: arrays (n,).

    `counts`: the norms that were seen. `means`, `deviations`: running mean and mean absolute deviation of
    the logarithm. `zeros`: how often the gradient was 0. `updates`: sums of squares since UPDATE was made.
    """

    def __init__(self, n: int) -> None:
        self.counts = np.zeros(n)
        self.means, self.deviations, self.zeros = np.zeros(n), np.zeros(n), np.zeros(n)
        self.updates = np.full(n, np.nan)
        self.is_moved = np.zeros(n, np.bool_)

    def of(self, older: tuple[str, ...], newer: tuple[str, ...]) -> "_Past":
        """The past of the parameters `newer`, of which some are among `older`, these."""
        places = {name: row for row, name in enumerate(older)}
        rows = [(row, places[name]) for row, name in enumerate(newer) if name in places]
        past = _Past(len(newer))
        if rows:
            to, origin = np.array(rows).T
            for name, column in vars(self).items():
                getattr(past, name)[to] = column[origin]
        return past

    def stand_out(self, norms: ParameterNorms) -> tuple[NDArray[np.int64], Floats]:
        """The rows of the parameters that stand out, and by how many deviations; then learns this step."""
        has_gradient = norms.has_gradient & ~_is_missing(norms, "gradient")
        sums = norms.gradient_sums
        is_bad = (
            (norms.weight_nonfinite > 0)
            | (norms.gradient_nonfinite > 0)
            | (has_gradient & ~np.isfinite(sums))
        )
        is_seen = has_gradient & np.isfinite(sums)
        is_zero = is_seen & (sums == 0)
        is_number = is_seen & ~is_zero
        is_warm = self.counts >= WARM
        logs = 0.5 * np.log(np.where(is_number, sums, 1.0))
        differences = logs - self.means
        peers = differences[is_number & is_warm]
        common = float(np.median(peers)) if len(peers) >= _PEERS else 0.0
        own = differences - common
        scales = np.maximum(self.deviations, FLOOR)
        sizes = np.abs(own) / scales
        stands_out = is_number & is_warm & (sizes > LIMIT)
        sizes = np.where(is_zero & is_warm & (self.zeros < _RARE), np.inf, np.where(stands_out, sizes, 0.0))
        sizes[is_bad] = np.inf

        self.counts += is_seen
        rate = np.maximum(1 / np.maximum(self.counts, 1), 1 / _MEMORY)
        self.zeros += np.where(is_seen, rate * (is_zero - self.zeros), 0.0)
        clipped = np.where(is_warm, np.clip(own, -_CLIP * scales, _CLIP * scales), own)
        self.means += np.where(is_number, rate * (clipped + common), 0.0)
        is_later = is_number & (self.counts > 1)  # the first norm is its own mean
        self.deviations += np.where(is_later, rate * (np.abs(clipped) - self.deviations), 0.0)
        rows = np.flatnonzero(sizes)
        return rows, sizes[rows]


def _is_missing(norms: ParameterNorms, what: str) -> Bools:
    """Where the sum of a merged run is NaN because the part of a rank is missing; bool (n,)."""
    missing: Bools = np.isnan(getattr(norms, f"{what}_sums")) & (getattr(norms, f"{what}_nonfinite") == 0)
    return missing

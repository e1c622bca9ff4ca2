"""The scale of a picture: contour levels and heights that suit any range of losses. Pure functions."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.grid import finite_bounds

LEVELS = 25
LARGEST = 1e30  # well below 1e250, up to which matplotlib can fill contours
WIDE = 5.0  # if losses span a larger ratio, equal steps would hide the valley
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)  # round steps between ticks, times a power of ten
SUBDIVISIONS = (  # ticks of each decade on a logarithmic scale
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 4, 5, 7),
    (1, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)
DIGITS = range(3, 13)  # numbers of digits to try for a printed loss
DECADES = 8.0  # if losses span more decades, equal ratios would also hide the valley


Beyond = Literal["neither", "min", "max", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """How losses become colours and heights.

    Attributes:
        levels: at least two, rising; losses outside them have the colours of the ends.
        stretch: heights are the losses themselves ("linear"), their log10 ("log"), or their place among the
            levels, 0 for the first ("levels"); ticks show the losses.
        is_empty: whether no loss is finite, so that the levels mean nothing.
        beyond: at which ends losses are outside the levels: "neither", "min", "max" or "both".
    """

    levels: Array
    stretch: str = "linear"
    is_empty: bool = False
    beyond: Beyond = "neither"

    def heights(self, losses: Array) -> Array:
        """The heights, NaN where a loss is not finite."""
        shown = clipped(losses)
        if self.stretch == "linear":
            return shown
        if self.stretch == "log":
            return np.asarray(np.log10(shown))
        places = np.interp(shown, self.levels, np.arange(len(self.levels)))
        return np.where(np.isfinite(shown), places, np.nan)

    @property
    def label(self) -> str:
        """The label of the loss axis; it names the scale, since log(loss) has another shape than the loss."""
        return {"linear": "loss", "log": "loss (log scale)"}.get(self.stretch, "loss (uneven scale)")

    def ticks(self, most: int) -> Array:
        """About `most` round losses from the first to the last level, rising, at least two."""
        low, high = float(self.levels[0]), float(self.levels[-1])
        if self.stretch == "log":
            decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
            # Of the ticks of each decade, the finest that are not too many.
            for every in SUBDIVISIONS:
                found = _within(np.multiply.outer(decades, every).reshape(-1), low, high)
                if 3 <= len(found) <= most:
                    return found
            if len(decades) > most:
                return _within(decades[:: -(-len(decades) // most)], low, high)
        elif self.stretch == "levels":
            chosen = self.levels[thinned(len(self.levels), most)]
            rounded = np.array([float(f"{loss:.2g}") for loss in chosen])
            found = _within(np.unique(rounded), low, high)
            return found if len(found) > 1 else np.asarray(chosen)
        # Round steps, on a linear scale or if no set of logarithmic ticks suits.
        step = (high - low) / most
        unit = 10.0 ** np.floor(np.log10(step))
        step = unit * next((factor for factor in ROUND if factor * unit >= step), ROUND[-1])
        whole = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
        found = _within(whole, low, high)
        return found if len(found) > 1 else self.levels[[0, -1]]


def thinned(size: int, most: int) -> Array:
    """At most `most` of the indices 0 .. size-1, evenly spread, including the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def tick_labels(losses: Array) -> list[str]:
    """Losses as text with the fewest digits, 3 to 12, that make all texts different; with 3 if none do."""
    texts = [[f"{loss:.{digits}g}" for loss in losses] for digits in DIGITS]
    return next((labels for labels in texts if len(set(labels)) == len(labels)), texts[0])


def clipped(losses: Array) -> Array:
    """A float64 copy with values beyond +-LARGEST clipped, and NaN for values that are not finite."""
    losses = np.asarray(losses, np.float64)
    return np.where(np.isfinite(losses), np.clip(losses, -LARGEST, LARGEST), np.nan)


def scale_for(z: Array, *others: Array) -> LossScale:
    """The scale for a surface `z` on which the losses `others` are drawn as well.

    The losses in `others` do not affect the range of the levels, unless no loss of the surface is finite. If
    they span a large ratio, the scale is logarithmic even over a surface that does not, as is their curve.
    """
    surface = clipped(z)
    if not np.isfinite(surface).any():
        surface = clipped(np.concatenate([np.ravel(losses) for losses in (z, *others)]))
    if not np.isfinite(surface).any():
        return LossScale(levels=contour_levels(surface), is_empty=True)
    low, high = finite_bounds(surface)
    levels = contour_levels(surface)
    lowest, highest = finite_bounds(surface, *map(clipped, others))
    beyond: Beyond = "max" if highest > levels[-1] else "neither"
    if lowest < levels[0]:
        beyond = "both" if beyond == "max" else "min"
    if not _is_skewed(surface, low, high):
        is_wide = 0 < WIDE * lowest < highest and len(levels) == LEVELS
        if is_wide:
            return LossScale(levels=np.geomspace(low, high, LEVELS), stretch="log", beyond=beyond)
        return LossScale(levels=levels, beyond=beyond)
    is_log = lowest > 0 and high <= low * 10.0**DECADES
    return LossScale(levels=levels, stretch="log" if is_log else "levels", beyond=beyond)


def contour_levels(z: Array) -> Array:
    """Rising levels over the finite losses.

    Levels rise in equal steps, or in equal ratios if losses span more than a factor of 5. If losses span
    over 8 decades, or reach 0 with most points near the lowest loss, each level has equally many points.
    """
    surface = clipped(z)
    low, high = finite_bounds(surface)
    # The surface is flat, except for rounding.
    if high - low <= LEVELS * np.spacing(max(abs(low), abs(high))):
        margin = max(0.5, 0.05 * abs(low))
        return np.array([low - margin, high + margin])
    if not _is_skewed(surface, low, high):
        return np.linspace(low, high, LEVELS)
    if low > 0 and high <= low * 10.0**DECADES:
        return np.geomspace(low, high, LEVELS)
    # Equally many points per level, unless so many losses are equal that few levels are left.
    shares = np.quantile(surface[np.isfinite(surface)], np.linspace(0, 1, LEVELS), method="nearest")
    by_points = np.unique(shares)
    if len(by_points) > LEVELS // 3:
        return np.asarray(by_points)
    return np.geomspace(low, high, LEVELS) if low > 0 else np.linspace(low, high, LEVELS)


def _within(losses: Array, low: float, high: float) -> Array:
    """The losses from `low` to `high`, apart from rounding errors, within these bounds."""
    slack = 1e-9 * (high - low)
    return np.asarray(np.clip(losses[(losses >= low - slack) & (losses <= high + slack)], low, high))


def _is_skewed(surface: Array, low: float, high: float) -> bool:
    """Whether equal steps would put most points, or the bottom of the valley, into one level."""
    if low > 0:
        return high > WIDE * low
    return bool(high > low and np.nanmedian(surface) - low < (high - low) / WIDE)

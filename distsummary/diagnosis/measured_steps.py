"""Which steps are measured if one in n is, so that what is periodic in a training does not escape them.

A step is, if the fraction of step * GOLDEN is below 1 / n. Those fractions are spread evenly, and so are
those of the steps at which something happens again and again (Weyl, 1916): of the stalls at each 32nd step,
one in n is measured, too. Only of periods near a large Fibonacci number, such as 89 or 144, all or none are
for a long time. What is measured for n is also measured for each smaller n. Steps are counted by their place
in the epoch, so that ranks whose epochs have different lengths measure the same ones.
"""

from itertools import count

GOLDEN = 0.6180339887498949  # (sqrt(5) - 1) / 2
_APART = 7  # short epochs begin at different fractions


def counted_in(epoch: int, place: int) -> int:
    """The number of a step by which it is chosen; of the first epoch: its place, from 1 on."""
    return place + _APART * (epoch - 1)


def is_measured(step: int, every: int) -> bool:
    """Whether a step is, if one in `every` is."""
    return step * GOLDEN % 1.0 * every < 1.0


def next_measured(step: int, every: int) -> int:
    """The first one after `step`; less than 3 * `every` steps later."""
    return next(later for later in count(step + 1) if is_measured(later, every))

"""At how many steps something is measured, so that it costs no more than a share of the training's time."""

import math

MAX_EVERY = 1 << 10  # steps


def affordable_every(
    cost_s: float, step_s: float, share: float, *, idle_s: float = 0.0, highest: int = MAX_EVERY
) -> int:
    """At each how many steps to measure: the least power of two, at most `highest`, that costs no more.

    Ranks with different powers of two, which all measure at multiples of theirs, have steps in common.

    Args:
        cost_s: seconds that measuring takes at a step. step_s: seconds of a step. share: of them, the most
            that measuring may take on average.
        idle_s: seconds that each step takes longer if not all are measured.
    """
    most_s = share * max(step_s, 1e-6)
    if cost_s <= most_s:
        return 1
    # What each step takes longer is spent in any case: only the rest of the share is left for measuring.
    wanted = cost_s / max(most_s - idle_s, cost_s / highest)
    return min(1 << math.ceil(math.log2(max(wanted, 2.0))), highest)

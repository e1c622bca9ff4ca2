"""When writing is so much work that a collector should do it."""

from distsummary.collect.load import BUSY, WINDOW_S, Load


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_no_load_and_a_window_that_was_busy_is():
    clock = Clock()
    load = Load(clock)
    assert not load.worked(WINDOW_S * BUSY * 0.9)  # the histograms of the first step
    clock.now += WINDOW_S
    assert not load.worked(0.0)
    assert not load.worked(WINDOW_S * BUSY)
    clock.now += WINDOW_S
    assert load.worked(0.001)
    clock.now += WINDOW_S
    assert not load.worked(0.001)

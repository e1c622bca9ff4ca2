"""LoaderUse: how idle the workers of a loader are, from looks; iterators of torch have these attributes."""

from queue import Queue

import pytest

from distsummary.training.timing.loader_use import ENOUGH, LoaderUse


class Iterator:
    """What torch's iterator shows: batches that were requested, and those that are there."""

    def __init__(self, workers: int, requested: int, there: int) -> None:
        self._num_workers, self._tasks_outstanding = workers, requested
        self._data_queue: Queue[int] = Queue()
        for _ in range(there):
            self._data_queue.put(0)


@pytest.mark.parametrize(
    ("workers", "requested", "there", "idle"),
    [(1, 2, 2, 1.0), (1, 2, 0, 0.0), (1, 2, 1, 0.0), (4, 8, 7, 0.75), (2, 0, 0, 1.0)],
)
def test_workers_are_idle_when_all_that_was_requested_is_there(workers, requested, there, idle) -> None:
    use = LoaderUse()
    use.begin(Iterator(workers, requested, there))
    for looks in range(1, 2 * ENOUGH):
        use.look()
        assert use.idle == (idle if looks >= ENOUGH else 0.0)
    use.end()
    use.look()
    assert use.idle is None


def test_of_other_iterators_nothing_is_known() -> None:
    use = LoaderUse()
    use.begin(iter([1, 2]))
    use.look()
    assert use.idle is None

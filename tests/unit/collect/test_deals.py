"""Ranks follow the deals that their heartbeats bring: each due step is recorded exactly once."""

import threading
from collections import Counter

import pytest

from distsummary.collect import heartbeat
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.rundir.deal import Deal, Heartbeat, first_deal, next_deal
from distsummary.rundir.topology import Topology
from tests.patience import PATIENCE_S
from tests.unit.collect.doubles import ListCoordinator, drive

LENGTHS = [60, 57, 52, 50]  # steps of the loaders
ALL = {"collect_specified_data": {"tensor_regular": ".*"}, "keep_default_action": False}


class DealingCoordinator(ListCoordinator):
    """Deals among the living ranks by their heartbeats; `deal_among` returns when all have received it."""

    def __init__(self) -> None:
        super().__init__()
        self.deals: tuple[Deal, ...] = ()
        self.beats: dict[int, Heartbeat] = {}
        self.answers: Counter[int] = Counter()
        self._changed = threading.Condition()

    def beat(self, topology, attempt, heartbeat):
        with self._changed:
            self.beats[topology.rank] = heartbeat
            self.answers[topology.rank] += 1
            self._changed.notify_all()
            return self.deals

    def deal_among(self, living):
        self.wait_for_answers(living)
        known = {rank: self.beats[rank]._replace(step_s=0.0) for rank in living}
        first = first_deal(4, {}, [beat.total for beat in known.values()])
        deals = self.deals or (first,)
        self.deals = (*deals, next_deal(deals[-1], {rank: {} for rank in living}, known))
        self.wait_for_answers(living)
        return self.deals[-1]

    def wait_for_answers(self, ranks):
        """Wait for two heartbeats of each: the answer to the first has then been followed."""
        with self._changed:
            wanted = {rank: self.answers[rank] + 2 for rank in ranks}
            assert self._changed.wait_for(
                lambda: all(self.answers[r] >= n for r, n in wanted.items()), PATIENCE_S
            )


@pytest.fixture
def coordinator(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.001)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.001)
    return DealingCoordinator()


@pytest.mark.parametrize("deal", ["steps", "parameters"])
def test_unequal_loaders_and_a_lost_rank_leave_no_due_step_out_and_none_twice(
    tmp_path, writers, coordinator, deal
):
    def rank(number):
        collector = SummaryCollector(
            str(tmp_path), 5, deal=deal, coordinator=coordinator, **ALL,
            topology=Topology(rank=number, world_size=4),
        )  # fmt: skip
        return drive(collector, steps=LENGTHS[number])

    loops = {number: rank(number) for number in range(4)}

    def go_on(numbers, steps):
        for _ in range(steps):
            for number in numbers:
                assert next(loops[number])

    go_on(range(4), 3)
    first = coordinator.deal_among(range(4))
    assert (first.total, first.groups, first.since) == (50, ((0, 1, 2, 3),), 4)
    go_on(range(4), 20)
    loops.pop(2).close()  # at step 23
    second = coordinator.deal_among([0, 1, 3])
    assert (second.groups, second.since) == (((0, 1, 3),), 24)
    for loop in loops.values():
        for _ in loop:
            pass

    recorded = Counter()
    for writer in writers.values():
        for event in writer.events:
            recorded.update((event.step, value.tag) for value in event.values if value.plugin == "tensor")
    tags = {f"layer{number}.weight/auto" for number in range(1, 7)}
    due = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    assert {(step, tag): 1 for step in due for tag in tags} == {
        key: count for key, count in recorded.items() if key[0] >= first.since
    }

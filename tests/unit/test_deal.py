"""The deal among living ranks."""

import json

from distsummary.deal import BEAT_S, Deal, Heartbeat, next_deal


def ranks(*numbers: int) -> dict[int, dict[str, tuple[int, int]]]:
    return {rank: {} for rank in numbers}


def test_the_first_deal_has_all_ranks_and_the_smallest_total() -> None:
    beats = {rank: Heartbeat(step=3, total=600 - 10 * rank) for rank in range(4)}
    deal = next_deal(None, ranks(0, 1, 2, 3), beats)
    assert deal == Deal(version=1, total=570, groups=((0, 1, 2, 3),), since=4)
    assert deal.place(2) == (2, 4)
    assert Deal.from_json(json.loads(json.dumps(deal.as_json()))) == deal


def test_a_deal_holds_until_the_world_or_the_total_changes() -> None:
    beats = {rank: Heartbeat(step=3, total=600) for rank in range(4)}
    first = next_deal(None, ranks(0, 1, 2, 3), beats)
    assert next_deal(first, ranks(3, 2, 1, 0), beats) is None
    del beats[1]
    second = next_deal(first, ranks(0, 2, 3), beats)
    assert second is not None
    assert (second.version, second.groups, second.place(1), second.place(3)) == (
        2,
        ((0, 2, 3),),
        None,
        (2, 3),
    )


def test_a_deal_begins_after_every_rank_has_had_two_heartbeats() -> None:
    beats = {0: Heartbeat(step=100, step_s=0.1), 1: Heartbeat(step=90, step_s=0.5)}
    deal = next_deal(None, ranks(0, 1), beats)
    assert deal is not None
    assert deal.since == 100 + 2 * BEAT_S / 0.1 + 1
    assert deal.total is None


def test_ranks_that_hold_different_shards_deal_apart() -> None:
    places = {rank: {"dp": (rank // 2, 2), "tp": (rank % 2, 2)} for rank in range(4)}
    deal = next_deal(None, places, {})
    assert deal is not None
    assert deal.groups == ((0, 2), (1, 3))

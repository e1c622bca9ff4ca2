"""The deal among living ranks."""

import json

from distsummary.rundir.deal import (
    LISTED,
    RULE,
    Deal,
    Group,
    Heartbeat,
    Part,
    Share,
    Steps,
    first_deal,
    next_deal,
    with_parts,
)
from distsummary.rundir.timeouts import BEAT_S


def ranks(*numbers: int) -> dict[int, dict[str, tuple[int, int]]]:
    return {rank: {} for rank in numbers}


def test_the_first_deal_is_among_the_world_and_the_second_has_the_smallest_total() -> None:
    beats = {rank: Heartbeat(step=3, total=600 - 10 * rank) for rank in range(4)}
    first = first_deal(4, ranks(0, 1, 2, 3), [beat.total for beat in beats.values()])
    assert first == Deal(version=1, total=None, groups=((0, 1, 2, 3),), since=1)
    deal = next_deal(first, ranks(0, 1, 2, 3), beats)
    assert deal == Deal(version=2, total=570, groups=((0, 1, 2, 3),), since=4)
    assert deal.place(2) == (2, 4)
    assert Deal.from_json(json.loads(json.dumps(deal.as_json()))) == deal


def test_a_deal_holds_until_the_world_or_the_total_changes() -> None:
    beats = {rank: Heartbeat(step=3, total=600) for rank in range(4)}
    first = first_deal(4, {}, [600, 600])
    assert first.total == 600
    assert next_deal(first, ranks(3, 2, 1, 0), beats) is None
    del beats[1]
    second = next_deal(first, ranks(0, 2, 3), beats)
    assert (second.version, second.groups, second.place(1), second.place(3)) == (
        2, ((0, 2, 3),), None, (2, 3),
    )  # fmt: skip


def test_a_deal_begins_after_every_rank_has_had_two_heartbeats() -> None:
    beats = {0: Heartbeat(step=100, step_s=0.1), 1: Heartbeat(step=90, step_s=0.5)}
    deal = next_deal(first_deal(3, ranks(0, 1), [None]), ranks(0, 1), beats)
    assert deal.since == 100 + 2 * BEAT_S / 0.1 + 1
    assert deal.total is None


def test_ranks_that_hold_different_shards_deal_apart() -> None:
    places = {rank: {"dp": (rank // 2, 2), "tp": (rank % 2, 2)} for rank in range(4)}
    deal = first_deal(4, places, [])
    assert deal.groups == ((0, 2), (1, 3))
    del places[3]  # rank 3 is not there: its share is dealt again
    late = next_deal(first_deal(4, places, []), places, {})
    assert late.groups == ((0, 2), (1,))


def test_a_share_names_the_steps_at_which_it_is_recorded() -> None:
    share = Share("tensor", ("a",), Steps(every=3, stop=14))
    assert share.between(1, 20, is_first=True) == [1, 3, 6, 9, 12]
    assert share.between(4, 9, is_first=False) == [6, 9]
    resumed = share._replace(steps=Steps(every=3))
    assert resumed.between(41, 45, is_first=True) == [41, 42, 45]  # the first step is always due
    by_turn = [share._replace(turn=Group(index=index, size=2)) for index in range(2)]
    assert [one.between(1, 20, is_first=True) for one in by_turn] == [[1, 6, 12], [3, 9]]


def part(deal: int, since: int, *names: str) -> Part:
    return Part(deal, since, 60, (Share("histogram", names, Steps(every=10)),))


def test_run_json_has_each_deal_that_was_in_force_with_the_parts_of_the_ranks() -> None:
    deals = [Deal(1, 60, ((0, 1),), 1), Deal(2, 60, ((0,),), 30), Deal(3, 60, ((0, 1),), 90)]
    parts = {0: [part(1, 1, "a"), part(2, 30, "a", "b")], 1: [part(1, 1, "b")]}
    stored = json.loads(json.dumps(with_parts(deals, parts, is_over=True)))
    assert [deal["version"] for deal in stored] == [1, 2]  # no one came to step 90
    assert stored[0]["ranks"]["1"] == [
        {
            "since": 1,
            "total": 60,
            "shares": [{"values": "histogram", "parameters": ["b"], "steps": {"every": 10}}],
        }
    ]
    assert [*stored[1]["ranks"]] == ["0"]
    assert [Deal.from_json(deal) for deal in stored] == deals[:2]
    assert len(with_parts(deals, parts, is_over=False)) == 3
    assert Part.from_json(json.loads(json.dumps(parts[0][1].as_json()))) == parts[0][1]


def test_many_names_are_counted_in_run_json() -> None:
    names = [f"layer{number}" for number in range(LISTED + 1)]
    [stored] = with_parts([Deal(1, None, ((0,),), 1)], {0: [part(1, 1, *names)]}, is_over=True)
    assert stored["ranks"]["0"][0]["shares"][0]["parameters"] == LISTED + 1
    assert stored["rule"] == RULE

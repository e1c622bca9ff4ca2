"""The deals of a run as rows and as lines."""

from distsummary.rundir.deal import Group, Part, Share, Steps
from distsummary.runs.deals import DealRow, deal_lines, deal_rows

TENSORS = Share("tensor", ("a", "b"), Steps(every=4))


def part(deal: int, since: int, *shares: Share) -> Part:
    return Part(deal, since, None, shares)


PARTS = {
    0: [part(1, 1, TENSORS._replace(parameters=("a",))), part(2, 9, TENSORS)],
    1: [part(1, 1, TENSORS._replace(parameters=("b",)), TENSORS._replace(values="histogram", parameters=()))],
    2: [part(1, 1), part(2, 9), part(3, 30)],
}


def test_a_part_holds_until_the_next_one_or_the_last_step_of_the_rank() -> None:
    rows = deal_rows(0, PARTS, {0: 16, 1: 6, 2: 12})
    assert rows == [
        DealRow(0, 1, 0, 1, 8, "tensor", ("a",), (1, 4, 8)),
        DealRow(0, 1, 1, 1, 6, "tensor", ("b",), (1, 4)),
        DealRow(0, 1, 2, 1, 8, "", (), ()),
        DealRow(0, 2, 0, 9, 16, "tensor", ("a", "b"), (12, 16)),
        DealRow(0, 2, 2, 9, 29, "", (), ()),
    ]
    assert deal_lines(rows) == [
        [
            "deal 1, steps 1 to 8, ranks 0-2",
            "rank 0 tensors of a at steps 1, 4, 8",
            "rank 1 tensors of b at steps 1, 4",
            "rank 2 none",
        ],
        ["deal 2, steps 9 to 29, ranks 0, 2", "rank 0 tensors of a, b at steps 12, 16", "rank 2 none"],
    ]


def test_ranks_that_take_steps_in_turn_have_those_of_their_turns() -> None:
    parts = {rank: [part(1, 1, TENSORS._replace(turn=Group(index=rank, size=10)))] for rank in range(10)}
    rows = deal_rows(1, parts, dict.fromkeys(range(10), 100))
    assert [row.steps for row in rows] == [
        (1, 40, 80), (4, 44, 84), (8, 48, 88), (12, 52, 92), (16, 56, 96),
        (20, 60, 100), (24, 64), (28, 68), (32, 72), (36, 76),
    ]  # fmt: skip
    [[head, *ranks]] = deal_lines(rows)
    assert head == "deal 1 of attempt 1, steps 1 to 100, ranks 0-9"
    assert ranks[-1] == "and 2 more ranks"

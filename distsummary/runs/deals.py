"""The deals of a run as rows: which rank recorded which parameters, from which step to which."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from distsummary.base.columns import as_ranges
from distsummary.rundir.deal import Part

_NAMES, _STEPS, _RANKS = 4, 3, 8  # of a line: the names of parameters, the steps, the ranks
_KINDS = {"histogram": "histograms", "tensor": "tensors", "gradient": "gradients"}


class DealRow(NamedTuple):
    """What one rank had to record of one kind of values, by one deal; see `RecordedRun.deals`."""

    attempt: int
    deal: int
    rank: int
    since_step: int
    until_step: int
    values: str
    parameters: tuple[str, ...]
    steps: tuple[int, ...]


def deal_rows(
    attempt: int, parts: Mapping[int, Sequence[Part]], last_steps: Mapping[int, float]
) -> list[DealRow]:
    """The rows of an attempt, by deal, then rank.

    Args:
        parts: rank -> its parts in the deals. last_steps: rank -> its last step, of those that have one.
    """
    rows = []
    for rank, of_rank in sorted(parts.items()):
        # A part ends before the rank's next one begins, the last part with the rank's last step.
        ends = [*(part.since - 1 for part in of_rank[1:]), last_steps.get(rank, 0)]
        for number, (part, end) in enumerate(zip(of_rank, ends, strict=True)):
            if end < part.since:
                continue
            head = attempt, part.deal, rank, part.since, int(end)
            shares = [share for share in part.shares if share.parameters]
            for share in shares:
                steps = share.between(part.since, int(end), is_first=number == 0)
                rows.append(DealRow(*head, share.values, share.parameters, tuple(steps)))
            if not shares:
                rows.append(DealRow(*head, "", (), ()))
    return sorted(rows, key=lambda row: (row.deal, row.rank, row.since_step))


def deal_lines(rows: Iterable[Any]) -> list[list[str]]:  # Any: rows of the table, which are as DealRow
    """Each deal of something in lines: when it was in force, for which ranks; then what each recorded."""
    deals = []
    for (attempt, deal), group in groupby(rows, key=lambda row: (row.attempt, row.deal)):
        of_deal = [*group]
        # A deal of nothing is not shown.
        if not any(row.values for row in of_deal):
            continue
        ranks = sorted({row.rank for row in of_deal})
        first, last = min(row.since_step for row in of_deal), max(row.until_step for row in of_deal)
        parts = [_rank_line(rank, [row for row in of_deal if row.rank == rank]) for rank in ranks[:_RANKS]]
        if len(ranks) > _RANKS:
            parts.append(f"and {len(ranks) - _RANKS} more ranks")
        again = f" of attempt {attempt}" if attempt else ""
        head = f"deal {deal}{again}, steps {first:,} to {last:,}, rank{'s' * (len(ranks) > 1)} "
        deals.append([f"{head}{as_ranges(ranks, ', ')}", *parts])
    return deals


def _rank_line(rank: int, rows: list[Any]) -> str:
    shares = [
        f"{_KINDS.get(row.values, row.values)} of {_in_short(row.parameters, _NAMES)} at steps "
        f"{_in_short(row.steps, _STEPS)}"
        for row in rows
        if row.steps
    ]
    return f"rank {rank} {', '.join(shares) or 'none'}"


def _in_short(items: Sequence[object], most: int) -> str:
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown} ... {items[-1]} ({len(items)})"

"""`distsummary why`: the verdicts on a run's ranks, in words and as JSON."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from distsummary.aggregate.judging import judged_files
from distsummary.base.columns import cut, numbered, paragraph, printable, quoted
from distsummary.diagnosis.alerts import all_hangs, with_reported
from distsummary.diagnosis.ends import unreported_end
from distsummary.diagnosis.sentence import named_ranks, sentence, weight, with_line
from distsummary.diagnosis.verdict import LEVELS, NOTICES, Verdict
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import is_over
from distsummary.runs.guides import page_of
from distsummary.runs.status import Status, read_status
from distsummary.runs.status_text import hints

FOLDED = 8  # verdicts after the first that have a line each


class Findings(NamedTuple):
    """The verdicts with their attempts, the heaviest first, and at how many steps of `steps` no rank could be
    called slow, as the processors were too busy (`abstained`). `apart`: which ranks were not compared.
    """

    status: Status
    verdicts: list[tuple[int, Verdict]]
    steps: int
    abstained: int
    apart: str = ""


def why(path: str | os.PathLike[str]) -> Findings:
    """Judge the files of a run; raises the errors of `read_status`."""
    status = read_status(path)
    newest, run_dir = status.run.newest, RunDir(status.run.path)
    judged = judged_files(run_dir)
    found = with_reported(judged.reported, run_dir) + all_hangs(run_dir, newest, status.stuck)
    if newest is not None:
        ends = unreported_end([one for number, one in found if number == newest.attempt], newest)
        found += [(newest.attempt, one) for one in ends]
        seen = {rank.rank: rank.seen for rank in newest.ranks}
        found = [
            (number, with_line(one, seen.get(one.rank, ())) if number == newest.attempt else one)
            for number, one in found
        ]
    found.sort(key=lambda one: weight(one[1]))
    return Findings(status, found, judged.steps, judged.abstained, judged.apart)


def as_json(found: Findings) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    verdicts = [verdict.as_json() for _, verdict in found.verdicts]
    return {"verdicts": verdicts, "steps": found.steps, "abstained": found.abstained, "apart": found.apart}


def text_of(found: Findings, *, width: int) -> str:
    """The heaviest verdict with the page about its cause, then a line for each other one.

    Lines have up to `width` characters, but for longer paths. Without verdicts: what was looked at.
    """
    newest, now = found.status.run.newest, found.status.now
    lines = []
    if not found.verdicts:
        ranks = 0 if newest is None else newest.world_size
        alone = "nothing was found; the run has one rank, which has no peers to be compared with"
        # What all of them wait for, such as a hook in the backward pass of one, is in the bill.
        spent = f"none of the {ranks} ranks stands out; what the time went to: distsummary cost "
        lines.append(alone if ranks < 2 else f"{spent}{quoted(found.status.run.path)}")
        if newest is not None and not found.status.step and not is_over(newest):
            lines = hints(found.status)[:1]  # which ranks have not begun
    trainings = {one.attempt: one for one in found.status.run.attempts if one.role == "train"}
    last = max(trainings, default=0)
    lasted_s = {
        number: max((now - rank.last_seen_s for rank in one.ranks), default=now) - one.started
        for number, one in trainings.items()
    }
    said = []
    for attempt, verdict in found.verdicts:
        ended = attempt != last or (newest is not None and is_over(newest))
        text = sentence(verdict, is_over=ended, of_s=lasted_s.get(attempt))
        said.append(printable(text if attempt == last else f"In attempt {attempt}: {text}"))
    if len(said) > 1:
        lines += paragraph(_summary([verdict for _, verdict in found.verdicts]), width)
    if said:
        lines += paragraph(said[0], width)
        cause = found.verdicts[0][1].cause
        if cause not in NOTICES:
            lines.append(f"  What it means, and what to do: {page_of(cause)}")
    if others := said[1:]:
        lines += ["", *(cut(f"- {one}", width) for one in others[:FOLDED])]
        if len(others) > FOLDED:
            lines.append(f"- and {len(others) - FOLDED} more")
        lines.append("All of them, in full: --json")
    if found.status.unread:
        lines.append(f"Not all that was reported can be read: {printable(found.status.unread)}.")
    if found.abstained:
        lines.append(
            f"At {found.abstained:,} of {found.steps:,} measured steps, "
            "processors were too busy to judge who is slow."
        )
    if found.apart:
        lines += paragraph(found.apart, width)
    return "\n".join(lines)


def _summary(verdicts: Sequence[Verdict]) -> str:
    """How many findings there are, of which levels, and on which ranks."""
    levels = Counter(verdict.level for verdict in verdicts)
    kinds = ", ".join(numbered(levels[level], level) for level in reversed(LEVELS) if levels[level])
    ranks = {rank for verdict in verdicts for rank in (verdict.ranks or (verdict.rank,))}
    return f"{numbered(len(verdicts), 'finding')} on {named_ranks(ranks)}: {kinds}."

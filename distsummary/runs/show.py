"""A run in one screen, for the command `distsummary show`."""

import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from distsummary.base.columns import aligned, cut, numbered, paragraph, printable
from distsummary.base.terminal import duration
from distsummary.format.own_tags import AUTO, EVALUATION_TAGS, LOSS_TAG, OF_RANKS, is_own
from distsummary.runs.deals import deal_lines
from distsummary.runs.facts import Fact, facts
from distsummary.runs.rank_files import MERGED, MERGED_RANK, Rank
from distsummary.runs.recorded_run import RecordedRun, findings
from distsummary.runs.table import ScalarTable

_FIRST = ("loss", "train/loss", LOSS_TAG, EVALUATION_TAGS, "acc", "lr", "learning_rate")  # tags of interest
_LOSS = re.compile(rf"(?:.*[/_])?loss(?:{AUTO})?", re.IGNORECASE)
_TAGS, _SETTINGS, _PROBLEMS, _VERDICTS, _DEALS = 12, 8, 5, 5, 3  # lines of each
_LONG_NUMBER = re.compile(r"\b\d+\.\d{7,}(?:e[+-]\d+)?\b")  # as metrics have, which are JSON
_HEAD = ("tag", "first", "last", "lowest", "at step", "highest", "at step", "points")
_NAMES = {  # of a fact -> its line
    "code.command": "command", "code.commit": "commit", "network": "model", "optimizer": "model",
    "loss function": "model", "learning rate": "model", "batch size": "model", "data.path": "data",
    "data.size": "data", "data.validation size": "data", "metrics": "metrics",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One tag: its points and the finite values of note, None without any; `not_finite`: how many are not."""

    tag: str
    points: int
    first: float
    last: float
    last_step: int
    lowest: float | None
    lowest_step: int | None
    highest: float | None
    highest_step: int | None
    not_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What `show` reports about a run.

    `curves_of`: which run the curves are of, "merged" or a rank. `values`: plugin -> tag -> how many ranks
    have it. `started`: seconds since the epoch, None if unknown.
    """

    path: str
    state: str
    level: str
    findings: str
    ranks: int
    attempts: int
    steps: tuple[int, int] | None
    started: float | None
    facts: dict[str, Fact]
    curves_of: Rank
    curves: tuple[Curve, ...]
    values: dict[str, dict[str, int]]
    landscapes: tuple[str, ...]
    verdicts: tuple[dict[str, Any], ...]
    deals: tuple[Any, ...]  # rows of `RecordedRun.deals`
    problems: tuple[str, ...]


def overview(run: RecordedRun) -> Overview:
    """Read what is to be shown; the curves are those of the merged run or, before it is merged, of a rank."""
    rank, table = leading_scalars(run)
    curves = [_curve(tag, *of_tag) for tag, of_tag in table.curves().items()]
    known = facts(run)
    attempts = [attempt for attempt in run.attempts if attempt.role == run.role]
    verdicts = tuple(row._asdict() for row in run.verdicts)
    found = findings(run)
    return Overview(
        path=str(run.path),
        state=run.state,
        level=found.level,
        findings=found.text,
        ranks=int(known.get("ranks") or len(run.ranks)),
        attempts=len(attempts),
        steps=run.steps,
        started=min((attempt.started for attempt in attempts), default=None),
        facts=known,
        curves_of=MERGED if rank == MERGED_RANK else rank,
        curves=tuple(sorted(curves, key=lambda curve: interest(curve.tag))),
        values=run.tags,
        landscapes=tuple(run.landscapes),
        verdicts=verdicts,
        deals=tuple(run.deals),
        problems=tuple(one for one in run.problems if one not in found.text),
    )


def leading_scalars(run: RecordedRun) -> tuple[int, ScalarTable]:
    """The scalars of the merged run (-1) or, before it is merged, of the lowest rank; first which of them."""
    if len(table := run.scalars(rank=MERGED)):
        return int(table["rank"][0]), table
    lowest = min(run.ranks)
    return lowest, run.scalars(rank=lowest)


def text_of(shown: Overview, *, width: int) -> str:
    """The run in lines of at most `width` characters, on one screen."""
    parts = [shown.state, numbered(shown.ranks, "rank")]
    if shown.steps is not None:
        parts.append(f"steps {shown.steps[0]:,} to {shown.steps[1]:,}")
    if shown.attempts > 1:
        parts.append(numbered(shown.attempts, "attempt"))
    if shown.started is not None:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shown.started))
        parts.append(f"began {began} ({duration(max(0.0, time.time() - shown.started))} ago)")
    lines = [f"{printable(shown.path)}: {', '.join(parts)}"]
    lines += paragraph(f"  {shown.findings}", width, indent="    ") if shown.findings else []
    lines += [f"  {name:<9} {text}" for name, text in _facts(shown.facts)]
    curves = [curve for curve in shown.curves if not curve.tag.startswith(OF_RANKS)]
    if curves:
        rows = [_row(curve) for curve in curves[:_TAGS]]
        of = "the merged run" if shown.curves_of == MERGED else f"rank {shown.curves_of}"
        table = aligned([_HEAD, *rows], right=range(1, len(_HEAD)), width=width)
        more = f"; {len(curves) - _TAGS} more: --json" if len(curves) > _TAGS else ""
        lines += ["", *table, f"  ({numbered(len(curves), 'tag')} of {of}{more})"]
    lines += ["", f"also: {_others(shown)}"]
    dealt = deal_lines(shown.deals)
    for head, *ranks in dealt[-_DEALS:]:
        lines += paragraph(printable(f"{head}: {'; '.join(ranks)}"), width, most=4)
    if len(dealt) > _DEALS:
        lines.append(f"  and {len(dealt) - _DEALS} earlier: see --json")
    for row in shown.verdicts[:_VERDICTS]:
        said = f"verdict: {row['sentence'] or verdict_text(row)}"
        lines += paragraph(printable(said), width, most=2)
    if len(shown.verdicts) > _VERDICTS:
        lines.append(f"  and {len(shown.verdicts) - _VERDICTS} more verdicts: see --json")
    lines = [cut(line, width) for line in lines]
    for line in shown.problems[:_PROBLEMS]:
        lines += paragraph(f"problem: {printable(line)}", width, indent="    ")
    if len(shown.problems) > _PROBLEMS:
        lines.append(f"  and {numbered(len(shown.problems) - _PROBLEMS, 'more line')}: see --json")
    return "\n".join(lines)


def _curve(tag: str, steps: Any, values: Any) -> Curve:
    finite = np.flatnonzero(np.isfinite(values))
    low = high = None
    if finite.size:
        low, high = finite[values[finite].argmin()], finite[values[finite].argmax()]
    return Curve(
        tag=tag,
        points=values.size,
        first=float(values[0]),
        last=float(values[-1]),
        last_step=int(steps[-1]),
        lowest=None if low is None else float(values[low]),
        lowest_step=None if low is None else int(steps[low]),
        highest=None if high is None else float(values[high]),
        highest_step=None if high is None else int(steps[high]),
        not_finite=values.size - finite.size,
    )


def is_loss(tag: str) -> bool:
    """Whether a tag is a loss by its name."""
    return _LOSS.fullmatch(tag) is not None


def interest(tag: str) -> tuple[int, str]:
    """A key to sort tags by: losses, accuracies and learning rates first, our own tags last."""
    places = [
        place
        for place, name in enumerate(_FIRST)
        if tag == name or (name[-1] == "/" and tag.startswith(name))
    ]
    return (places[0] if places else len(_FIRST) + is_own(tag), tag)


def _row(curve: Curve) -> tuple[str, ...]:
    def said(value: float | int | None) -> str:
        return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else f"{value:,}"

    bad = f" ({curve.not_finite} not finite)" if curve.not_finite else ""
    numbers = (curve.first, curve.last, curve.lowest, curve.lowest_step, curve.highest, curve.highest_step)
    return (cut(printable(curve.tag), 40), *map(said, numbers), f"{curve.points:,}{bad}")


def _facts(known: dict[str, Fact]) -> list[tuple[str, str]]:
    lines: dict[str, list[str]] = {}
    for name, line in _NAMES.items():
        if name in known:
            text = fact_text(known[name])
            is_named = name in ("learning rate", "batch size", "data.validation size")
            lines.setdefault(line, []).append(f"{name.removeprefix('data.')} {text}" if is_named else text)
    settings = [name for name in known if name.startswith("config.")]
    if settings:
        reported = [
            printable(f"{name.removeprefix('config.')}={fact_text(known[name])}") for name in settings
        ]
        lines["config"] = reported[:_SETTINGS]
        if len(reported) > _SETTINGS:
            lines["config"].append(f"and {len(reported) - _SETTINGS} more")
    return [(name, ", ".join(texts)) for name, texts in lines.items()]


def fact_text(value: Fact) -> str:
    """A fact on one line, numbers with six digits; "-" if it is not known."""
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return printable(_LONG_NUMBER.sub(lambda found: f"{float(found[0]):.6g}", text))


def _others(shown: Overview) -> str:
    kinds = {
        "histogram": "histograms", "tensor": "tensors", "image": "images", "text": "texts",
        "audio": "sounds", "pr_curve": "PR curves",
    }  # fmt: skip
    found = [
        f"{words} of {numbered(len(tags), 'tag')}"
        for kind, words in kinds.items()
        if (tags := shown.values.get(kind))
    ]
    if "norms" in shown.values:
        found.append("norms of the parameters")
    if "graph" in shown.values:
        found.append("the graph of the model")
    if shown.landscapes:
        found.append(f"{numbered(len(shown.landscapes), 'landscape')} ({', '.join(shown.landscapes)})")
    return ", ".join(found) or "no other values"


def verdict_text(row: dict[str, Any]) -> str:
    """A row of `RecordedRun.verdicts` in words, such as "rank 3: forward, from step 502 on"."""
    until = f" to {row['until_step']:,}" if row["until_step"] >= 0 else " on"
    return f"rank {row['rank']}: {printable(str(row['cause']))}, from step {row['since_step']:,}{until}"

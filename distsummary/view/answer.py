"""The first screen of a page: how the run is, in one sentence and three numbers, and what to do about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distsummary.diagnosis.sentence import LEAST_S, seconds
from distsummary.diagnosis.verdict import (
    DRIFT,
    ERROR,
    FAILED,
    HANG,
    LOST,
    NAN,
    NOTICES,
    SLOW,
    UNSAVED,
)
from distsummary.format.definitions import Definitions
from distsummary.format.own_tags import EVALUATION_TAGS, OWN_MS, STEP_MS, WAIT_MS
from distsummary.runs.cost import Bill
from distsummary.runs.guides import guide_of
from distsummary.runs.recorded_run import NO_MANIFEST, NOT_MERGED, RecordedRun, findings, planned_steps
from distsummary.runs.run_metrics import better, metric_of
from distsummary.runs.show import is_loss
from distsummary.runs.table import Matrix
from distsummary.view.reduce import Array, Band

_WORDS = {
    **dict.fromkeys(SLOW, "slow"), HANG: "hung", NAN: "NaN", DRIFT: "ranks differ", LOST: "rank lost",
    FAILED: "rank failed",
}  # fmt: skip
_GOOD = ("finished", "running")
_NOTHING = "nothing was found to be wrong"
_UNKNOWN = (NO_MANIFEST, "unreadable", "unknown", "superseded")


def answer(
    run: RecordedRun,
    verdicts: Sequence[Mapping[str, Any]],
    *,
    steps: Sequence[int] | None,
    loss: Mapping[str, Any] | None,
    checkpoints: Sequence[int] | Array,
    cost: Bill,
) -> dict[str, Any]:
    """What is said of a run at first sight.

    Args:
        verdicts: rows of `RecordedRun.verdicts`, the heaviest first. steps: the first and the last one.
        loss: as `Numbers` has it. checkpoints: their steps. cost: the bill of the run.

    Returns `badge`: its `text` and `kind` ("good" only if nothing is wrong and all could be read, "warn",
    "bad" or "plain"); `head` and `detail`, the sentence in its parts; `earlier`, how the attempts before the
    newest one ended; `guides`: cause -> the page on
    it, in Markdown, of each cause that is there.
    """
    state, problems = run.state, run.problems
    levels = {one["level"] for one in verdicts}
    level = ERROR if findings(run).level == ERROR else "warning" if levels else ""
    if (
        state not in (*_GOOD, *_UNKNOWN)
        or level == ERROR
        or {one["cause"] for one in verdicts} & {LOST, FAILED}
    ):
        kind = "bad"
    elif level or (problems and state in _GOOD):
        kind = "warn"
    else:
        kind = "good" if state in _GOOD else "plain"
    words = [state]
    if verdicts:
        words.append(_WORDS.get(verdicts[0]["cause"], verdicts[0]["cause"]))
        head, detail = _of_verdict(verdicts[0])
    elif loss and loss["bad_steps"]:
        kind, words = "bad" if loss["last"] is None else "warn", [state, _WORDS[NAN]]
        head = f"{loss['tag']} is NaN or infinite at {loss['bad_steps']:,} of {loss['steps']:,} steps"
        detail = f"first at step {loss['bad_since']:,}; nothing else was found to be wrong"
    else:
        head, detail = _without(run, state, problems, steps)
    if verdicts and verdicts[0]["cause"] == NAN and loss and loss["bad_steps"]:
        detail += f"; {loss['bad_steps']:,} of {loss['steps']:,} steps have a loss that is not finite"
        before = [int(step) for step in checkpoints if step < verdicts[0]["since_step"]]
        detail += f"; the newest checkpoint before is of step {before[-1]:,}" if before else ""
    planned = planned_steps(run) or 0
    if state not in (*_GOOD, *_UNKNOWN) and steps:
        is_saved = all(one["cause"] != UNSAVED for one in verdicts)
        saved = [int(step) for step in checkpoints if step <= steps[1] and is_saved]
        of = f" of {planned:,}" if steps[1] < planned else ""
        newest = f", its newest checkpoint is of step {saved[-1]:,}" if saved else ""
        if of or newest:
            detail += f"; the run ended at step {steps[1]:,}{of}{newest}"
    attempts = sum(row.role == run.role for row in run.attempts)
    if attempts > 1:
        words.append("restarted" if attempts == 2 else f"restarted {attempts - 1:,} times")
    causes = dict.fromkeys(one["cause"] for one in verdicts if one["cause"] not in NOTICES)
    return {
        "badge": {"text": " · ".join(dict.fromkeys(words)), "kind": kind},
        "head": head,
        "detail": detail,
        "earlier": _earlier(run, cost),
        "guides": {cause: text for cause in causes if (text := guide_of(cause))},
    }


def _earlier(run: RecordedRun, cost: Bill) -> str:
    """How the last attempt before the newest one ended, how many there were, and what was made again."""
    *earlier, _ = [row for row in run.attempts if row.role == run.role] or [None]
    if not earlier:
        return ""
    last = earlier[-1]
    said = f"Attempt {last.attempt} {last.state}"
    known = [row for row in run.health if (row.attempt, row.rank) == (last.attempt, last.failed_rank)]
    if known and len(run.ranks) > 1:
        said += f" on rank {last.failed_rank}"
    said += f" at step {known[0].step:,}" if known and known[0].step > 0 else ""
    said += f": {last.error}" if last.error else ""
    said += f" ({len(earlier)} attempts before this one)" if len(earlier) > 1 else ""
    again_s = sum(one.seconds for one in cost.parts if one.part == "rollback")
    return f"{said}; steps that were made again cost {seconds(again_s)}" if again_s >= LEAST_S else said


def _of_verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    said, evidence = str(row["sentence"] or ""), str(row["evidence"]).rstrip(".")
    return said.split(": ")[0] if said else f"Rank {row['rank']}: {row['cause']}", evidence


def _without(
    run: RecordedRun, state: str, problems: Sequence[str], steps: Sequence[int] | None
) -> tuple[str, str]:
    """The sentence of a run in which nothing was found to be wrong."""
    ranks = len(run.ranks)
    count = f"All {ranks:,} ranks" if ranks > 2 else "Both ranks" if ranks == 2 else "The run"
    span = "nothing was recorded yet" if steps is None else f"steps {steps[0]:,} to {steps[1]:,}"
    if problems and state in _GOOD:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        if problems[0].startswith(NOT_MERGED):
            return (
                "The ranks are not merged",
                f"{problems[0].removeprefix(NOT_MERGED)} makes one run of them; {_NOTHING}",
            )
        return "Not all of the run could be read", f"{problems[0]}{more}; in the rest nothing was found"
    if state == "running":
        verb = "train alike so far" if ranks > 1 else "is fine so far"
        return f"{count} {verb}", f"{span}; {_NOTHING}"
    if state == "finished":
        verb = "trained alike" if ranks > 1 else "finished"
        return f"{count} {verb}", f"{span}; {_NOTHING}, nothing was dropped"
    if state == NO_MANIFEST:
        return "Nothing was found to be wrong", f"{span}; without a run.json it is not known how it ended"
    if state == "unreadable":
        return "run.json cannot be read", f"{span}; in what was recorded {_NOTHING}"
    return "No rank has registered yet" if state == "unknown" else f"The run is {state}", span


class Numbers:
    """The numbers of the first screen, noted while the tags are read: loss, evaluation metric, step time."""

    def __init__(self, tags: Sequence[str], definitions: Definitions) -> None:
        self._definitions = definitions
        metrics = [tag for tag in tags if tag.startswith(EVALUATION_TAGS)]
        losses = [tag for tag in tags if is_loss(tag)]
        self.loss = next((tag for tag in losses if tag not in metrics), next(iter(losses), None))
        # The loss of an evaluation says less than a metric of its own.
        self.metric = next((tag for tag in metrics if not is_loss(tag)), next(iter(metrics), None))
        times = (STEP_MS, OWN_MS)
        self.time = next((tag for tag in times if tag in tags), None)
        self.found: dict[str, Any] = {
            "loss": None, "metric": None, "time": None, "proof": OWN_MS if OWN_MS in tags else None,
            "wait": WAIT_MS if WAIT_MS in tags else None,
        }  # fmt: skip

    @property
    def wanted(self) -> list[str]:
        """The tags that the first screen needs, whatever else is shown."""
        return [tag for tag in (self.loss, self.metric, self.time, self.found["proof"]) if tag]

    def take(self, tag: str, matrix: Matrix, of_all: Band, merged: tuple[Array, Array] | None = None) -> None:
        """Note what a tag says of the run: of loss and metric the merged run's values (`merged`: steps and
        values), or the median of ranks that are not merged; of step times always the median.
        """
        defined = self._definitions.of(tag)
        steps, values = merged or (matrix.steps, of_all.median)
        curve = steps, np.asarray(values, np.float64)
        of = (defined.of_ranks if merged else "median") if matrix.ranks.size > 1 else ""
        if tag in (self.loss, self.metric):
            bad = np.flatnonzero(of_all.not_finite)
            found = {
                "tag": tag,
                "unit": defined.unit or "",
                "ranks": int(matrix.ranks.size),
                "of": of,
                "bad_since": int(matrix.steps[bad[0]]) if bad.size else None,
                "bad_steps": int(bad.size),
                "steps": int(matrix.steps.size),
                **_last_and_best(*curve, better(tag, self._definitions)),
            }
            self.found |= {name: found for name in ("loss", "metric") if tag == getattr(self, name)}
        if tag == self.time and (kept := of_all.median[np.isfinite(of_all.median)]).size:
            low, high = np.percentile(kept, [50, 95])
            self.found["time"] = {
                "tag": tag,
                "median": float(low),
                "most": float(high),
                "steps": int(kept.size),
            }


def _last_and_best(steps: Array, values: Array, direction: str) -> dict[str, Any]:
    """The newest value (None: it is not finite) and its step; the best finite one, if it is known what is
    better, and its step.

    Args:
        steps, values: (n,), n > 0. direction: see `better`.
    """
    found = metric_of(steps, values, direction)
    return {
        "last": found.last if np.isfinite(found.last) else None,
        "step": found.step,
        "best": found.best,
        "best_step": found.best_step,
    }

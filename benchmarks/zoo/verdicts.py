"""What was reported of a training, as its user reads it, and whether it is right.

An alert belongs to an episode if their steps overlap and it was reported before the episode was over for
GRACE steps. An episode is `right` if one of its alerts names rank and cause within the limit, `late` if one
does so later, `wrong` if its alerts name something else, `missed` without alerts. An alert is false if no
episode on its rank explains it.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import distsummary as ds
from benchmarks.zoo.faults import Episode
from benchmarks.zoo.trainings import VALIDATED

Alert = dict[str, Any]
GRACE = 40  # steps: what was slow may be reported when it is over
VALIDATING = ("checkpoint", "unknown", "evaluation")  # causes by which a validation of rank 0 may be named


def reported(run_dir: str) -> list[Alert]:
    """The warnings and errors in alerts.jsonl: of each, the last line."""
    path = Path(run_dir, "alerts.jsonl")
    last: dict[tuple[Any, ...], Alert] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        alert = json.loads(line)
        last[tuple(alert[name] for name in ("attempt", "rank", "cause", "since_step"))] = alert
    return [alert for alert in last.values() if alert.get("level") != "info"]


def shown(run_dir: str) -> list[tuple[int, str, int]]:
    """Rank, cause and first step of the verdicts that `ds.open_run` shows."""
    return [(int(row.rank), str(row.cause), int(row.since_step)) for row in ds.open_run(run_dir).verdicts]


def why(run_dir: str) -> dict[str, Any]:
    """What `distsummary why RUN --json` prints."""
    words = [sys.executable, "-m", "distsummary", "why", run_dir, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: there are verdicts
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def intervals(alert: Alert) -> list[tuple[float, float]]:
    """The first and last steps of an alert; it may have ended and come again."""
    found = alert.get("intervals") or [(alert["since_step"], alert["until_step"])]
    return [(since, math.inf if until is None else until) for since, until in found]


def overlaps(alert: Alert, first: float, last: float) -> bool:
    """Whether some of its steps are from `first` to `last`."""
    return any(since <= last and first <= until for since, until in intervals(alert))


def judged(run_dir: str, training: str, done: Sequence[Episode], limit: int) -> dict[str, Any]:
    """The episodes with their outcomes, the false alerts, and at how many steps no verdict could begin.

    That number is None of a version that does not report it.

    Args:
        done: the episodes as they were injected, by `Faults.done`.
    """
    alerts = reported(run_dir)
    outcomes = [episode | _outcome(run_dir, episode, alerts, limit) for episode in done]
    false = [
        alert
        for alert in alerts
        if not any(_explains(episode, alert) for episode in outcomes)
        and not (training == "validation" and _is_validation(alert))
    ]
    listed = {(alert["rank"], alert["cause"], alert["since_step"]) for alert in alerts}
    return {
        "episodes": outcomes,
        "false": false,
        "false_intervals": sum(len(intervals(alert)) for alert in false),
        "not_in_open_run": sorted(listed.difference(shown(run_dir))),
        "abstained": why(run_dir).get("abstained"),
    }


def _outcome(run_dir: str, episode: Episode, alerts: Sequence[Alert], limit: int) -> dict[str, Any]:
    """What was reported of an episode; `delay` is in steps, from the first one that the fault made longer."""
    onset = episode["start"]
    if episode.get("workers"):
        onset = first_late(run_dir, episode)
    last = episode["end"] - 1
    mine = [
        alert
        for alert in alerts
        if episode["start"] <= alert["reported_step"] <= last + GRACE
        and overlaps(alert, episode["start"], last)
    ]
    right = [
        alert for alert in mine if (alert["rank"], alert["cause"]) == (episode["rank"], episode["place"])
    ]
    best = min(right, key=lambda alert: alert["reported_step"], default=None)
    delay = None if best is None else best["reported_step"] - onset + 1
    outcome = "wrong" if mine else "missed"
    if delay is not None:
        outcome = "right" if delay <= limit else "late"
    return {
        "onset": onset,
        "outcome": outcome,
        "is_rank_right": any(alert["rank"] == episode["rank"] for alert in mine),
        "delay": delay,
        "lost_s": None if best is None else best.get("lost_s"),
        "said": [
            {name: alert[name] for name in ("rank", "cause", "since_step", "reported_step", "evidence")}
            for alert in mine
        ],
    }


def first_late(run_dir: str, episode: Episode) -> int:
    """The first step whose batch, and half of the next ones, came later than those of the other ranks.

    The one after the episode, if there is none: then its fault reached no step.
    """
    steps, ranks, waits = ds.open_run(run_dir).matrix("zz_perf/data_wait_ms")
    is_mine = ranks == episode["rank"]
    is_late = waits[:, is_mine][:, 0] - np.nanmedian(waits[:, ~is_mine], axis=1) >= 0.5 * episode["ms"]
    for place in np.flatnonzero((steps >= episode["start"]) & (steps < episode["end"]) & is_late):
        if is_late[place : place + 6].sum() >= 3:  # two processes bring two batches at a time
            return int(steps[place])
    return int(episode["end"])


def _explains(episode: Episode, alert: Alert) -> bool:
    last = episode["end"] - 1
    return (
        alert["rank"] == episode["rank"]
        and overlaps(alert, episode["start"], last)
        and episode["start"] <= alert["reported_step"] <= last + GRACE
    )


def _is_validation(alert: Alert) -> bool:
    """Whether it names rank 0 at a step at which it validates and saves."""
    due = math.ceil(alert["since_step"] / VALIDATED) * VALIDATED
    return alert["rank"] == 0 and alert["cause"] in VALIDATING and due <= alert["reported_step"]

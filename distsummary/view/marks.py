"""Marks on the axis of steps, alike on all charts: evaluations, checkpoints, attempts; when steps were."""

from typing import Any

import numpy as np

from distsummary.format.own_tags import EVALUATION_TAGS, PHASE_TAGS, STEP_MS
from distsummary.runs.recorded_run import RecordedRun
from distsummary.view.packing import small
from distsummary.view.reduce import Array, spread

_TIMES = 1000  # of steps; between them, a step took as long as its neighbours
_MARKS = 500  # of a kind
_PHASES = ("checkpoint", "evaluation")
_LEAST_MS = 0.5  # a phase that took less is none


def marks(run: RecordedRun, tags: list[str]) -> dict[str, Any]:
    """Of a run's axis of steps, by its lowest rank:

    - `attempts`: of each `attempt` its `first_step` and `last_step`;
    - `times`: `steps` (N,) and `seconds` float64 (N,) since the epoch; None without a tag;
    - `epochs`: `steps` and `values` of a tag named epoch; None without one;
    - `evaluations` and `checkpoints`: the steps (K,) of each.

    Args:
        tags: the scalars of the run.
    """
    if not run.ranks or not tags:
        return {"attempts": [], "times": None, "epochs": None, "evaluations": [], "checkpoints": []}
    rank = min(run.ranks)
    mine = {tag for tag, ranks in run.ranks_of("scalar").items() if rank in ranks}
    leading = next(
        (tag for tag in (*tags, STEP_MS) if tag in mine and not tag.startswith(EVALUATION_TAGS)), None
    )
    epoch = next((tag for tag in tags if tag in mine and tag.split("/")[-1] == "epoch"), None)
    steps_of: dict[str, Array] = {}
    for phase in _PHASES:
        took = np.zeros(0, np.int64)
        for measure in ("cpu_ms", "blocked_ms"):
            if (tag := f"{PHASE_TAGS}{phase}/{measure}") in mine:
                table = run.scalars(tag, rank=rank)
                took = np.append(took, table["step"][table["value"] >= _LEAST_MS])
        steps_of[phase] = np.unique(took)
    # A metric is recorded after its evaluation, at the same step.
    if metric := next((tag for tag in tags if tag.startswith(EVALUATION_TAGS) and tag in mine), None):
        steps_of["evaluation"] = np.unique(run.scalars(metric, rank=rank)["step"])
    attempts, times, epochs = [], None, None
    if leading is not None:
        table = run.scalars(leading, rank=rank)
        steps, seconds = table["step"], table["wall_time"]
        for attempt in np.unique(table["attempt"]):
            own = steps[table["attempt"] == attempt]
            attempts.append(
                {"attempt": int(attempt), "first_step": int(own.min()), "last_step": int(own.max())}
            )
        order = np.argsort(steps, kind="stable")
        order = order[np.isfinite(seconds[order])]
        kept = order[spread(order.size, _TIMES)]
        times = {"steps": small(steps[kept]), "seconds": seconds[kept].astype(np.float64)}
    if epoch is not None:
        table = run.scalars(epoch, rank=rank)
        order = np.argsort(table["step"], kind="stable")
        kept = order[spread(order.size, _TIMES)]
        epochs = {"steps": small(table["step"][kept]), "values": table["value"][kept].astype(np.float64)}
    return {
        "attempts": attempts,
        "times": times,
        "epochs": epochs,
        "evaluations": small(_few(steps_of["evaluation"])),
        "checkpoints": small(_few(steps_of["checkpoint"])),
    }


def _few(steps: Array) -> Array:
    """Evenly spread ones of many: a mark at each step would mark nothing."""
    return steps[spread(steps.size, _MARKS)] if steps.size else steps

"""What of a curve stands in a table of runs: its last and best value, and a small curve of few points."""

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.format.definitions import Definitions
from distsummary.runs.show import is_loss

SPARK = 32  # points of a small curve
BETTER = ("min", "max")
_LOW = (
    "loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "nll", "wer", "cer", "fid",
    "ms", "seconds",
)  # fmt: skip
_HIGH = (
    "acc", "accuracy", "f1", "auc", "auroc", "precision", "recall", "iou", "miou", "map", "bleu", "rouge",
    "r2", "reward", "score", "psnr", "ssim", "dice", "top1", "top5",
)  # fmt: skip
_RATE = re.compile(r"per_(s|sec|second)$")
_NEITHER = ("scale", "weight", "coef", "lr")  # a loss scale is no loss
_WORD = re.compile(r"[A-Z]?[a-z]+\d?(?![a-z\d])|[A-Z]+\d?(?![a-z\d])|[A-Z]?[a-z]+")

Array = NDArray[Any]


class RunMetric(NamedTuple):
    """A tag in a table of runs: its last value and that one's step, its best finite value and the step.

    `better`: "min" or "max"; empty where that is unknown, and then `best` and `best_step` are None.
    `nan_step`: the step of the first value that is NaN or infinite; None if all are finite.
    """

    last: float
    step: int
    better: str = ""
    best: float | None = None
    best_step: int | None = None
    nan_step: int | None = None


def metric_of(steps: Array, values: Array, direction: str) -> RunMetric:
    """A curve as a RunMetric.

    Args:
        steps, values: (n,), n > 0, in recording order. direction: see `better`.
    """
    last, step = _shortest(values[-1]), int(steps[-1])
    is_finite = np.isfinite(values)
    finite = np.flatnonzero(is_finite)
    nan_step = int(steps[np.argmin(is_finite)]) if len(finite) < len(values) else None
    if not direction or not len(finite):
        return RunMetric(last, step, direction, nan_step=nan_step)
    at = finite[(np.argmin if direction == "min" else np.argmax)(values[finite])]
    return RunMetric(last, step, direction, _shortest(values[at]), int(steps[at]), nan_step)


def spark_of(values: Array) -> tuple[float, ...]:
    """A curve (n,) as up to SPARK points: the means of as many parts of equal length, NaN without any."""
    count = min(SPARK, values.size)
    if not count:
        return ()
    begins = np.arange(count) * values.size // count
    is_finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(is_finite, values, 0.0).astype(np.float64), begins)
    counts = np.add.reduceat(is_finite.astype(np.int64), begins)
    means = np.divide(sums, counts, out=np.full(count, np.nan), where=counts > 0)
    return tuple(float(f"{mean:.4g}") for mean in means.tolist())


def _shortest(value: np.floating[Any]) -> float:
    """The number with the fewest digits that are those of a float32: 0.1, not 0.10000000149."""
    return float(str(value))


def better(tag: str, defined: Definitions | None = None) -> str:
    """Which of two values of a tag is better, "min" or "max"; empty if that is unknown.

    Args:
        defined: what run.json says. Where it says nothing, names that hold a word such as loss or accuracy
            have a direction, and of seconds and milliseconds fewer are better.
    """
    if defined is not None and (best := defined.of(tag).best):
        return best
    if _RATE.search(tag):
        return "max"
    if is_loss(tag):
        return "min"
    name = tag.rpartition("/")[2] or tag
    words = {word.lower() for word in (*_WORD.findall(name), *re.split(r"\W|_", name))}
    words |= {word.rstrip("0123456789") for word in words if word not in ("f1", "r2")}
    if words.intersection(_NEITHER):
        return ""
    return "min" if words.intersection(_LOW) else "max" if words.intersection(_HIGH) else ""

"""How often `distsummary compare --fail-if` is right: pairs of groups of small trainings, half of them worse.

Each training fits a line to noisy points by SGD in NumPy and records its loss and a step time. Its seed moves
the loss by 1 % and the step time by 2 % (standard deviations). In half of the pairs the new trainings are 3 %
or 8 % worse in one of the two. A gate is wrong if it passes a pair that is worse by more than the limit, or
fails one that is not; what is unclear is counted apart.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import distsummary as ds
from distsummary.runs.compare import compare
from distsummary.runs.gate import FAILS, HOLDS, read_condition

CONDITIONS = [read_condition(text) for text in ("loss > +2%", "time/step_ms > +5%")]
# The factors of loss and step time in the new trainings, and the outcomes that are right.
KINDS = [
    ((1.0, 1.0), (HOLDS, HOLDS)),
    ((1.03, 1.0), (FAILS, HOLDS)),
    ((1.0, 1.0), (HOLDS, HOLDS)),
    ((1.0, 1.08), (HOLDS, FAILS)),
    ((1.0, 1.0), (HOLDS, HOLDS)),
    ((1.08, 1.0), (FAILS, HOLDS)),
    ((1.0, 1.0), (HOLDS, HOLDS)),
    ((1.0, 1.03), (HOLDS, HOLDS)),  # within the limit of 5 %
]


def train(
    path: Path, factors: tuple[float, float], random: np.random.Generator, steps: int
) -> ds.RecordedRun:
    """One training of a line with two weights."""
    of_loss, of_time = np.array(factors) * (1 + np.array([0.01, 0.02]) * random.normal(size=2))
    inputs = random.normal(size=(256, 2))
    targets = inputs @ [1.0, -2.0] + 0.5 * random.normal(size=256)
    targets *= 0.5 / np.std(targets - inputs @ np.linalg.lstsq(inputs, targets, rcond=None)[0])
    weights = np.zeros(2)
    with ds.init(path, rank=0, world_size=1, quiet=True, system_metrics=False) as run:
        for _ in run.steps(range(steps)):
            rest = inputs @ weights - targets
            weights -= 0.1 * inputs.T @ rest / rest.size
            run.log(
                {
                    "loss": of_loss * float((rest**2).mean()),
                    "time/step_ms": of_time * (10 + random.exponential()),
                }
            )
    return ds.open_run(path)


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5, help="trainings on each side")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random, counts, began = np.random.default_rng(options.seed), Counter[str](), time.perf_counter()
    compared_s = 0.0
    for pair in range(options.pairs):
        factors, right = KINDS[pair % len(KINDS)]
        with tempfile.TemporaryDirectory() as directory:
            groups = [
                [
                    train(Path(directory) / f"{name}{n}", own, random, options.steps)
                    for n in range(options.seeds)
                ]
                for name, own in (("main", (1.0, 1.0)), ("new", factors))
            ]
            start = time.perf_counter()
            found = compare(groups, conditions=CONDITIONS, at="mean:50").decisions
            compared_s += time.perf_counter() - start
        for one, outcome in zip(found, right, strict=True):
            is_wrong = one.outcome in (HOLDS, FAILS) and one.outcome != outcome
            counts["wrong" if is_wrong else "right" if one.outcome == outcome else "unclear"] += 1
    print(json.dumps({
        "pairs": options.pairs, "seeds": options.seeds, "decisions": dict(counts),
        "compare_s": round(compared_s / options.pairs, 2), "seconds": round(time.perf_counter() - began),
    }))  # fmt: skip


if __name__ == "__main__":
    main()

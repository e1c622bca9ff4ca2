"""The CPU of a collected step inside MindSpore: our collector next to MindSpore's own, in one training.

usage: .venv-mindspore/bin/python -m benchmarks.inside_mindspore [STEPS] [REPEATS]

A small LeNet with the four operators, in graph mode, collected at every step: loss, two pictures of 8 images,
six histograms, a tensor. Each collector trains in processes of its own, in turns, once for STEPS and once for
50 steps; the difference is that of the steps alone. The CPU is that of the process and all its children.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

FEW = 50
WHOSE = ("none", "theirs", "ours_compat", "ours")


def train(whose: str, steps: int, directory: str) -> None:
    """A training of so many steps, recorded by one of WHOSE."""
    import mindspore

    from distsummary.mindspore import SummaryCollector
    from tests.mindspore.trainings import Lenet, images, model_of

    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    mindspore.set_seed(1)
    options = {"collect_freq": 1, "collect_tensor_freq": 1}
    options |= {"collect_specified_data": {"collect_landscape": None}}
    make = {
        "theirs": lambda: mindspore.SummaryCollector(directory, **options),
        "ours_compat": lambda: SummaryCollector(directory, mindspore_compat=True, **options),
        "ours": lambda: SummaryCollector(directory, **options),
    }
    callbacks = [make[whose]()] if whose in make else []
    model_of(Lenet()).train(1, images(rows=8 * steps), callbacks=callbacks, dataset_sink_mode=False)


def cpu_s(whose: str, steps: int) -> float:
    """The CPU seconds of such a training in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "benchmarks.inside_mindspore", "train", whose, str(steps), directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(steps: int = 450, repeats: int = 5) -> None:
    """Print the milliseconds of CPU per step, as JSON."""
    found: dict[str, list[float]] = {whose: [] for whose in WHOSE}
    for _ in range(repeats):
        for whose in WHOSE:
            found[whose].append(1e3 * (cpu_s(whose, steps) - cpu_s(whose, FEW)) / (steps - FEW))
    plain = statistics.median(found["none"])
    more = {whose: round(statistics.median(found[whose]) - plain, 2) for whose in WHOSE[1:]}
    print(json.dumps({"cpu_ms_per_step": found, "median_over_none": more}))


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(*map(int, sys.argv[1:]))

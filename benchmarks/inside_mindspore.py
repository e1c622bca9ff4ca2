"""The CPU of a collected step inside MindSpore: our collector next to MindSpore's own, in one training.

usage: .venv-mindspore/bin/python -m benchmarks.inside_mindspore [STEPS] [REPEATS]
       .venv-mindspore/bin/python -m benchmarks.inside_mindspore idle [STEPS]

A small LeNet with the four operators, in graph mode, collected at every step: loss, two pictures of 8 images,
six histograms, a tensor. Each collector trains in processes of its own, in turns, once for STEPS and once for
50 steps; the difference is that of the steps alone. The CPU is that of the process and all its children.

`idle`: the microseconds of our two hooks at a step at which nothing is due, the median of STEPS: in a loop of
hooks alone, and with half a millisecond of other work before each, which empties the caches.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

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


def idle(steps: int = 2000) -> None:
    """Print the microseconds of the two hooks, as JSON: of one rank, and of one of two, which has phases."""
    import mindspore
    import numpy as np

    from distsummary.mindspore import SummaryCollector
    from distsummary.rundir.coordination import LocalCoordinator
    from distsummary.rundir.run_dir import RunDir
    from distsummary.rundir.topology import Topology
    from tests.mindspore.loop import Loop

    matrix, large = np.ones((160, 160)), np.ones(300_000)
    found = {}
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            place = Topology(world_size=ranks, incarnation="benchmark")
            joined = LocalCoordinator(RunDir(directory).create())
            options = {"collect_freq": 10**6, "topology": place, "coordinator": joined}
            collector = SummaryCollector(directory, **options)
            loop = Loop(collector, batch_num=10**6)
            loop.begin()
            loop.params.update(cur_epoch_num=1, net_outputs=mindspore.Tensor(1.0))
            loop.call("on_train_epoch_begin")
            for name, works in (("alone", False), ("between other work", True)):
                took_us = []
                for _ in range(steps):
                    loop.params.cur_step_num += 1
                    took_s = 0.0
                    for hook in ("on_train_step_begin", "on_train_step_end"):
                        if works:
                            matrix @ matrix
                            large.sum()
                        began_s = time.perf_counter()
                        getattr(collector, hook)(loop.context)
                        took_s += time.perf_counter() - began_s
                    took_us.append(1e6 * took_s)
                found[f"{ranks} ranks, {name}"] = round(statistics.median(took_us), 1)
            loop.call("on_train_epoch_end")
            loop.end()
    print(json.dumps({"us_of_two_hooks": found}))


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
    elif sys.argv[1:2] == ["idle"]:
        idle(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))

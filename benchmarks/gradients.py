"""CPU of histograms of all gradients at a step: `python -m benchmarks.gradients [--wandb PYTHON]`.

One training for each row, in a process of its own, of 16 linear layers of 512 x 512 (4.2 million parameters
in 32 tensors) on one thread of torch. In each round every process makes the same number of steps, one after
the other, so that a busy machine slows all of them; gradients are recorded at every step.

- "none": no recording.
- "ours": `ds.init(gradients=".*", collect_freq=1)`; both formats are written.
- "add_histogram": `SummaryWriter.add_histogram(name, parameter.grad, step)` for each parameter.
- "wandb": `wandb.watch(model, log="gradients", log_freq=1)`, offline, by an interpreter that has wandb 0.31
  and torch: `pip install wandb==0.31.0` into any environment with torch.

Printed is, in milliseconds per step, the CPU time of the training's thread, which is
what the training waits for, and that of the process with its children (writer threads, wandb's service), of
which other cores may do a part: the medians over the rounds of the differences to "none".

Then, of "ours" when nothing is due: the CPU of the step of an optimizer that does nothing, with 100
parameters of the model, with a run that records gradients and with one that does not, in blocks that take
turns; the median of the differences, in microseconds per step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH, BATCH = 16, 512, 1
NEVER = 10**9
BLOCK = 1000  # steps of an optimizer that does nothing

Record = Callable[[int], None]


def begin(model: nn.Module, directory: str, **options: Any) -> tuple[Any, Any]:
    """A run of distsummary, and the iterator of its steps, of which the first has begun."""
    import distsummary as ds  # the interpreter that has wandb may not have it

    run = ds.init(directory, watch=model, system_metrics=False, aggregate=False, quiet=True, **options)
    batches = run.steps(range(NEVER))
    next(batches)
    return run, batches


def ours(model: nn.Module, directory: str) -> Record:
    """Record by ds.init; a step ends when the next begins."""
    run, batches = begin(model, directory, gradients=".*", collect_freq=1)

    def record(step: int) -> None:
        next(batches)
        if step % 10 == 0 and run.health().dropped:
            raise RuntimeError(f"a figure of what was dropped is none: {run.health()}")

    return record


def add_histogram(model: nn.Module, directory: str) -> Record:
    """Record by torch's SummaryWriter."""
    from torch.utils.tensorboard import SummaryWriter

    writer, named = SummaryWriter(directory), list(model.named_parameters())

    def record(step: int) -> None:
        for name, parameter in named:
            writer.add_histogram(name, parameter.grad, step)

    return record


def watched(model: nn.Module, directory: str) -> Record:
    """Record by wandb.watch, which hooks the parameters; a step ends with a log of its own."""
    import wandb  # type: ignore[import-not-found]  # not of this project's environment

    run = wandb.init(project="benchmark", dir=directory, mode="offline", settings={"silent": True})
    run.watch(model, log="gradients", log_freq=1)
    return lambda step: run.log({"step": step})


WAYS: dict[str, Callable[[nn.Module, str], Record]] = {
    "none": lambda model, directory: lambda step: None,
    "ours": ours,
    "add_histogram": add_histogram,
    "wandb": watched,
}


def work(way: str, directory: str) -> None:
    """Make as many steps as each line of the input says, and answer with the thread's CPU in seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, step = torch.randn(BATCH, WIDTH), 0
    record = WAYS[way](model, directory)
    print("ready", flush=True)
    for line in sys.stdin:
        begun = time.thread_time()
        for _ in range(int(line)):
            step += 1
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            record(step)
        print(time.thread_time() - begun, flush=True)
    os._exit(0)  # what follows is not measured


def tree_s(pid: int) -> float:
    """The CPU seconds of a process and its children."""
    import psutil

    root = psutil.Process(pid)
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def compare(ways: dict[str, str], rounds: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Way -> for each round milliseconds per step of the thread, and of the process with its children.

    `ways`: way -> the interpreter that runs it.
    """
    with tempfile.TemporaryDirectory() as directory:
        workers = {}
        for way, python in ways.items():
            place = Path(directory, way)
            place.mkdir()
            command = [python, __file__, "--worker", way, str(place)]
            workers[way] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            spent: dict[str, list[tuple[float, float]]] = {way: [] for way in workers}
            for worker in workers.values():
                answer(worker)
                ask(worker, steps)  # not measured: the first steps
            for _ in range(rounds):
                for way, worker in workers.items():
                    before = tree_s(worker.pid)
                    thread_s = ask(worker, steps)
                    time.sleep(0.5)  # what threads and children still write belongs to it
                    whole_s = tree_s(worker.pid) - before
                    spent[way].append((1e3 * thread_s / steps, 1e3 * whole_s / steps))
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
    return spent


def less(rows: list[tuple[float, float]], others: list[tuple[float, float]]) -> list[float]:
    """The medians of what the rows have more than the others, column by column."""
    columns = zip(
        *([one[0] - two[0], one[1] - two[1]] for one, two in zip(rows, others, strict=True)), strict=True
    )
    return [statistics.median(column) for column in columns]


def answer(worker: "subprocess.Popen[str]") -> str:
    """The next line that is an answer: wandb prints lines of its own."""
    while True:
        line = worker.stdout.readline()  # type: ignore[union-attr]  # piped
        if not line:
            raise RuntimeError("a worker ended, see its error above")
        if line.strip() == "ready" or line[:1].isdigit():
            return line


def ask(worker: "subprocess.Popen[str]", steps: int) -> float:
    """Have a worker make steps; returns the CPU seconds of its thread."""
    worker.stdin.write(f"{steps}\n")  # type: ignore[union-attr]  # piped
    worker.stdin.flush()  # type: ignore[union-attr]
    return float(answer(worker))


class Idle(torch.optim.Optimizer):
    """An optimizer whose step does nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


def idle_us(blocks: int) -> float:
    """Microseconds that recording gradients adds to a step at which none is due."""
    model = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(100)])
    optimizer = Idle(model.parameters(), {})
    spent: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as directory:
        for block in range(2 * blocks):
            is_on = block % 2 == 0
            run, batches = begin(model, f"{directory}/{block}", gradients=is_on and ".*", collect_freq=NEVER)
            for _ in range(3):  # at the first step gradients are due
                for parameter in model:
                    parameter.grad = parameter.detach()
                optimizer.step()
                next(batches)
            begun = time.thread_time()
            for _ in range(BLOCK):
                optimizer.step()
            spent[is_on].append(time.thread_time() - begun)
            run.close()
    pairs = zip(spent[True], spent[False], strict=True)
    return 1e6 * statistics.median(on - off for on, off in pairs) / BLOCK


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wandb", metavar="PYTHON", help="an interpreter that has wandb and torch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = dict.fromkeys(("none", "ours", "add_histogram"), sys.executable)
    if options.wandb:
        ways["wandb"] = options.wandb
    spent = compare(ways, options.rounds, options.steps)
    none = spent.pop("none")
    added = {way: less(rows, none) for way, rows in spent.items()}
    step_ms = statistics.median(thread for thread, _ in none)
    idle = idle_us(options.rounds)
    if options.json:
        print(json.dumps({"step_ms": step_ms, "added_ms": added, "idle_us": idle}))
        return
    print(f"{'':14} {'thread':>10} {'process':>10}   ms of CPU per step; the training: {step_ms:.1f}")
    for way, (thread, whole) in added.items():
        print(f"{way:14} {thread:10.2f} {whole:10.2f}")
    print(f"a step at which none is due: {idle:.1f} us")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3])
    else:
        main()

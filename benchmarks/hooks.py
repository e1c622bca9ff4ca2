"""CPU of callbacks at a step at which nothing is due: `python -m benchmarks.hooks`.

A training begins with the callbacks of each row. Then their hooks for the begin and the end of a step are
called as a Run calls them, in blocks of 500 steps, with a loss that is a float or a tensor of torch on the
CPU. Printed is the median over the blocks of the thread's CPU time per step, without that of the loop itself,
and the share of blocks above the limit. "all" are those callbacks in one list.

Nothing is due: no loss is printed, no rate changed, no checkpoint saved, no value recorded, but the loss is
checked (LossMonitor), the function of the scheduler is called, and the waiting times are added up.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import distsummary as ds

BLOCK = 500  # steps
LIMIT_US = 3.0
NEVER = 10**9

Makers = dict[str, Callable[[Path], ds.Callback]]


def makers() -> Makers:
    """Name -> what makes a callback for which nothing is due."""
    config = ds.CheckpointConfig(save_checkpoint_steps=NEVER)
    return {
        "LossMonitor(0)": lambda _: ds.LossMonitor(0),
        "LossMonitor(1e9)": lambda _: ds.LossMonitor(NEVER),
        "TimeMonitor(data_time=True)": lambda _: ds.TimeMonitor(data_time=True),
        "LearningRateScheduler": lambda _: ds.LearningRateScheduler(lambda lr, step: lr),
        "History": lambda _: ds.History(),
        "LambdaCallback(on_train_epoch_end=f)": lambda _: ds.LambdaCallback(on_train_epoch_end=str),
        "ModelCheckpoint(steps=1e9)": lambda path: ds.ModelCheckpoint("ckpt", str(path), config),
        "SummaryCollector(collect_freq=1e9)": lambda path: ds.SummaryCollector(path / "run", NEVER),
    }


def step_us(callbacks: list[ds.Callback], loss: object, blocks: int) -> list[float]:
    """Microseconds of CPU per step that the hooks of the steps take, one number for each block."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ds.Run(callbacks=callbacks, network=model, optimizer=optimizer)
    batches = run.steps(range(NEVER))
    for _ in range(3):
        next(batches)
        run.log(loss=0.5)
    context, params = run.context, run.context.original_args()
    methods = [run._callbacks.methods[f"on_train_step_{event}"] for event in ("begin", "end")]
    context.step.logged, context.step.values = {}, ()

    def block(hooks: list[list[Any]]) -> float:
        begun = time.thread_time()
        for _ in range(BLOCK):
            params["cur_step_num"] += 1
            params["net_outputs"] = loss
            for listed in hooks:
                for method in listed:
                    method(context)
        return (time.thread_time() - begun) * 1e6 / BLOCK

    block(methods)
    loop = statistics.median(block([[], []]) for _ in range(20))
    found = [block(methods) - loop for _ in range(blocks)]
    batches.close()
    run.close()
    return found


def main() -> None:
    """Print a table; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=200, help=f"blocks of {BLOCK} steps, default 200")
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    rows: dict[str, Makers] = {name: {name: make} for name, make in makers().items()}
    rows["all"] = makers()
    print(f"microseconds of CPU per step, median of {blocks} blocks of {BLOCK} steps; limit {LIMIT_US}")
    for name, made in rows.items():
        said = [f"{name:38}"]
        for kind, loss in (("float", 0.5), ("tensor", torch.tensor(0.5, requires_grad=True))):
            with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
                found = step_us([make(Path(directory)) for make in made.values()], loss, blocks)
            above = sum(us > LIMIT_US for us in found) / len(found)
            said.append(f"{kind} loss: {statistics.median(found):5.2f} ({above:4.0%} above)")
        print("  ".join(said), flush=True)


if __name__ == "__main__":
    main()

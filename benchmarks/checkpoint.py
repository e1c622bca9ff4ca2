"""How long a training is held up by ModelCheckpoint with async_save, next to a copy of the state by torch.

Usage: python -m benchmarks.checkpoint [--sizes 0.5 4 16 128 512] [--saves 12] [--device cpu] [--threads 1]
Prints a line of JSON for each size: MB and number of the tensors of parameters and Adam's state; the medians
in ms and their ratio, of the time that passes and (`cpu_...`) of the CPU time of the training's thread. Other
work on the machine changes the first; the second needs `--threads 1`.
"""

import argparse
import json
import statistics
import tempfile
import time
from typing import TypeAlias

import torch
from torch import Tensor, nn

import distsummary as ds

LAYERS = 8
Times: TypeAlias = tuple[float, float]  # seconds that pass, and of this thread's CPU


def now() -> Times:
    """The clocks."""
    return time.perf_counter(), time.thread_time()


def since(before: Times) -> Times:
    """What has passed since `before`."""
    return time.perf_counter() - before[0], time.thread_time() - before[1]


class Timed(ds.ModelCheckpoint):
    """Notes how long each save holds up the training."""

    def __init__(self, directory: str) -> None:
        super().__init__("CKP", directory, ds.CheckpointConfig(1, keep_checkpoint_max=1, async_save=True))
        self.held_up: list[Times] = []

    def on_train_step_end(self, run_context: ds.RunContext) -> None:
        """As usual, with clocks."""
        before = now()
        super().on_train_step_end(run_context)
        self.held_up.append(since(before))
        self._join()  # so that each step saves


def measure(megabytes: float, saves: int, device: str) -> dict[str, float]:
    """Train a stack of linear layers, whose state with Adam's has about this size."""
    width = max(8, int((megabytes * 1e6 / LAYERS / 12) ** 0.5))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, width, device=device)).square().mean().backward()
        optimizer.step()

    def state() -> list[Tensor]:
        moments = (value for entry in optimizer.state.values() for value in entry.values())
        return [tensor.cpu().clone() for tensor in (*model.state_dict().values(), *moments)]

    copied: list[Times] = []
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Timed(directory)
        with ds.Run(callbacks=checkpoint, network=model, optimizer=optimizer) as run:
            for _ in run.steps(range(saves)):
                step()
                before = now()
                copy = state()
                copied.append(since(before))
    found = {"state_mb": round(sum(tensor.nbytes for tensor in copy) / 1e6, 1), "tensors": len(copy)}
    for index, prefix in enumerate(("", "cpu_")):
        held_up_ms = 1e3 * statistics.median(times[index] for times in checkpoint.held_up)
        copy_ms = 1e3 * statistics.median(times[index] for times in copied)
        found |= {
            f"{prefix}held_up_ms": round(held_up_ms, 2),
            f"{prefix}copy_ms": round(copy_ms, 2),
            f"{prefix}ratio": round(held_up_ms / copy_ms, 2),
        }
    return found | {"failures": checkpoint.failures}


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.5, 4, 16, 128, 512], help="MB of state")
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for megabytes in given.sizes:
        print(json.dumps(measure(megabytes, given.saves, given.device)), flush=True)


if __name__ == "__main__":
    main()

"""How long a training is held up by ModelCheckpoint with async_save, next to a copy of the state by torch.

Usage: python -m benchmarks.checkpoint [--sizes 1 16 128 512] [--saves 12] [--device cpu] [--threads 1]
Prints a line of JSON for each size: MB of parameters and Adam's state, the medians in ms, and their ratio.
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
from torch import Tensor, nn

import distsummary as ds

LAYERS = 8


class Timed(ds.ModelCheckpoint):
    """Notes how long each save holds up the training."""

    def __init__(self, directory: str) -> None:
        super().__init__("CKP", directory, ds.CheckpointConfig(1, keep_checkpoint_max=1, async_save=True))
        self.held_up_s: list[float] = []

    def on_train_step_end(self, run_context: ds.RunContext) -> None:
        """As usual, with a clock."""
        before = time.perf_counter()
        super().on_train_step_end(run_context)
        self.held_up_s.append(time.perf_counter() - before)
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

    copied_s: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Timed(directory)
        with ds.Run(callbacks=checkpoint, network=model, optimizer=optimizer) as run:
            for _ in run.steps(range(saves)):
                step()
                before = time.perf_counter()
                copy = state()
                copied_s.append(time.perf_counter() - before)
    held_up_ms, copied_ms = (1e3 * statistics.median(seconds) for seconds in (checkpoint.held_up_s, copied_s))
    return {
        "state_mb": round(sum(tensor.nbytes for tensor in copy) / 1e6, 1),
        "held_up_ms": round(held_up_ms, 2),
        "copy_ms": round(copied_ms, 2),
        "ratio": round(held_up_ms / copied_ms, 2),
        "failures": checkpoint.failures,
    }


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 16, 128, 512], help="MB of state")
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for megabytes in given.sizes:
        print(json.dumps(measure(megabytes, given.saves, given.device)), flush=True)


if __name__ == "__main__":
    main()

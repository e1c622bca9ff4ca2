"""Histograms of gradients, in two ways: `python examples/gradients.py runs/gradients`

By `ds.init(gradients=...)`, and by the trick of MindSpore's tutorial: an optimizer that records what it gets.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import distsummary as ds

CLIP = 0.5


class RecordingAdam(torch.optim.Adam):
    """Adam that records each gradient; MindSpore's tutorial does in `construct` what `step` does here."""

    def __init__(self, named_parameters: Iterable[tuple[str, Tensor]], **options: Any) -> None:
        named = list(named_parameters)
        super().__init__([parameter for _, parameter in named], **options)
        self.histogram_summary = ds.HistogramSummary()
        self.gradient_names = [f"{name}.gradient" for name, _ in named]

    def step(self, closure: Any = None) -> Any:
        """Record the gradients, then change the parameters."""
        parameters = self.param_groups[0]["params"]
        for name, parameter in zip(self.gradient_names, parameters, strict=True):
            if parameter.grad is not None:
                self.histogram_summary(name, parameter.grad)
        return super().step(closure)


def main(run_dir: str) -> None:
    """Fit a small network, whose gradients are clipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = RecordingAdam(model.named_parameters(), lr=0.02)
    inputs = torch.randn(64, 8)
    targets = inputs.square().sum(1, keepdim=True)
    with ds.init(run_dir, watch=model, optimizer=optimizer, gradients=".*") as run:
        for _ in run.steps(range(40)):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            unclipped = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            run.log({"loss": loss, "norms/gradient_unclipped": unclipped})
    print(f"loss {loss.item():.3f} after {run.step} steps")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/gradients")

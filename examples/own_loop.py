"""Your own loop in one process, with everything recorded: `python examples/own_loop.py runs/own`"""

import sys

import torch
from torch import nn

import distsummary as ds


def main(run_dir: str) -> None:
    """Learn which half of an image is brighter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    images = torch.rand(960, 1, 8, 8)
    labels = (images[..., :4].sum((1, 2, 3)) > images[..., 4:].sum((1, 2, 3))).long()
    batches = list(zip(images.split(32), labels.split(32), strict=True))
    with ds.init(run_dir, watch=model, optimizer=optimizer, collect_freq=10) as run:
        for _ in run.epochs(2):
            for x, y in run.steps(batches):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.log(loss=loss, lr=scheduler.get_last_lr()[0])
            with run.eval() as evaluation, torch.inference_mode():
                evaluation.log(accuracy=(model(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own")

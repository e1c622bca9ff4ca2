"""Your own loop in one process, with everything recorded: `python examples/own_loop.py runs/own`"""

import sys

import torch
from matplotlib.figure import Figure
from torch import nn

import distsummary as ds


def picture(confused: torch.Tensor) -> Figure:
    """The 2 x 2 confusion matrix as a figure of matplotlib, without pyplot's global state."""
    figure = Figure(figsize=(3, 3))
    axes = figure.add_subplot(xlabel="predicted", ylabel="true", xticks=[0, 1], yticks=[0, 1])
    axes.imshow(confused)
    for (row, column), count in zip(
        ((0, 0), (0, 1), (1, 0), (1, 1)), confused.flatten().tolist(), strict=True
    ):
        axes.text(column, row, str(count), ha="center", va="center", color="gray")
    return figure


def main(run_dir: str) -> None:
    """Learn which half of an image is brighter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    images = torch.rand(960, 1, 8, 8)
    labels = (images[..., :4].sum((1, 2, 3)) > images[..., 4:].sum((1, 2, 3))).long()
    batches = list(zip(images.split(32), labels.split(32), strict=True))
    config = {"optimizer": {"name": "Adam", "lr": 0.01}, "batch_size": 32, "hidden": [16]}
    with ds.init(
        run_dir,
        watch=model,
        optimizer=optimizer,
        config=config,
        histograms=".*",  # of all parameters; of the watched model is recorded what is named
        graph="modules",
        record=ds.Record(images=True),  # the first pictures of the batches
        on_nan="stop",
    ) as run:
        run.text("task", "Which half of an 8 x 8 image is **brighter**?")
        for _ in run.epochs(2):
            for x, y in run.steps(batches):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                run.log({"gradients/norm": norm}, loss=loss, lr=scheduler.get_last_lr()[0])
                if run.step % 10 == 0:
                    run.histogram("gradients/first", model[1].weight.grad)
            with run.eval() as evaluation, torch.inference_mode():
                predicted = model(images).argmax(1)
                evaluation.log(accuracy=(predicted == labels).float().mean())
            confused = torch.bincount(2 * labels + predicted, minlength=4).reshape(2, 2)
            run.tensor("confusion", confused)
            if not torch.equal(predicted, labels):
                run.image("wrong", images[predicted != labels][:8])  # side by side
            run.figure("confusion_matrix", picture(confused))
    print(run.health().events, "events in", run.dir)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own")

"""`distsummary demo`: train on real handwritten digits on several ranks, then draw the loss landscape."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import distsummary as ds
from distsummary.base.checks import check_int
from distsummary.base.columns import quoted
from distsummary.base.extras import extra, require
from distsummary.errors import DistSummaryError
from distsummary.format.own_tags import STEP_MS
from distsummary.landscapes.run.progress import progress_callback
from distsummary.launching.actor_listing import actor_lines
from distsummary.launching.launcher import connected
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from distsummary.runs.deals import deal_lines
from distsummary.runs.facts import facts
from distsummary.runs.show import fact_text
from distsummary.view.report import report as write_report

BATCH = 16
LEARNING_RATE = 0.05
TEST = 297
CHECKPOINT_EVERY = 6  # steps between the checkpoints of the training path
LANDSCAPE_SIZE = 31
MOST_WRONG = 8  # pictures of misread digits after each epoch
WIDTH = 120  # of lines that are printed
LINEAGE = ("network", "optimizer", "loss function", "learning rate", "batch size", "data.size", "final loss")
ABOUT = """# Handwritten digits
A CNN of two convolutions learns the 8 x 8 **digits** of scikit-learn.
`wrong digits` shows some that it misread.
"""


class DigitsNet(nn.Module):
    """A small CNN for images (N, 1, 8, 8) -> logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions, one pooling, one linear layer."""
        x = torch.relu(self.conv1(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: torch.Tensor = self.fc(x.flatten(1))
        return logits


def digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's 1,797 handwritten digits as (1, 8, 8) images in [0, 1]: 1,500 to train, 297 to test."""
    data = extra("the demo", "sklearn.datasets").load_digits()
    images = torch.tensor(data.images, dtype=torch.float32, device="cpu").unsqueeze(1) / 16
    labels = torch.tensor(data.target, device="cpu")
    return TensorDataset(images[:-TEST], labels[:-TEST]), TensorDataset(images[-TEST:], labels[-TEST:])


def train(run_dir: str, epochs: int) -> dict[str, float]:
    """An ordinary DDP loop with the calls that a user of distsummary adds; returns loss and accuracy."""
    torch.manual_seed(0)
    train_set, test_set = digits()
    sampler: DistributedSampler[Any] = DistributedSampler(train_set, seed=0)
    loader = DataLoader(train_set, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(DigitsNet())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    steps = epochs * len(loader)
    trajectory = {
        "intervals": [[1, *range(CHECKPOINT_EVERY, steps + 1, CHECKPOINT_EVERY)]],
        "num_samples": len(test_set),
    }
    with ds.init(
        run_dir,
        watch=model,
        optimizer=optimizer,
        loss_fn=criterion,
        histograms=".*",
        tensors="fc",
        graph="modules",
        collect_freq=5,
        # The digits are public: their pictures may be recorded.
        record=ds.Record(images=True, collect_landscape=trajectory),
        # The demo may be run again in its default directory.
        on_existing="attempt",
        # `report` says where the run is.
        quiet=True,
        config={
            "epochs": epochs,
            "batch_size": BATCH,
            "optimizer": {"name": "SGD", "lr": LEARNING_RATE, "momentum": 0.9},
        },
    ) as run:
        images, labels = test_set.tensors
        # A text or picture that is the same on all ranks is needed once.
        if run.rank == 0:
            run.text("about", ABOUT)
        for epoch in run.epochs(epochs):
            sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
            if run.rank == 0:
                print(f"epoch {epoch + 1}/{epochs}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
            with run.eval() as evaluation, torch.inference_mode():
                logits = model.module(images)
                is_right = logits.argmax(1) == labels
                accuracy = is_right.float().mean().item()
                evaluation.log(loss=criterion(logits, labels), accuracy=accuracy)
            if run.rank == 0 and not is_right.all():
                run.image("wrong digits", images[~is_right][:MOST_WRONG])
    return {"loss": loss.item(), "accuracy": accuracy}


def landscape_of_digits() -> tuple[nn.Module, nn.Module, list[Any]]:
    """Model, loss and data for `distsummary landscape RUN distsummary.demo:landscape_of_digits`."""
    _, test_set = digits()
    return DigitsNet(), nn.CrossEntropyLoss(), list(DataLoader(test_set, batch_size=TEST))


def run_demo(run_dir: str, *, ranks: int = 4, epochs: int = 3, as_json: bool = False) -> dict[str, Any]:
    """Train, evaluate, merge, draw and print a report; `as_json` prints JSON, and the progress to stderr."""
    ranks = check_int("ranks", ranks, low=1)
    epochs = check_int("epochs", epochs, low=1)
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    begun = time.monotonic()
    directory = RunDir(run_dir).create()
    # A missing package is reported now, before Ray starts.
    require("the demo", "sklearn", "matplotlib")
    say(f"1/3 starting Ray and {ranks} ranks")
    with connected(ranks, {"CPU": 1}, "local"):
        results = ds.launch(partial(train, str(directory.base), epochs), ranks=ranks)
        say("2/3 trained. Who recorded what, and the one run that was made of it")
        mission = mission_of(directory)
        say("\n".join(f"    {line}" for lines in mission.values() for line in lines))
        say("    loss landscapes of what was trained, by workers of the cluster")
        model, criterion, batches = landscape_of_digits()
        grids = ds.landscape(
            model,
            criterion,
            batches,
            around=directory,
            directions=["pca", "random"],
            plane=ds.Plane(size=LANDSCAPE_SIZE),
            run_dir=directory,
            progress=progress_callback(True, plain=lambda text: say(f"    {text}")) or False,
        )
    page, why_not = directory.base.parent / f"{directory.base.name}.html", ""
    try:
        write_report(directory.base, out=page)
    except DistSummaryError as error:
        # The front end is not built: the run is complete, but without its page.
        why_not = str(error)
    say("3/3 done")
    summary = {
        "run_dir": str(directory.base),
        "report": "" if why_not else str(page),
        "ranks": ranks,
        "loss": float(np.mean([result["loss"] for result in results])),
        "accuracy": results[0]["accuracy"],
        "step_ms": step_times(directory),
        "landscapes": sorted(grids),
        "workers": max(len(grid.worker_seconds) for grid in grids.values()),
        "mission": mission,
        "seconds": round(time.monotonic() - begun, 1),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        say(report(directory, summary, why_not))
    return summary


def mission_of(run_dir: RunDir) -> dict[str, list[str]]:
    """What the job did, in lines: its processes and actors, the deals, the merged lineage."""
    run, state = ds.open_run(run_dir), read_run(run_dir)
    known = facts(run)
    lineage = [f"{name} {fact_text(known[name])}" for name in LINEAGE if name in known]
    return {
        "actors": actor_lines(run_dir, state.newest.ranks if state.newest else ()),
        "deals": [line for head, *ranks in deal_lines(run.deals) for line in (head, *_indented(ranks))],
        "lineage": [f"lineage of {known['ranks']} rank(s), merged", *_indented([", ".join(lineage)])],
    }


def _indented(texts: list[str]) -> list[str]:
    return [
        line for text in texts for line in wrap(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 9)
    ]


def step_times(run_dir: RunDir) -> dict[int, float]:
    """Rank -> the median duration (ms) of a step in the newest attempt, read from the rank's files."""
    table = ds.open_run(run_dir).scalars(STEP_MS)
    # Rows of earlier attempts get the rank -1, which is left out below.
    ranks = np.where(table["attempt"] == table["attempt"].max(), table["rank"], -1)
    return {
        rank: float(np.median(table["value"][ranks == rank])) for rank in sorted({*ranks.tolist()} - {-1})
    }


def report(run_dir: RunDir, summary: dict[str, Any], why_not: str) -> str:
    """The text that the demo prints at its end; `why_not`: why there is no page, "" if there is one."""
    here = Path.cwd()
    base, page = (
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in (run_dir.base, Path(summary["report"]))
    )
    times = "\n".join(f"    rank {rank}: {ms:6.2f} ms" for rank, ms in summary["step_ms"].items())
    merged = f"""
    {base}    the merged run: mean, min, median, max and worst rank of every step
    {base}/rank_00000 ...    the files of each rank"""
    alone = f"""
    {base}    the files of the rank"""
    return f"""
Run dir     {base}    ({summary["seconds"]} s)
Loss        {summary["loss"]:.4f} (last step, mean of {summary["ranks"]} rank(s))
Accuracy    {100 * summary["accuracy"]:.1f} % of {TEST} test digits
Step time   (median)
{times}
Files{merged if summary["ranks"] > 1 else alone}
    {base}/landscape    the loss landscapes: events, .npz, .png
    {base}/ckpt_dir    the checkpoints of the training path
Next
    tensorboard --logdir {quoted(base.parent)}
    mindinsight start --summary-base-dir {quoted(base)} --port 8080
    distsummary landscape {quoted(base)} distsummary.demo:landscape_of_digits --size 51
    distsummary serve {quoted(base.parent)}
Report      {f"not made: {why_not}" if why_not else f"{page}    (one file: open it in a browser, or mail it)"}
"""

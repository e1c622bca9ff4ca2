"""In every viewer, the tags of the user come before all that distsummary adds to a run."""

import re
from collections.abc import Callable
from functools import cmp_to_key
from pathlib import Path

import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.events.reader import read_directory
from distsummary.format.own_tags import is_own
from distsummary.rundir.run_dir import RunDir
from distsummary.thor import THOR
from tests.docs.documents import ROOT

STEPS, RANKS = 40, 2
LOGGED = ("loss", "train/loss", "val/loss", "accuracy", "acc", "lr", "learning_rate", "zloss", "Zeta", "z_9")
NUMBER = re.compile(r"\d+(\.\d*)?([eE]([+-]\d*|\d+)?)?")


def mindinsight(tags: list[str]) -> list[str]:
    """As MindInsight's server sorts what it lists, and TensorBoard the metrics of HPARAMS: by code points."""
    return sorted(tags)


def tensorboard(breaks: str) -> Callable[[list[str]], list[str]]:
    """As TensorBoard's pages sort tags: numbers by value, "/" and other breaks before all else."""

    def compare(one: str, other: str) -> int:
        at, there = 0, 0
        while at < len(one) and there < len(other):
            numbers = NUMBER.match(one, at), NUMBER.match(other, there)
            if all(numbers):
                first, second = (float(re.match(r"[\d.]*", found[0])[0]) for found in numbers)
                if first != second:
                    return -1 if first < second else 1
                at, there = (found.end() for found in numbers)
                continue
            mine, theirs = one[at], other[there]
            is_break = [found.isdigit() or found in breaks for found in (mine, theirs)]
            if is_break[0] != is_break[1]:
                return -1 if is_break[0] else 1
            if not is_break[0] and mine != theirs:
                return -1 if mine < theirs else 1
            at, there = at + 1, there + 1
        return (at < len(one)) - (there < len(other))

    return lambda tags: sorted(tags, key=cmp_to_key(compare))


VIEWERS = {"MindInsight": mindinsight, "Time Series": tensorboard("/"), "Scalars": tensorboard("/_")}


def train(path: Path, rank: int) -> None:
    """A training that records all that it can; the second rank has a loss that is not finite."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = THOR(net, lr=0.05, damping=0.1, batch_size=8, frequency=10)
    data = torch.utils.data.DataLoader(torch.randn(8 * STEPS, 6), batch_size=8)
    with ds.init(
        path, rank=rank, world_size=RANKS, aggregate=False, quiet=True, watch=net, optimizer=optimizer,
        norms=True, gradients=".*", histograms=".*", tensors=".*", graph="modules", checksums=1,
        config={"lr": 1}, on_nan="ignore",
    ) as run:  # fmt: skip
        for step, x in enumerate(run.steps(data)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), torch.arange(8) % 3)
            loss.backward()
            optimizer.step()
            number = float("nan") if rank and step == STEPS - 2 else loss.item()
            run.log(dict.fromkeys(LOGGED, number))
        with run.eval() as evaluation:
            evaluation.log(accuracy=0.5)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The directories of a run of several ranks -> their tags, but for those of TensorBoard's pages."""
    run = RunDir(tmp_path_factory.mktemp("run"))
    for rank in range(RANKS):
        train(run.base, rank)
    ds.merge_run(run.base)
    found = {}
    for place in (run.base, *run.rank_dirs().values()):
        events = [
            event for dialect in ("mindspore", "tensorboard") for event in read_directory(place, dialect)
        ]
        found[place.name] = sorted(
            {
                v.tag
                for e in events
                for v in e.values
                if v.tag and v.plugin not in ("hparams", "custom_scalars")
            }
        )
    return found


@pytest.mark.parametrize("viewer", VIEWERS)
def test_the_tags_of_the_user_come_first(recorded: dict[str, list[str]], viewer: str) -> None:
    for place, tags in recorded.items():
        mine = {tag for tag in tags if not is_own(tag)}
        assert mine >= {*LOGGED, "eval/accuracy"}, place
        assert {*VIEWERS[viewer](tags)[: len(mine)]} == mine, place


def test_what_is_not_the_users_has_the_prefix_of_its_kind(recorded: dict[str, list[str]]) -> None:
    every = {tag for tags in recorded.values() for tag in tags}
    assert {tag for tag in every if not is_own(tag)} == {
        *LOGGED, "eval/accuracy", *(f"{at}.{name}/auto" for at in (0, 2) for name in ("weight", "bias")),
    }  # fmt: skip
    kinds = {tag.split("/")[0] for tag in every if is_own(tag)}
    named = re.findall(r"`(zz_\w+)", (ROOT / "docs" / "format.md").read_text())
    assert kinds == {*named} - {"zz_amp"}  # of scripts without a line of distsummary alone

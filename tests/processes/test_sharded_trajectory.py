"""A training with FSDP2 on two processes: the trajectory and the histograms of which each rank has shards."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import distsummary as ds
from distsummary.checkpoints.trajectory import read
from distsummary.events.reader import read_directory
from distsummary.format.histogram import count_histogram
from distsummary.format.records import DIALECTS
from distsummary.rundir.run_dir import RunDir
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

STEPS = (1, 2, 3, 4, 5)

# A rank, or the whole training (RANK is not set). All ranks see the same batch, so that the mean of their
# gradients is, bit for bit, that of the one process.
TRAIN = """
import os, sys
import numpy as np
import torch
import distsummary as ds

run_dir, store, gathered = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
)
rank = int(os.environ.get("RANK", -1))
if rank >= 0:
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    fully_shard(model)

def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().numpy().copy()

optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
inputs, targets = torch.randn(32, 6), torch.randint(0, 3, (32,))
kept = {}
intervals = [[1, 2, 3, 4, 5]] + ([[5, 6, 7]] if rank >= 0 else [])
options = {"collect_landscape": {"intervals": intervals}, "gradients": ".*"}
collector = ds.SummaryCollector(run_dir, **options)
with ds.Run(callbacks=collector, network=model, optimizer=optimizer) as run:
    for x in run.steps([inputs] * 6):
        loss = torch.nn.functional.cross_entropy(model(x), targets)
        optimizer.zero_grad()
        loss.backward()
        kept |= {f"{run.step}/gradient {name}": whole(p.grad) for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        kept |= {f"{run.step} {name}": whole(tensor) for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            model.eval()(x)
            model.train()
        if rank >= 0 and run.step < 6:
            model.reshard()
if rank >= 0:
    (reason,) = collector.health().errors
    assert "0.weight is whole, and was in shards when the training began" in reason, reason
if rank <= 0:
    np.savez(gathered, **kept)
if rank >= 0:
    torch.distributed.destroy_process_group()
"""


def start(tmp_path: Path, name: str, rank: int | None = None) -> subprocess.Popen[bytes]:
    place = (
        {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    )
    arguments = [str(tmp_path / part) for part in (name, "store", f"{name}.npz")]
    return subprocess.Popen([sys.executable, "-c", TRAIN, *arguments], env={**os.environ, **place})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run of two ranks, and that of one process with the same numbers."""
    path = tmp_path_factory.mktemp("runs")
    ranks = [start(path, "sharded", rank) for rank in range(2)]
    assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
    assert start(path, "whole").wait(PATIENCE_S) == 0
    return path / "sharded", path / "whole"


def gathered(run: Path, number: int | str) -> dict[str, np.ndarray]:
    """What the training itself put together at the end of a step, or "1/gradient": in that step."""
    with np.load(f"{run}.npz") as arrays:
        return {name.split(" ")[1]: arrays[name] for name in arrays if name.split(" ")[0] == str(number)}


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    )


def test_each_step_is_the_gathered_state_bit_for_bit(runs):
    sharded, whole = runs
    trajectory = read(RunDir(sharded).ckpt_dir)
    assert (trajectory.numbers, trajectory.missing) == (STEPS, (6, 7)), "6 was gathered, 7 never reached"
    for number in STEPS:
        assert [file.header.rank for file in trajectory.shards(number)] == [0, 1]
        state, expected = trajectory.open(number), gathered(sharded, number)
        assert state.keys() == expected.keys()
        for name, array in expected.items():
            assert state[name].dtype == array.dtype
            np.testing.assert_array_equal(state[name], array)
        assert all(np.array_equal(array, gathered(whole, number)[name]) for name, array in expected.items())


def test_each_rank_wrote_its_own_shards_and_rank_0_what_is_whole(runs):
    files = read(RunDir(runs[0]).ckpt_dir).shards(3)
    split = {name for name, _ in network().named_parameters()}
    assert files[1].header.slices.keys() == split
    assert files[0].header.slices.keys() == split | {name for name, _ in network().named_buffers()}
    assert [file.arrays["0.weight"].shape for file in files] == [(3, 6), (2, 6)]


def test_the_landscape_of_the_run_is_that_of_a_run_of_one_process(runs):
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((16, 6), np.float32))
    batches = [(inputs, torch.from_numpy(rng.integers(0, 3, 16)))]
    grids = [
        ds.landscape(
            network(), torch.nn.functional.cross_entropy, batches, around=run, plane=ds.Plane(size=5),
            compute=ds.Compute(workers=0),
        )
        for run in runs
    ]  # fmt: skip
    sharded, whole = grids
    assert sharded.numbers == STEPS
    for what in ("z", "path", "path_loss", "true_loss", "residuals", "explained_variance"):
        np.testing.assert_array_equal(getattr(sharded, what), getattr(whole, what))


@pytest.mark.parametrize(("tag_of", "number"), [("{}/auto", 5), ("zz_gradient/{}", 6)])
def test_the_merged_histogram_of_what_is_sharded_is_that_of_the_whole_bucket_for_bucket(runs, tag_of, number):
    assert ds.merge_run(runs[0]).sharded == 0
    arrays = gathered(runs[0], "1/gradient" if "gradient" in tag_of else 1)
    expected = {tag_of.format(name): count_histogram(array, fixed=True) for name, array in arrays.items()}
    for dialect in DIALECTS:
        events = [event for event in read_directory(runs[0], dialect) if event.step == 1]
        histograms = {v.tag: v for event in events for v in event.values if v.plugin == "histogram"}
        found = {tag: value for tag, value in histograms.items() if tag in expected}
        assert len(found) == number  # by default those of the first five parameters, and of all gradients
        for tag, value in found.items():
            whole, counted = expected[tag], value.data
            assert value.shard is None
            assert counted.counts.tolist() == whole.counts.tolist()
            for name in ("count", "min", "max"):
                assert getattr(counted, name) == getattr(whole, name)
            assert counted.sum == pytest.approx(whole.sum, rel=1e-12)
            inner = (
                whole.left[1:] if dialect == "tensorboard" else whole.left
            )  # its outer edges are min and max
            np.testing.assert_allclose(counted.left[-len(inner) :] if len(inner) else [], inner, rtol=1e-12)

"""Model on two processes, with DDP and with FSDP2: unequal evaluations, and an overflow on one rank only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from distsummary.events.reader import read_values
from tests.patience import PATIENCE_S

TRAIN = """
import json, math, os, sys
import torch
import distsummary as ds
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
run_dir, store = sys.argv[1:]
rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
reported = {}
for kind in ("ddp", "fsdp2"):
    torch.manual_seed(0)
    data = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(8)]
    inner = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    network = DistributedDataParallel(inner) if kind == "ddp" else fully_shard(inner)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    manager = ds.DynamicLossScaleManager(64)
    precision = {"amp_level": "O2", "loss_scale_manager": manager}
    model = ds.Model(network, nn.CrossEntropyLoss(), optimizer, metrics={"loss"}, **precision)
    callbacks = [] if kind == "ddp" else [ds.SummaryCollector(run_dir, collect_freq=2)]
    # BatchNorm's buffers would be exchanged in a forward of DDP: the ranks have 1 and 3 batches to evaluate
    model.fit(2, data[rank::2], data[: 1 + 2 * rank], callbacks=callbacks)
    scales = [manager.get_loss_scale()]
    weights = [inner[0].weight, *([] if kind == "ddp" else [inner[3].weight])]
    split = [hasattr(weight, "full_tensor") for weight in weights]
    whole = [getattr(weight, "full_tensor", lambda w=weight: w)().detach().clone() for weight in weights]
    model.train(1, [(torch.full((4, 3), math.inf if rank else 1.0), torch.zeros(4, dtype=torch.long))])
    scales.append(manager.get_loss_scale())
    now = [getattr(weight, "full_tensor", lambda w=weight: w)() for weight in weights]
    same = [torch.equal(one, other) for one, other in zip(whole, now, strict=True)]
    reported[kind] = {"scales": scales, "split": split, "same": same, "weight": whole[0].tolist()}
torch.distributed.destroy_process_group()
print(json.dumps(reported))
"""


@pytest.mark.long
def test_two_ranks_train_evaluate_unequal_data_and_drop_the_same_step(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", TRAIN, str(tmp_path / "run"), str(tmp_path / "store")]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    ranks = [
        subprocess.Popen(
            arguments, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    for kind in ("ddp", "fsdp2"):
        assert first[kind] == second[kind]
        assert first[kind]["scales"] == [64.0, 32.0]
        assert first[kind]["same"] == [True] * len(first[kind]["same"])
    assert first["fsdp2"]["split"] == [True, True]  # also after an evaluation
    torch.testing.assert_close(
        torch.tensor(first["fsdp2"]["weight"]), torch.tensor(first["ddp"]["weight"]), rtol=1e-4, atol=1e-6
    )
    merged = {value.tag: value.step for value in read_values(tmp_path / "run")}
    assert merged["loss/auto"] == 8
    assert merged["eval/loss"] == 8

"""THOR on four ranks of gloo: shared factors, averaged inverses, and ranks that differ."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distsummary.thor.torch_refresh import deal
from tests.docs.documents import ROOT
from tests.patience import PATIENCE_S


def ranks(case: str, store: Path, world: int = 4) -> list[Any]:
    """What each rank of a case printed."""
    command = [sys.executable, "-m", "tests.processes.thor_ranks", case]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(store)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [one.communicate(timeout=PATIENCE_S)[0] for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one.returncode for one in started] == [0] * world
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.long
@pytest.mark.parametrize("case", ["equals", "accumulates"])
def test_four_ranks_with_a_quarter_of_the_batch_are_one_rank_with_all_of_it(case: str, tmp_path: Path):
    for difference, moved, layers in ranks(case, tmp_path / "store"):
        assert difference < 1e-6
        assert moved > 0.1
        assert layers == 4


@pytest.mark.long
def test_averaged_inverses_are_the_mean_of_those_of_the_ranks(tmp_path: Path) -> None:
    for differences in ranks("inverses", tmp_path / "store"):
        assert max(differences) < 1e-12


@pytest.mark.long
def test_what_one_rank_cannot_observe_is_decided_alike_on_all(tmp_path: Path) -> None:
    by_rank = ranks("odd", tmp_path / "store", 2)
    assert by_rank[0] == by_rank[1]
    missing, nan, sizes = by_rank[0]
    assert missing == [["deep", "words"], ["conv", "out"]]
    assert nan == [[], ["conv", "deep", "out", "words"]]
    assert sizes == nan


@pytest.mark.long
def test_sharded_layers_are_refused_and_sharded_norms_trained(tmp_path: Path) -> None:
    for by_layers, flattened, moved in ranks("fsdp", tmp_path / "store", 2):
        assert "leave these layers out of fully_shard" in by_layers
        assert "use DistributedDataParallel" in flattened
        assert moved


def test_layers_are_dealt_by_cost() -> None:
    assert sorted(deal([5] * 8, 4)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert deal([1, 9, 2, 3, 3], 2) == [1, 0, 1, 1, 1]
    assert deal([], 3) == []

"""THOR on four ranks of gloo: shared factors, averaged inverses, and ranks that differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from distsummary.thor.torch_refresh import deal
from tests import forked
from tests.processes import thor_ranks

pytestmark = pytest.mark.usefixtures("fork_server")


def ranks(case: str, place: Path, world: int = 4) -> list[Any]:
    """What each rank of a case printed."""
    given = case, world, str(place / "store")
    with forked.ranks(world, thor_ranks.main, *given, output=place / "printed") as started:
        forked.wait(started)
    return [json.loads((place / f"printed.{rank}").read_text()) for rank in range(world)]


@pytest.mark.long
@pytest.mark.parametrize("case", ["equals", "accumulates"])
def test_four_ranks_with_a_quarter_of_the_batch_are_one_rank_with_all_of_it(case: str, tmp_path: Path):
    for difference, moved, layers in ranks(case, tmp_path):
        assert difference < 1e-6
        assert moved > 0.1
        assert layers == 4


@pytest.mark.long
def test_averaged_inverses_are_the_mean_of_those_of_the_ranks(tmp_path: Path) -> None:
    for differences in ranks("inverses", tmp_path):
        assert max(differences) < 1e-12


@pytest.mark.long
def test_what_one_rank_cannot_observe_is_decided_alike_on_all(tmp_path: Path) -> None:
    by_rank = ranks("odd", tmp_path, 2)
    assert by_rank[0] == by_rank[1]
    missing, nan, sizes = by_rank[0]
    assert missing == [["deep", "words"], ["conv", "out"]]
    assert nan == [[], ["conv", "deep", "out", "words"]]
    assert sizes == nan


@pytest.mark.long
def test_sharded_layers_are_refused_and_sharded_norms_trained(tmp_path: Path) -> None:
    for by_layers, flattened, moved in ranks("fsdp", tmp_path, 2):
        assert "leave these layers out of fully_shard" in by_layers
        assert "use DistributedDataParallel" in flattened
        assert moved


def test_layers_are_dealt_by_cost() -> None:
    assert sorted(deal([5] * 8, 4)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert deal([1, 9, 2, 3, 3], 2) == [1, 0, 1, 1, 1]
    assert deal([], 3) == []

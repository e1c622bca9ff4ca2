"""The norms of four ranks, put together, are those of the whole parameters, and need no collective."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.events.reader import read_directory
from distsummary.format import mindspore_graph
from tests import forked
from tests.processes import norm_ranks
from tests.processes.norm_ranks import RANKS, STEPS

pytestmark = pytest.mark.long

# FSDP2 alone and TP alone have no more than these.
RUNS = ("ddp", "hsdp", "both", "sequence")
PENDING_SUM = "norms: the gradient of '0.weight' and 1 "
TOLERANCE = 5e-6  # of norms


@pytest.fixture(scope="module")
def reported(fork_server, tmp_path_factory: pytest.TempPathFactory):
    """What each rank reports, and where the runs are."""
    directory = tmp_path_factory.mktemp("norms")
    place, output = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "x", "MASTER_PORT": "1"}, directory / "output"
    with forked.ranks(RANKS, norm_ranks.main, str(directory), *RUNS, output=output, **place) as ranks:
        forked.wait(ranks)
    return directory, [json.loads(Path(f"{output}.{rank}").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("run", RUNS)
def test_merged_norms_are_exact_and_need_no_collective(reported, run: str) -> None:
    directory, answers = reported
    for answer in answers:
        without, found = answer[run]["collectives"]
        assert found == without > 0
        assert not answer[run]["dropped"]
        assert [reason[:40] for reason in answer[run]["errors"]] == [PENDING_SUM] * (run == "sequence")
    ds.merge_run(directory / run)
    events = [event for event in read_directory(directory / run) if event.values]
    merged = [(e.step, value.data) for e in events for value in e.values if value.plugin == "norms"]
    assert [step for step, _ in merged] == list(range(1, STEPS + 1))
    close = partial(pytest.approx, rel=2 * TOLERANCE)  # of squares
    updated = set()
    for (_, norms), expected in zip(merged, answers[0][run]["steps"], strict=True):
        assert norms.table.names == tuple(expected)
        for place, (name, (weight, gradient, update, largest)) in enumerate(expected.items()):
            assert norms.weight_sums[place] == close(weight)
            is_pending_sum = run == "sequence" and name.startswith("0.")
            assert norms.has_gradient[place] == (not is_pending_sum)
            if not is_pending_sum:
                assert norms.gradient_sums[place] == close(gradient)
            if not np.isnan(norms.update_sums[place]):
                updated.add(name)
                assert norms.update_sums[place] == pytest.approx(update, rel=1e-5)
                assert norms.update_max[place] == pytest.approx(largest, rel=1e-5)
        assert not norms.weight_nonfinite.any()
        assert not norms.gradient_nonfinite.any()
    assert updated == set(answers[0][run]["steps"][0])


@pytest.mark.parametrize("run", RUNS)
def test_one_rank_draws_the_graph_of_a_distributed_model(reported, run: str) -> None:
    directory, _ = reported
    drawn = [
        [value.data for event in read_directory(rank) for value in event.values if value.plugin == "graph"]
        for rank in sorted((directory / run).glob("rank_*"))
    ]
    assert [len(graphs) for graphs in drawn] == [1, 0, 0, 0]
    modules = [
        node for node in mindspore_graph.decode(drawn[0][0]).nodes if node.op not in ("Input", "Output")
    ]
    assert [node.name.rpartition("/")[2] for node in modules] == ["0", "1", "2", "3"]
    assert sum(node.parameters for node in modules) == 135  # of the whole model, however it is split

"""Four ranks of split models wait for each other in forward; the flight recorder tells which one is late."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from benchmarks.slow_rank import RANKS
from distsummary.training.arrivals import FIRST
from tests.patience import PATIENCE_S
from tests.processes.arrival_ranks import LAST, LATE, SLEEP_S

pytestmark = pytest.mark.long
KINDS = ("fsdp2", "tp")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("arrivals")
    place = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "x", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.processes.arrival_ranks", str(directory), *KINDS]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}) for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(timeout=PATIENCE_S) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_that_is_blocked_begins_its_collectives_late(directory: Path, kind: str) -> None:
    run = ds.open_run(directory / kind)
    steps, ranks, counts = run.matrix("perf/phase/arrivals")
    assert (steps.tolist(), ranks.tolist()) == ([FIRST], [*range(RANKS)])
    assert len(set(counts[0].tolist())) == 1  # so that they are compared
    late = {
        phase: run.matrix(f"perf/phase/{phase}/arrival_ms")[2][0].astype(float)
        for phase in ("forward", "backward")
    }
    forward = late["forward"] - np.median(late["forward"])
    assert forward.argmax() == LATE
    assert forward[LATE] == pytest.approx(1e3 * SLEEP_S, rel=0.5)
    assert np.delete(forward, LATE).max() < 0.3 * 1e3 * SLEEP_S
    # all wait as long for it as it is blocked, so that this tells nothing
    waited = run.matrix("perf/phase/forward/wait_ms")[2][FIRST // 2 :]
    assert np.median(waited, axis=0).min() > 0.5 * 1e3 * SLEEP_S


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_collective_is_begun_blocked_time_is_the_ranks_own(directory: Path, kind: str) -> None:
    run = ds.open_run(directory / kind)
    steps, ranks, blocked = run.matrix("perf/phase/optimizer/blocked_ms")
    assert (steps.tolist(), ranks.tolist()) == ([FIRST + 1, FIRST + 2], [*range(RANKS)])
    assert blocked[:, LAST].min() > 0.9 * 1e3 * SLEEP_S

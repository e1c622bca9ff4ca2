"""Ranks that wait for each other inside of phases: only what blocks a rank alone is its own."""

from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from tests import forked
from tests.processes import waiting_ranks
from tests.processes.waiting_ranks import KINDS, LATE, LATE_S, RANKS, SLEEPY, SLEEPY_S

pytestmark = pytest.mark.long
SKIPPED = 5  # steps in which caches are filled
PHASES = ("data", "forward", "backward", "optimizer", "rest")


@pytest.fixture(scope="module")
def directory(fork_server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("waiting")
    place = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    with forked.ranks(RANKS, waiting_ranks.main, str(directory), **place) as ranks:
        forked.wait(ranks)
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_blocks_a_rank_alone_is_its_own(directory: Path, kind: str) -> None:
    run = ds.open_run(directory / kind)
    blocked_s = {
        phase: 1e-3 * np.median(run.matrix(f"zz_perf/phase/{phase}/blocked_ms")[2][SKIPPED:], axis=0)
        for phase in (*PHASES, "wait")
    }
    for phase in PHASES:
        for rank in range(RANKS):
            slept_s = {("data", LATE): LATE_S, ("forward", SLEEPY): SLEEPY_S}.get((phase, rank), 0.0)
            assert blocked_s[phase][rank] >= 0.9 * slept_s
            assert blocked_s[phase][rank] <= slept_s + 0.3 * LATE_S, (phase, rank)
    waited_s = blocked_s["wait"]
    assert waited_s.argmin() == SLEEPY  # the others wait for it
    assert waited_s[2] >= 0.9 * SLEEPY_S

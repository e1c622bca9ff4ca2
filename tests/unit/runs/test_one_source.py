"""A lost rank has one sentence, one number and one step, whoever shows it."""

from pathlib import Path

import pytest

import distsummary as ds
from distsummary.cli.why import why
from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.ends import attempt_verdicts
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.sentence import sentence, weight
from distsummary.diagnosis.verdict import FAILED, HANG, LOST, Verdict
from distsummary.rundir.attempts import note_deaths
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.runs.show import overview
from distsummary.runs.status import read_status
from tests.unit.runs.recording import record

BROKEN = "RuntimeError: Connection closed by peer [10.0.0.1]:9098"
KILLED = "killed by SIGKILL"


@pytest.mark.parametrize("is_reported", [True, False])
def test_every_reader_says_the_same_of_a_lost_rank(tmp_path: Path, is_reported: bool) -> None:
    """Ranks 0 and 2 came to step 9, rank 1 was killed after step 7 and broke their connections."""
    run_dir = RunDir(tmp_path).create()
    coordinator = LocalCoordinator(run_dir)
    ranks = [Topology(rank=rank, world_size=3, incarnation="launch-1") for rank in range(3)]
    for topology in ranks:
        coordinator.register(topology)
    run_id = run_dir.read_manifest()["run_id"]
    for rank, topology in enumerate(ranks):
        record(tmp_path, rank=rank, ranks=3, steps=range(1, 8 if rank == 1 else 10), run_id=run_id)
        coordinator.beat(topology, 0, Heartbeat(step=3))
        if rank != 1:
            coordinator.leave(topology, 0, {"failed": 1, "error": BROKEN, "step": 9})
    note_deaths(run_dir, "train", 0, {1: KILLED}, state="lost")
    status = read_status(tmp_path)
    assert status.run.newest is not None
    [verdict] = [one for one in attempt_verdicts(status.run.newest, is_over=True) if one.cause == LOST]
    if is_reported:
        Alerts(run_dir).report(0, verdict)
        assert [one["since_step"] for one in read_alerts(run_dir)] == [7]
    assert sentence(verdict) == f"Rank 1 was lost at step 7: {KILLED}."
    said = f"Rank 1 was lost at step 7: {KILLED}; ranks 0 and 2 waited until the connection broke."
    assert [sentence(one) for one in read_status(tmp_path).stuck] == [said]
    assert [one.since_step for one in read_status(tmp_path).findings] == [7]
    assert [sentence(one) for _, one in why(tmp_path).verdicts] == [said]
    run = ds.open_run(tmp_path)
    assert [row.sentence for row in run.verdicts] == [said]
    shown = overview(run)
    assert (shown.level, "rank 1 was lost at step 7" in shown.findings) == ("error", True)


def test_what_ended_a_training_comes_before_what_followed_from_it() -> None:
    def verdict(cause: str, rank: int) -> Verdict:
        return Verdict(rank=rank, cause=cause, since_step=5, until_step=None, evidence="x", reported_step=5)

    found = [verdict(FAILED, 0), verdict("data", 3), verdict(LOST, 1), verdict(HANG, 2)]
    assert [one.cause for one in sorted(found, key=weight)] == [HANG, LOST, FAILED, "data"]

"""A lost rank has one sentence, number and step, and a tag one value of the run, whoever shows it."""

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
from distsummary.runs.compare import curves_of
from distsummary.runs.show import overview
from distsummary.runs.status import read_status
from distsummary.view.page import page
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


@pytest.mark.parametrize(
    ("across", "value", "words"),
    [(None, 4.0, "mean"), ("sum", 12.0, "sum"), ("min", 1.0, "min"), ("max", 9.0, "max"),
     ("mean:tokens", 6.25, "tokens-weighted mean")],
)  # fmt: skip
def test_every_reader_shows_the_merged_run_as_the_value_of_the_run(tmp_path, across, value, words):
    """Three ranks whose median is 2."""
    define = {"loss": {"across": across, "unit": "nats"}} if across else {"loss": {"unit": "nats"}}
    for rank, (loss, tokens) in enumerate([(1.0, 1.0), (2.0, 2.0), (9.0, 5.0)]):
        with ds.init(
            tmp_path, rank=rank, world_size=3, aggregate=False, quiet=True, define=define
        ) as training:
            for step in training.steps(range(1, 4)):
                training.log(loss=loss if step > 1 else 10 * loss, tokens=tokens)
    ds.merge_run(tmp_path)
    run = ds.open_run(tmp_path)
    assert read_status(tmp_path).loss == value
    assert f"loss {value:.4g}" in run._repr_html_()
    assert [one.last for one in overview(run).curves if one.tag == "loss"] == [value]
    assert ds.open_runs(tmp_path)["loss"].tolist() == [value]
    assert curves_of(run)[1]["loss"].values[-1] == value
    shown = page(run)
    loss = shown["answer"]["loss"]
    assert (loss["last"], loss["best"], loss["best_step"], loss["of"]) == (value, value, 2, words)
    assert loss["unit"] == "nats"
    [curve] = [one for one in shown["curves"] if one["tag"] == "loss"]
    assert (curve["merged"]["values"][-1], curve["across"]) == (value, words)

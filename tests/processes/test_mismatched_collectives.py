"""Which of three gloo ranks did another collective than the others, live and after their end."""

import json
import time
from pathlib import Path

import pytest

from distsummary.cli.main import main
from tests import forked
from tests.patience import PATIENCE_S
from tests.processes import mismatched_ranks
from tests.processes.mismatched_ranks import AT, RANKS

# One rank for each kind of difference; `benchmarks.zoo hangs` has every rank, in more trainings.
CASES = [("skip", 2), ("block", 0), ("size", 0), ("op", 1), ("root", 2), ("uneven", 1)]
WHAT = {  # of the evidence
    "skip": "it began all_reduce of 4,160 elements as collective",
    "block": "it has not begun all_reduce of 1 element",
    "size": "it began all_reduce of 9 elements as collective",
    "op": "it began broadcast of 1 element",
    "root": "it began broadcast of 1 element (root: rank 0) as collective",
    "uneven": "it has ended its training after step",
}


def hang_of(run_dir: Path, until: float) -> dict[str, object]:
    """The first alert about a hang, as soon as there is one."""
    path = run_dir / "alerts.jsonl"
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        for alert in map(json.loads, lines):
            if alert["cause"] == "hang":
                return alert
        assert time.monotonic() < until, lines
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(("mode", "odd"), CASES)
def test_the_odd_rank_is_named_with_its_line_and_not_the_one_that_crashes_of_it(tmp_path, capsys, mode, odd):
    run_dir = tmp_path / "run"
    with forked.ranks(RANKS, mismatched_ranks.main, str(run_dir), mode, odd) as training:
        alert = hang_of(run_dir, time.monotonic() + PATIENCE_S)
        for rank in training:
            rank.terminate()  # as one ends a job that hangs
        for rank in training:
            rank.join(PATIENCE_S)
    assert (alert["rank"], alert["ranks"]) == (odd, [])
    assert alert["since_step"] in (AT, AT + 1)
    for evidence in (alert["evidence"], _why(run_dir, capsys, odd)):
        assert str(evidence).startswith(WHAT[mode]), evidence
        assert f"# HERE: {mode}" in str(evidence)
    assert main(["status", str(run_dir)]) == 1
    assert f"look at rank {odd}." in capsys.readouterr().out


def _why(run_dir: Path, capsys: pytest.CaptureFixture[str], odd: int) -> str:
    """The evidence of the verdict with which `why` opens, which is on the odd rank."""
    assert main(["why", str(run_dir), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert (first["rank"], first["cause"]) == (odd, "hang")
    return str(first["evidence"])

"""Which of three gloo ranks of torchrun did another collective than the others, live and after their end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distsummary.cli import main
from tests.processes.mismatched_ranks import AT, RANKS

PATIENCE_S = 240  # beside other work, torch takes a minute to be loaded
CASES = [
    *(("skip", odd) for odd in range(RANKS)),
    *(("block", odd) for odd in range(RANKS)),
    ("size", 0),
    ("op", 1),
    ("root", 2),
    ("uneven", 1),
]
WHAT = {  # of the evidence
    "skip": "it began all_reduce of 4,160 elements as collective",
    "block": "it has not begun all_reduce of 1 element",
    "size": "it began all_reduce of 9 elements as collective",
    "op": "it began broadcast of 1 element",
    "root": "it began broadcast of 1 element (root: rank 0) as collective",
    "uneven": "it began barrier as collective",
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
@pytest.mark.parametrize(("mode", "odd"), CASES)
def test_the_odd_rank_is_named_with_its_line_and_not_the_one_that_crashes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, odd: int
) -> None:
    run_dir = tmp_path / "run"
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    job = subprocess.Popen(
        [sys.executable, *torchrun, "-m", "tests.processes.mismatched_ranks", str(run_dir), mode, str(odd)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        alert = hang_of(run_dir, time.monotonic() + PATIENCE_S)
    finally:
        job.send_signal(signal.SIGTERM)  # as one ends a job that hangs
        job.wait(60)
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

"""A process that is killed while it holds a journal of finished chunks."""

import subprocess
import sys
from pathlib import Path

from distsummary.landscapes.run.journal import Journal
from tests.conftest import ROOT
from tests.unit.landscapes.test_journal import PLAN

CHILD = """
import sys, os, signal
from tests.unit.landscapes.test_journal import Journal, PLAN, chunk, measured
journal = Journal(sys.argv[1], PLAN)
for row in range(5):
    journal.enter(chunk(row), measured(row))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_holder_leaves_what_it_entered_and_no_lock(nasty_tmp_path: Path):
    path = nasty_tmp_path / "landscape.journal"
    subprocess.run([sys.executable, "-c", CHILD, str(path)], check=False, cwd=ROOT)
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 5

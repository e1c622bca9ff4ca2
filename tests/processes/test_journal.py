"""A process that is killed while it holds a journal of finished chunks."""

from pathlib import Path

from distsummary.landscapes.run.journal import Journal
from tests.conftest import ROOT
from tests.programs import run_python
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
    run_python("-c", CHILD, str(path), cwd=ROOT, code=None)
    with Journal(path, PLAN) as journal:
        assert len(journal.results) == 5

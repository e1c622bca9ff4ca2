"""`distsummary serve` as a process: one line with the URL, answers, and an end by Ctrl-C or SIGTERM."""

import json
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from tests.patience import PATIENCE_S
from tests.unit.runs.recording import record

# The front end is not built for the tests; a page of one line stands in for it.
COMMAND = """
import sys
from pathlib import Path
from distsummary.view import report
from distsummary.cli.main import main
report.BUNDLE = Path(sys.argv[1])
sys.exit(main(["serve", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_prints_its_url_answers_and_ends_when_it_is_reported_to(tmp_path, number, code):
    record(tmp_path / "runs/one")
    for name in ("page.js", "graph.js", "page.css"):
        (tmp_path / name).write_text("\n")
    command = [sys.executable, "-c", COMMAND, tmp_path, tmp_path / "runs", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            with urlopen(url, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
            process.send_signal(number)
            rest, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, rest, errors) == (code, "", "")

"""Runs a pytest of its own on given tests, to see what the fixtures that watch tests do to them."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


def run_inner_pytest(
    tests: str, place: Path, plugins: Sequence[str], *, grace_s: float = 0.3
) -> dict[str, str]:
    """Run the source `tests` with the conftests `plugins`: test name -> pytest's complaint, "" for a pass.

    `grace_s`: seconds that what is ending has for it.
    """
    cwd = place / "cwd"
    cwd.mkdir()
    (cwd / "test_inner.py").write_text(tests)
    (cwd / "empty.ini").write_text("[pytest]\n")
    report = place / "report.xml"
    command = [sys.executable, "-m", "pytest", "test_inner.py", "-c", "empty.ini"]
    options = ["--leak-grace-s", str(grace_s), f"--junitxml={report}", f"--basetemp={place / 'base'}"]
    for plugin in plugins:
        options += ["-p", plugin]
    environment = {"PYTHONPATH": f"{ROOT}:{cwd}", "TMPDIR": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *options], cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    found: dict[str, str] = {}
    for case in cases:  # two of one test if it fails and then leaves something
        name = case.attrib["name"]
        found[name] = found.get(name, "") + "".join(part.attrib["message"] for part in case)
    return found

"""How much of the package a scalar passes on its way to the file, and from there to the merged curve."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("way", "last", "most_files", "most_functions"),
    [
        ("log", "events/files.py", 21, 75),  # three of the files pass it on to be judged
        ("merge", "aggregate/live_files.py", 40, 300),
    ],
)
def test_a_scalar_passes_few_files_and_functions(way: str, last: str, most_files: int, most_functions: int):
    command = [sys.executable, "-m", "benchmarks.way_of_a_scalar", way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    *lines, total = done.stdout.splitlines()
    files, functions = (int(word) for word in total.split() if word.isdigit())
    assert len(lines) == files <= most_files, done.stdout
    assert any(line.startswith(last) for line in lines), done.stdout
    assert functions <= most_functions, done.stdout

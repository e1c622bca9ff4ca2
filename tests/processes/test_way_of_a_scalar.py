"""How much of the package a scalar passes on its way to the file, and from there to the merged curve."""

from pathlib import Path

import pytest

from tests.programs import run_python

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("way", "last", "most_files", "most_functions"),
    [
        ("log", "events/files.py", 19, 65),
        ("merge", "aggregate/step_files.py", 40, 300),
    ],
)
def test_a_scalar_passes_few_files_and_functions(way: str, last: str, most_files: int, most_functions: int):
    done = run_python("-m", "benchmarks.record.way_of_a_scalar", way, cwd=ROOT)
    *lines, total = done.stdout.splitlines()
    files, functions = (int(word) for word in total.split() if word.isdigit())
    assert len(lines) == files <= most_files, done.stdout
    assert any(line.startswith(last) for line in lines), done.stdout
    assert functions <= most_functions, done.stdout

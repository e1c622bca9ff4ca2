"""What `distsummary run` says of the runs of a command, in places of any name."""

import os
import sys
from pathlib import Path

import pytest

from tests.programs import run_program

OWN = """
import sys
import distsummary as ds

with ds.init(sys.argv[1], quiet=True, system_metrics=False) as run:
    for step in run.steps(range(2)):
        run.log(loss=1.0)
sys.exit(int(sys.argv[2]))
"""


def recorded(path: Path, *arguments: object, code: int = 0, **variables: str) -> str:
    into = ("-m", "distsummary", "run", "--into", path / "asked", "--")
    return run_program(sys.executable, *into, *arguments, code=code, cwd=path, **variables).stderr


@pytest.mark.parametrize("name", ["own", "own run's ü", 'a "b" $c'])
def test_a_run_that_the_script_names_itself_is_named(tmp_path: Path, name: str) -> None:
    said = recorded(tmp_path, sys.executable, "-c", OWN, name, 0)
    assert "nothing was recorded" not in said
    assert f"{name}: finished (the script itself names this run dir); distsummary status " in said


def test_a_command_that_fails_after_its_training_is_not_called_finished(tmp_path: Path) -> None:
    said = recorded(tmp_path, sys.executable, "-c", OWN, tmp_path / "asked", 3, code=3)
    assert "finished, but the command ended with exit code 3" in said


def test_without_a_run_nothing_was_recorded(tmp_path: Path) -> None:
    assert "nothing was recorded" in recorded(tmp_path, sys.executable, "-c", "pass")


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"HOME": "/nonexistent", "TMPDIR": ""},
        {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "error::EncodingWarning"},
    ],
    ids=["ASCII", "no home", "encodings"],
)
def test_a_run_is_recorded_in_poor_surroundings(nasty_tmp_path, variables, monkeypatch):
    name = os.fsdecode(os.fsencode(nasty_tmp_path / "run"))
    done = run_program(sys.executable, "-c", OWN, name, 0, **variables)
    assert "Warning" not in done.stderr
    assert (nasty_tmp_path / "run" / "run.json").exists()

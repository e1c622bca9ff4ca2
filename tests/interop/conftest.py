"""The demo, run once as a user runs it, for all viewers to look at; and MindSpore, run for us to read."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import psutil
import pytest

import distsummary as ds
from distsummary.events import recorded
from distsummary.events.index import is_index
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

RANKS = 4
MARK = "DISTSUMMARY_INTEROP_DEMO"


class Demo(NamedTuple):
    """One finished demo: its run dir, the lines on its stdout, and what it left running (killed since)."""

    run_dir: Path
    stdout: list[str]
    left: list[str]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`distsummary demo --out .. --ranks 4 --json` in a fresh home."""
    place = tmp_path_factory.mktemp("demo")
    run_dir = place / "my runs" / "digits"
    run_dir.parent.mkdir()
    command = [Path(sys.executable).with_name("distsummary"), "demo", "--out", run_dir, "--ranks", str(RANKS)]
    mark = uuid.uuid4().hex
    (place / "home").mkdir()
    environment = _environment_of_a_user(place / "home") | {MARK: mark}
    done = subprocess.run(
        [*map(str, command), "--json"], cwd=place, env=environment, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    left = _end_what_is_left(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    with mock.patch.object(recorded, "LEAST_BYTES", 1):
        ds.open_run(run_dir).scalars()  # leaves an index next to each event file: no viewer minds
    assert any(is_index(path.name) for path in run_dir.iterdir())
    return Demo(run_dir, done.stdout.splitlines(), left)


@pytest.fixture(scope="session")
def mindinsight() -> Path:
    """The command of the MindInsight that `make interop` installs."""
    command = ROOT / ".venv-mindinsight" / "bin" / "mindinsight"
    assert command.exists(), f"there is no {command}; run: make interop"
    return command


class Recorded(NamedTuple):
    """What MindSpore wrote live: the arrays that it was given, tag -> (steps, ...), and what it reported."""

    record: Path
    training: Path
    inputs: dict[str, Any]  # Any: an array
    reported: dict[str, Any]  # Any: from JSON


@pytest.fixture(scope="session")
def mindspore_wrote(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Made by the MindSpore that `make interop` installs."""
    place = tmp_path_factory.mktemp("mindspore")
    run_mindspore("mindspore_records.py", place)
    with np.load(place / "inputs.npz") as inputs:
        arrays = dict(inputs)
    reported = json.loads((place / "reported.json").read_text())
    return Recorded(place / "record", place / "training", arrays, reported)


def run_mindspore(script: str, place: Path) -> None:
    """Runs a script of this folder on `place` in MindSpore's interpreter; its helpers end with it."""
    python = ROOT / ".venv-mindspore" / "bin" / "python"
    assert python.exists(), f"there is no {python}; run: make interop"
    with subprocess.Popen(
        [python, ROOT / "tests" / "interop" / script, place],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        finally:  # its writers and packers are processes of the same group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output


def _environment_of_a_user(home: Path) -> dict[str, str]:
    """Without the settings that tests/conftest.py makes for Ray."""
    return {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "HOME": str(home)
    }


def _end_what_is_left(mark: str, grace_s: float = 10.0) -> list[str]:
    """The command lines of processes that carry the mark and do not end by themselves; they are killed."""
    deadline = time.monotonic() + grace_s
    while (left := [process for process in psutil.process_iter() if _carries(process, mark)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    described = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.send_signal(signal.SIGKILL)
    return described


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return False

"""The job script is sound shell, and Ray's own command line accepts what it passes."""

import os
import subprocess
from pathlib import Path

import pytest
from ray.dashboard.modules.job.cli import submit

from tests.docs.documents import ROOT
from tests.patience import PATIENCE_S

SCRIPT = ROOT / "cluster" / "job.sh"
# Stands where `ray` is looked up and notes how it was called; Ray's real parser then judges that.
RECORDER = '#!/bin/sh\nprintf "%s\\n" "mode=${RAY_AUTH_MODE:-}" "$@" > called\n'


@pytest.fixture
def place(nasty_tmp_path: Path) -> Path:
    """A working directory that first finds the recorder as `ray`."""
    recorder = nasty_tmp_path / "bin" / "ray"
    recorder.parent.mkdir()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    return nasty_tmp_path


def run(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    settings = {"PATH": path, "HOME": str(place)} | environment
    return subprocess.run(
        [str(SCRIPT), *arguments], cwd=place, env=settings, capture_output=True, text=True, timeout=PATIENCE_S
    )


def called(place: Path) -> list[str]:
    return (place / "called").read_text().splitlines()


def test_the_script_is_sound_shell() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


def test_ray_accepts_the_arguments_and_keeps_the_command_whole(place: Path) -> None:
    done = run(place, "http://head:8265", str(place), "--no-wait", "--", "python", "train.py", "--out", "a b")
    assert done.returncode == 0, done.stderr
    assert called(place)[1:3] == ["job", "submit"]
    parsed = submit.make_context("submit", called(place)[3:]).params
    assert parsed["address"] == "http://head:8265"
    assert parsed["working_dir"] == str(place)
    assert parsed["no_wait"] is True
    assert parsed["entrypoint"] == ("python", "train.py", "--out", "a b")


@pytest.mark.parametrize(
    ("environment", "token_file", "mode"),
    [
        ({}, False, ""),
        ({"RAY_AUTH_TOKEN": "secret"}, False, "token"),
        ({"RAY_AUTH_TOKEN_PATH": "/token"}, False, "token"),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "secret", "RAY_AUTH_MODE": "disabled"}, False, "disabled"),
    ],
)
def test_a_token_that_is_there_is_sent_unless_the_mode_is_set(
    place: Path, environment: dict[str, str], token_file: bool, mode: str
) -> None:
    if token_file:
        (place / ".ray").mkdir()
        (place / ".ray" / "auth_token").write_text("secret")
    assert run(place, "http://head:8265", ".", "--", "true", **environment).returncode == 0
    assert called(place)[0] == f"mode={mode}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "ADDRESS and WORKING_DIR are needed"),
        (["http://head:8265", "."], "a COMMAND is needed"),
        (["http://head:8265", ".", "--"], "a COMMAND is needed"),
        (["http://head:8265", ".", "python", "train.py"], "a COMMAND is needed"),
        (["head:8265", ".", "--", "true"], "ADDRESS must look like http://HEAD:8265, got 'head:8265'"),
        (["http://head:8265", "absent", "--", "true"], "WORKING_DIR must be a directory, got 'absent'"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_submitted(
    place: Path, arguments: list[str], complaint: str
) -> None:
    done = run(place, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (place / "called").exists()

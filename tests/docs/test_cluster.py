"""The recipes are sound: shell, Ray's own command line, and the schemas of KubeRay and of `ray up`."""

import gzip
import json
import os
import shutil
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from ray.dashboard.modules.job.cli import submit

from tests.docs.documents import ROOT
from tests.patience import PATIENCE_S
from tests.tools.kuberay_schema import SCHEMA

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
def test_a_token_that_is_there_is_sent_unless_the_mode_is_set(place, environment, token_file, mode):
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
def test_wrong_arguments_are_named_and_nothing_is_submitted(place, arguments, complaint):
    done = run(place, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (place / "called").exists()


def recipe(name: str) -> Any:
    return yaml.safe_load((ROOT / "cluster" / name).read_text())


def faults_on_kuberay(manifest: Any) -> list[str]:
    """What the strict schema of KubeRay's own kinds says of a manifest."""
    schema = json.loads(gzip.decompress(SCHEMA.read_bytes()))
    wrong = [
        one for error in Draft202012Validator(schema).iter_errors(manifest) for one in error.context or ()
    ]
    return [error.message for error in wrong if error.absolute_path != deque(["kind"])]


@pytest.mark.parametrize("name", ["kuberay/rayjob.yaml", "kuberay/raycluster.yaml"])
def test_kuberay_takes_every_field_of_a_manifest(name: str) -> None:
    assert faults_on_kuberay(recipe(name)) == []
    wrong = recipe(name)
    cluster = wrong["spec"].get("rayClusterSpec", wrong["spec"])
    cluster["workerGroupSpecs"][0]["maxReplica"] = 1
    cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    found = " ".join(faults_on_kuberay(wrong))
    assert "maxReplica" in found
    assert "volumeMount" in found


@pytest.mark.parametrize("name", ["ray-up/local.yaml", "ray-up/aws.yaml"])
def test_ray_up_takes_every_field_of_a_cluster(name: str) -> None:
    autoscaler = Path(ray.__file__).parent / "autoscaler"
    check = Draft7Validator(json.loads((autoscaler / "ray-schema.json").read_text()))
    assert [error.message for error in check.iter_errors(recipe(name))] == []
    assert [*check.iter_errors(recipe(name) | {"min_workers": 1})]


@pytest.mark.parametrize("name", ["job.sh", "slurm/srun.sbatch", "slurm/torchrun.sbatch", "slurm/ray.sbatch"])
def test_a_script_is_sound_shell(name: str) -> None:
    path = ROOT / "cluster" / name
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", path], capture_output=True, text=True).stdout == ""


def test_each_recipe_has_a_line_in_the_guide_that_starts_it() -> None:
    guide = (ROOT / "docs" / "cluster.md").read_text()
    files = [path for path in (ROOT / "cluster").rglob("*") if path.is_file()]
    recipes = {path for path in files if path.suffix not in (".md", ".pyc")}
    assert {path.name for path in recipes if str(path.relative_to(ROOT)) not in guide} == set()

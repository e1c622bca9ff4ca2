"""The command line in a shell, and the verb that imports Ray."""

import subprocess
import sys

from distsummary.cli import main
from tests.unit.test_cli import two_ranks


def test_dump_into_a_pipe_that_closes_ends_quietly(tmp_path):
    run_dir = two_ranks(tmp_path / "run")
    command = f'"{sys.executable}" -m distsummary dump "{run_dir.base}" | head -n 1'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


FACTORY = """
import numpy as np

class Bowl:
    def __init__(self):
        self.parameters = {"w": np.array([1.0, 2.0], np.float32)}

def loss(model, batch):
    return float((model.parameters["w"] ** 2).sum() + batch.mean())

def parts():
    return Bowl(), loss, [np.zeros(4)]
"""


def test_landscape_of_a_factory_without_ray(tmp_path, capsys, monkeypatch):
    run_dir = two_ranks(tmp_path / "run")
    (tmp_path / "bowl_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [
        "landscape",
        str(run_dir.base),
        "bowl_factory:parts",
        "--size",
        "5",
        "--workers",
        "0",
        "--json",
    ]
    assert main([*arguments, "--directions", "random"]) == 1  # the run kept no checkpoints
    assert "train_metadata.json" in capsys.readouterr().err
    assert main(["landscape", str(run_dir.base), "nowhere:parts", "--workers", "0"]) == 1
    assert "nowhere" in capsys.readouterr().err

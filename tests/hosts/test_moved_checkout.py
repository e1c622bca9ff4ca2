"""An editable installation whose checkout has moved does not break `import torch`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

HOSTS = ROOT / ".venv-hosts"
PACKAGED = (
    "distsummary", "docs/verdicts", "distsummary_autoload.py", "build_pages.py", "pyproject.toml",
    "README.md", "LICENSE",
)  # fmt: skip


def installed(directory: Path, checkout: Path) -> Path:
    """The Python of an environment with this checkout, and with the packages of .venv-hosts after it."""
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin/python"
    pip = [HOSTS / "bin/python", "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, "-e", checkout], check=True)
    [own], [others] = (place.glob("lib/*/site-packages") for place in (environment, HOSTS))
    (own / "others.pth").write_text(f"{others}\n")
    return python


def test_torch_can_be_imported_when_the_checkout_has_moved(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in PACKAGED:
        place = checkout / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("front", "__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    python = installed(tmp_path, checkout)
    code = "import sys, torch; print('distsummary.integrations.follower' in sys.modules)"

    def found(run_dir: str) -> tuple[int, str, str]:
        variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-W", "ignore", "-c", code], cwd=tmp_path, env=variables | {"DISTSUMMARY": run_dir},
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert found("run") == (0, "True\n", "")
    checkout.rename(tmp_path / "elsewhere")
    code_found, printed, said = found("run")
    assert (code_found, printed) == (0, "False\n")
    assert said.startswith(
        "distsummary: nothing is recorded: ModuleNotFoundError: No module named 'distsummary"
    )
    assert said.count("\n") == 1
    assert found("") == (0, "False\n", "")

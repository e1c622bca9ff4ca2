"""The tests of JAX arrays pass in a process of their own: JAX's threads make forks of other tests hang."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from tests.patience import PATIENCE_S


@pytest.mark.skipif(find_spec("jax") is None, reason="pip install jax")
def test_arrays_of_jax_are_recorded() -> None:
    options = ["-q", "-p", "no:cacheprovider", "tests/frameworks/jax_arrays.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

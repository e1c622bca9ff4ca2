"""The tests of JAX arrays pass in a process of their own: JAX's threads make forks of other tests hang."""

from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from tests.programs import run_python


@pytest.mark.skipif(find_spec("jax") is None, reason="pip install jax")
def test_arrays_of_jax_are_recorded() -> None:
    options = ["-q", "-p", "no:cacheprovider", "tests/frameworks/jax_arrays.py"]
    done = run_python("-m", "pytest", *options, cwd=ROOT)
    assert " passed" in done.stdout

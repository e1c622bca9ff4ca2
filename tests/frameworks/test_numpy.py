"""The reference framework."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks import base
from tests.frameworks.suite import FrameworkSuite
from tests.programs import run_python


class Dense:
    def __init__(self):
        self.parameters = {
            "weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
            "bias": np.array([0.1, -0.2], np.float32),
        }
        self.buffers = {"count": np.array(3)}

    def __call__(self, inputs):
        return inputs @ self.parameters["weight"].T + self.parameters["bias"]


class TestNumpy(FrameworkSuite):
    name = "numpy"

    def make_tensor(self, array):
        return array.copy()

    def make_model(self):
        return Dense()

    def make_tied_model(self):
        array = np.ones(2, np.float32)
        return SimpleNamespace(parameters={"first": array, "second": array})

    def make_optimizer(self, model, learning_rate):
        return SimpleNamespace(learning_rate=learning_rate)

    def fill(self, tensor, value):
        tensor[...] = value

    def test_what_no_one_can_change_is_not_copied(self, framework):
        array = np.arange(3.0)
        assert not np.shares_memory(framework.snapshot(array).result(), array)
        array.flags.writeable = False
        assert framework.snapshot(array).result() is array
        swapped = framework.snapshot(array.astype(">f4")).result()
        assert (swapped.dtype, swapped.tolist()) == (np.float32, [0, 1, 2])
        assert swapped.dtype.isnative

    def test_a_model_without_arrays_is_refused(self, framework):
        with pytest.raises(InvalidTypeError, match="weight of a NumPy model must be ndarray"):
            framework.state(SimpleNamespace(parameters={"weight": [1.0]}))
        both = {"weight": np.ones(1)}
        with pytest.raises(InvalidValueError, match="different names"):
            framework.state(SimpleNamespace(parameters=both, buffers=both))
        with pytest.raises(InvalidTypeError, match=r"buffers of a NumPy model must be .* got list"):
            framework.state(SimpleNamespace(parameters=both, buffers=[]))
        assert framework.state(SimpleNamespace(parameters=both, buffers=None)).keys() == {"weight"}


def test_a_framework_that_does_not_exist_is_refused():
    with pytest.raises(InvalidTypeError, match="no framework called 'mxnet'"):
        base.load("mxnet")


def test_base_and_numpy_do_not_import_torch():
    code = (
        "import sys, numpy; from distsummary.frameworks import base; base.load('numpy');"
        "base.framework_of(numpy.ones(1)); sys.exit('torch' in sys.modules)"
    )
    run_python("-c", code)


def test_a_missing_framework_is_reported_with_its_pip_line(monkeypatch, hide_package):
    hide_package("torch")
    monkeypatch.delitem(sys.modules, "distsummary.frameworks.torch", raising=False)
    with pytest.raises(ImportError, match="pip install torch"):
        base.load("torch")

"""What workers cannot import ends a landscape with what is missing."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import LandscapeError
from distsummary.landscapes.run.actor import RayWorkers

pytestmark = pytest.mark.usefixtures("ray_cluster")


MODULE = """
import numpy as np

class Net:
    def __init__(self):
        self.parameters = {"w": np.ones((2, 3), np.float32)}
        self.buffers = {}

    def __call__(self, x):
        return x @ self.parameters["w"]
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model of a module that this process alone finds."""
    (tmp_path / "only_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("only_here").Net()
    del sys.modules["only_here"]


def test_a_module_that_workers_miss_is_named_after_three_of_them(net: Any) -> None:
    found = r"^the landscape worker died 3 times .*No module named 'only_here'.*runtime_env of ray\.init"
    with pytest.raises(LandscapeError, match=found):
        ds.landscape(
            net, square, [(np.ones((4, 2)), np.ones(4))], plane=ds.Plane(size=3),
            compute=ds.Compute(workers=1), progress=False,
        )  # fmt: skip


def test_a_hessian_that_no_worker_can_begin_is_given_up_after_three(net: Any) -> None:
    found = r"^the Hessian worker died 3 times .*No module named 'only_here'"
    with pytest.raises(LandscapeError, match=found), RayWorkers(1).hessian(net, square, []):
        pass


def square(outputs: Any, targets: Any) -> Any:
    return float(np.mean(outputs**2))

"""What workers cannot import ends a landscape with what is missing."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import LandscapeError
from distsummary.landscapes.run.actor import RayWorkers

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of a module that this process alone has."""
    module = ModuleType("only_here")

    class Net:
        def __init__(self) -> None:
            self.parameters = {"w": np.ones((2, 3), np.float32)}
            self.buffers: dict[str, Any] = {}

        def __call__(self, x: Any) -> Any:
            return x @ self.parameters["w"]

    Net.__module__, Net.__qualname__ = "only_here", "Net"
    module.Net = Net  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "only_here", module)
    return Net()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_module_that_workers_miss_is_named_after_two_of_them(net: Any, workers: int) -> None:
    found = r"^2 landscape workers died .*No module named 'only_here'.*runtime_env of ray\.init"
    with pytest.raises(LandscapeError, match=found):
        ds.landscape(net, square, [(np.ones((4, 2)), np.ones(4))], size=3, workers=workers, progress=False)


def test_a_hessian_that_no_worker_can_begin_is_given_up_after_two(net: Any) -> None:
    found = r"^2 Hessian workers died .*No module named 'only_here'"
    with (
        RayWorkers(1) as workers,
        pytest.raises(LandscapeError, match=found),
        workers.hessian(net, square, []),
    ):
        pass


def square(outputs: Any, targets: Any) -> Any:
    return float(np.mean(outputs**2))

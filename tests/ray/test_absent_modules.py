"""What workers cannot import ends a landscape with what is missing."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import LandscapeError
from distsummary.landscape.workers import actor_crew

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


def test_a_module_that_workers_lack_is_named(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_crew, "MAX_DEATHS", 2)
    with pytest.raises(LandscapeError, match=r"No module named 'only_here'.*runtime_env of ray\.init"):
        ds.landscape(net, square, [(np.ones((4, 2)), np.ones(4))], size=3, workers=2, progress=False)


def square(outputs: Any, targets: Any) -> Any:
    return float(np.mean(outputs**2))

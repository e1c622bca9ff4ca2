"""One training run out of many ranks: summaries, lineage and loss landscapes of Ray jobs.

Public names are loaded on first use: importing this package imports neither Ray nor a framework.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distsummary.aggregate.merge import merge_run
    from distsummary.collect.collector import SummaryCollector
    from distsummary.collect.record import SummaryRecord
    from distsummary.errors import DistSummaryError
    from distsummary.init import init
    from distsummary.landscape.directions.recipe import Directions
    from distsummary.landscape.directions.sketched import training_path
    from distsummary.landscape.engines.quantities import Evaluation
    from distsummary.landscape.generator import landscape
    from distsummary.landscape.output.grid import LossGrid
    from distsummary.landscape.summary_landscape import SummaryLandscape
    from distsummary.landscape.workers.runner import LandscapeCancelled
    from distsummary.launch import launch
    from distsummary.training.callbacks import Callback, LossMonitor, RunContext, TimeMonitor
    from distsummary.training.run import Run

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Directions",
    "DistSummaryError",
    "Evaluation",
    "LandscapeCancelled",
    "LossGrid",
    "LossMonitor",
    "Run",
    "RunContext",
    "SummaryCollector",
    "SummaryLandscape",
    "SummaryRecord",
    "TimeMonitor",
    "init",
    "landscape",
    "launch",
    "merge_run",
    "training_path",
]

_MODULE_OF = {
    "Callback": "distsummary.training.callbacks",
    "Directions": "distsummary.landscape.directions.recipe",
    "DistSummaryError": "distsummary.errors",
    "Evaluation": "distsummary.landscape.engines.quantities",
    "LandscapeCancelled": "distsummary.landscape.workers.runner",
    "LossGrid": "distsummary.landscape.output.grid",
    "LossMonitor": "distsummary.training.callbacks",
    "Run": "distsummary.training.run",
    "RunContext": "distsummary.training.callbacks",
    "SummaryCollector": "distsummary.collect.collector",
    "SummaryLandscape": "distsummary.landscape.summary_landscape",
    "SummaryRecord": "distsummary.collect.record",
    "TimeMonitor": "distsummary.training.callbacks",
    "init": "distsummary.init",
    "landscape": "distsummary.landscape.generator",
    "launch": "distsummary.launch",
    "merge_run": "distsummary.aggregate.merge",
    "training_path": "distsummary.landscape.directions.sketched",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *(name for name in __all__ if name not in globals())]


class _Package(ModuleType):
    """Lets a public name win over the module of the same name, which an import would put in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name, as any module is: a train function that uses this package travels to its ranks."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package

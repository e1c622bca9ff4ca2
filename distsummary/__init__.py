"""One training run out of many ranks: summaries, lineage and loss landscapes of Ray jobs.

Public names are loaded on first use: importing this package imports neither Ray nor a framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distsummary._init import init
    from distsummary.aggregate.merge import merge_run
    from distsummary.collect.collector import SummaryCollector
    from distsummary.collect.record import SummaryRecord
    from distsummary.errors import DistSummaryError, LandscapeCancelled
    from distsummary.landscapes.directions.recipe import Directions
    from distsummary.landscapes.directions.sketched import training_path
    from distsummary.landscapes.generator import landscape
    from distsummary.landscapes.model.quantities import Evaluation
    from distsummary.landscapes.output.grid import LossGrid
    from distsummary.landscapes.summary_landscape import SummaryLandscape
    from distsummary.launcher import launch
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
    "Directions": "distsummary.landscapes.directions.recipe",
    "DistSummaryError": "distsummary.errors",
    "Evaluation": "distsummary.landscapes.model.quantities",
    "LandscapeCancelled": "distsummary.errors",
    "LossGrid": "distsummary.landscapes.output.grid",
    "LossMonitor": "distsummary.training.callbacks",
    "Run": "distsummary.training.run",
    "RunContext": "distsummary.training.callbacks",
    "SummaryCollector": "distsummary.collect.collector",
    "SummaryLandscape": "distsummary.landscapes.summary_landscape",
    "SummaryRecord": "distsummary.collect.record",
    "TimeMonitor": "distsummary.training.callbacks",
    "init": "distsummary._init",
    "landscape": "distsummary.landscapes.generator",
    "launch": "distsummary.launcher",
    "merge_run": "distsummary.aggregate.merge",
    "training_path": "distsummary.landscapes.directions.sketched",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *(name for name in __all__ if name not in globals())]

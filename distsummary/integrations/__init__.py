"""Doors for code that others wrote: trainers, torch's SummaryWriter, unmodified scripts.

Public names are loaded on first use, together with the host that they belong to.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers do not run __getattr__
    from distsummary.integrations.torch_summary_writer import SummaryWriter

__all__ = ["SummaryWriter"]

# Public name -> its module, and the packages that it needs.
_MODULE_OF = {"SummaryWriter": ("torch_summary_writer", ("torch", "tensorboard"))}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distsummary.base.extras import require

    module, packages = _MODULE_OF[name]
    require(f"{__name__}.{name}", *packages)
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

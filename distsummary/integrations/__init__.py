"""Doors for code that others wrote: trainers, torch's SummaryWriter, unmodified scripts.

Public names are loaded on first use, together with the host that they belong to.
"""

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers do not run __getattr__.
if TYPE_CHECKING:
    from distsummary.integrations.torch_summary_writer import SummaryWriter

__all__ = ["SummaryWriter"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distsummary.base.extras import require

    require(f"{__name__}.{name}", "torch", "tensorboard")
    return importlib.import_module(f"{__name__}.torch_summary_writer").SummaryWriter


def __dir__() -> list[str]:
    return sorted(__all__)

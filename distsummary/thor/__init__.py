"""THOR on torch: the second-order optimizer and its converters. Importing this imports no torch."""

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers do not run __getattr__.
if TYPE_CHECKING:
    from distsummary.thor.converters import ConvertModelUtils, ConvertNetUtils
    from distsummary.thor.torch_thor import THOR, thor

__all__ = ["THOR", "ConvertModelUtils", "ConvertNetUtils", "thor"]

_MODULE_OF = {
    "THOR": "torch_thor",
    "thor": "torch_thor",
    "ConvertNetUtils": "converters",
    "ConvertModelUtils": "converters",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

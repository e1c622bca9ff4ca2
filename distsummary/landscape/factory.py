"""The factory of the command line, `module:function`, that makes model, loss function and data."""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

from distsummary.checks import check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.landscape.engines.quantities import Evaluation

Parts: TypeAlias = tuple[Any, Any, Iterable[Any]]


def load_factory(name: str) -> tuple[Parts, Evaluation | None]:
    """Call the function `module:factory`; it returns (model, loss_fn, batches), or also an `Evaluation`.

    The current directory is searched for the module too. Raises InvalidValueError for a name that leads
    nowhere, InvalidTypeError for a function that returns something else.
    """
    check_type("factory", name, str)
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidValueError(f"factory must be module:function, such as train:parts, got {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidValueError(f"factory {name!r} cannot be found: {error}") from error
    if not callable(factory):
        raise InvalidTypeError(f"{name} must be a function, got {type(factory).__name__}")
    parts = factory()
    if not isinstance(parts, tuple | list) or len(parts) not in (3, 4):
        raise InvalidTypeError(
            f"{name} must return (model, loss_fn, batches), or also an Evaluation behind them, "
            f"got {type(parts).__name__}{f' of {len(parts)}' if isinstance(parts, tuple | list) else ''}"
        )
    model, loss_fn, batches, *more = parts
    return (model, loss_fn, batches), more[0] if more else None

"""The factory of the command line, `module:function`, that makes model, loss function and data."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from distsummary.checks import check_type
from distsummary.errors import DistSummaryError, InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.model.quantities import Evaluation

Parts: TypeAlias = tuple[Any, Any, Iterable[Any]]


def load_factory(name: str) -> tuple[Parts, Evaluation | None]:
    """Call the function `module:factory`; it returns (model, loss_fn, batches), or also an `Evaluation`.

    The current directory is searched for the module too. Raises InvalidValueError for a name that leads
    nowhere, InvalidTypeError for a function that returns something else, LandscapeError for what it raises.
    """
    check_type("factory", name, str)
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidValueError(f"factory must be module:function, such as train:parts, got {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    factory = _find(name, module_name, attribute)
    if not callable(factory):
        raise InvalidTypeError(f"{name} must be a function, got {type(factory).__name__}")
    with _told(name):
        parts = factory()
    if not isinstance(parts, tuple | list) or len(parts) not in (3, 4):
        raise InvalidTypeError(
            f"{name} must return (model, loss_fn, batches), or also an Evaluation behind them, "
            f"got {type(parts).__name__}{f' of {len(parts)}' if isinstance(parts, tuple | list) else ''}"
        )
    model, loss_fn, batches, *more = parts
    return (model, loss_fn, batches), more[0] if more else None


def _find(name: str, module_name: str, attribute: str) -> Any:
    with _told(name):
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            remedy = "leave .py out" if module_name.endswith(".py") else "name another"
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; {remedy}") from error
        except AttributeError as error:
            if error.name != attribute:
                raise
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; name another") from error


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Raise LandscapeError of one line, with the place, for what the user's module or function raises."""
    try:
        yield
    except DistSummaryError:
        raise
    except Exception as error:  # of any kind: it is the user's code
        what = traceback.format_exception_only(error)[-1].strip()
        raise LandscapeError(
            f"the factory {name!r} raised {what}{_place(error)}; mend what raises"
        ) from error


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f" (line {error.lineno} of {error.filename})"
    at = traceback.extract_tb(error.__traceback__)[-1]
    return "" if at.filename == __file__ else f" (line {at.lineno} of {at.filename})"

"""Calls the user's factory, named `module:function` on the command line, for model, loss and data."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distsummary.base.checks import check_type
from distsummary.errors import DistSummaryError, InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.summary_landscape import named_parts


def load_factory(name: str) -> dict[str, Any]:
    """Call the factory `name` ("module:function"); returns a dict of arguments of `landscape`.

    The factory returns (model, loss_fn, batches), optionally with an `Evaluation` as the fourth value, or a
    dict of these with their names as keys, where `batch_loss` may take the place of `loss_fn`.

    The module is also searched for in the current directory, after the installed ones: no file there takes
    the place of a module of Python or of a library. Raises InvalidValueError if there is no such
    function, InvalidTypeError if it returns anything else, LandscapeError if it raises an error.
    """
    check_type("factory", name, str)
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidValueError(f"factory must be module:function, such as train:parts, got {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    with _raises_landscape_error(name):
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                # The module itself was found, but one that it imports is missing.
                raise
            remedy = "leave .py out" if module_name.endswith(".py") else "name another"
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; {remedy}") from error
        except AttributeError as error:
            if error.name != attribute:
                raise
            raise InvalidValueError(f"factory {name!r} cannot be found: {error}; name another") from error
    if not callable(factory):
        raise InvalidTypeError(f"{name} must be a function, got {type(factory).__name__}")
    with _raises_landscape_error(name):
        parts = factory()
    found = named_parts(parts)
    if found is None:
        size = f" of {len(parts)}" if isinstance(parts, tuple | list) else ""
        raise InvalidTypeError(
            f"{name} must return (model, loss_fn, batches), optionally with an Evaluation as fourth value, "
            "or a dict with the keys model, batches, loss_fn or batch_loss, and optionally evaluation; "
            f"got {type(parts).__name__}{size}"
        )
    return found


@contextmanager
def _raises_landscape_error(name: str) -> Iterator[None]:
    """Turn an error in the user's module or function into a one-line LandscapeError that says where."""
    try:
        yield
    except DistSummaryError:
        raise
    except Exception as error:
        # Any error is possible, since it is the user's code. If the call itself raises, for example because
        # the function takes arguments, the traceback ends in this file, and no line is named. The line of a
        # syntax error is in the error's own fields.
        what = traceback.format_exception_only(error)[-1].strip()
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if at.filename == __file__ else f" (line {at.lineno} of {at.filename})"
        if isinstance(error, SyntaxError):
            place = f" (line {error.lineno} of {error.filename})"
        raise LandscapeError(f"the factory {name!r} raised {what}{place}; fix the error") from error

"""Packages that not every installation has: imported where they are needed, refused where they are missing.

Every room takes them from here, so that every message has the same form and a pip line that works.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from distsummary.errors import MissingExtraError

# What pip calls a package that Python calls something else.
_PIP_NAMES = {"sklearn": "scikit-learn", "PIL": "pillow"}


def require(what: str, *packages: str) -> None:
    """Raise MissingExtraError, with a pip line, unless these packages are installed; imports none of them.

    `what` needs them: the subject of the message, such as "an encrypted checkpoint".
    """
    missing = [name for name in packages if sys.modules.get(name) is None and find_spec(name) is None]
    if missing:
        raise missing_extra(what, *missing)


def extra(what: str, module: str) -> Any:
    """Import a module that `what` needs; raises MissingExtraError if its package is missing."""
    require(what, module.partition(".")[0])
    return import_module(module)


def missing_extra(what: str, *packages: str) -> MissingExtraError:
    """The error that says which packages are missing for `what`, and how to install them."""
    names = [_PIP_NAMES.get(name, name) for name in packages]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    verb = "are" if names[1:] else "is"
    return MissingExtraError(
        f"{what} needs {listed}, which {verb} not installed; run: pip install {' '.join(names)}",
        name=packages[0],
    )

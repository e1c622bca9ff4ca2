"""SourceLine: a line of a stack, and which of them is the user's."""

import linecache
import os
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.base.redaction import redacted

_HELPERS = ("torch", "ray", "distsummary")  # installed packages whose lines say little to their user


class SourceLine(NamedTuple):
    """A line of a stack: `file` with its whole path, the line's `number` and the name of the `function`."""

    file: str
    number: int
    function: str

    def text(self, names: dict[str, Any] | None = None) -> str:
        """Such as `train.py:12 in step: y = model(x)`, with the whole path and without secrets.

        `names`: the global names of its module, which may be needed to find the source.
        """
        code = redacted(linecache.getline(self.file, self.number, names).strip(), is_code=True)
        return f"{self.file}:{self.number} in {self.function}" + (f": {code}" if code else "")


def user_place(stack: Iterable[SourceLine]) -> SourceLine | None:
    """The innermost line of the user's code; None if there is none.

    That is none of Python or distsummary, and rather one of no installed package, at least not torch or Ray.

    Args:
        stack: the innermost line first.
    """
    own, installed = _own_code(), []
    for line in stack:
        if "site-packages" in line.file or "dist-packages" in line.file:
            if not any(f"{os.sep}{name}{os.sep}" in line.file for name in _HELPERS):
                installed.append(line)
        elif not line.file.startswith((*own, "<frozen")):
            return line
    return installed[0] if installed else None


def is_same_line(one: str, other: str) -> bool:
    """Whether two texts of `SourceLine.text` are of the same line of a file."""
    return bool(one) and one.partition(" in ")[0] == other.partition(" in ")[0]


@cache
def _own_code() -> tuple[str, ...]:
    """Directories of code that is not the user's: of distsummary, and of Python."""
    paths = sysconfig.get_paths()
    own = [Path(__file__).parents[1], *(Path(paths[name]) for name in ("stdlib", "platstdlib"))]
    return tuple({str(path) + os.sep for directory in own for path in (directory, directory.resolve())})

"""The arguments of `landscape` for tests that change one or the other."""

from dataclasses import fields
from typing import Any

from distsummary import Compute, Plane


def grouped(**given: Any) -> dict[str, Any]:
    """Arguments of `landscape`: the fields of Plane and Compute among the given ones become one of each."""
    found = {}
    for argument, kind in (("plane", Plane), ("compute", Compute)):
        names = {field.name for field in fields(kind)} & given.keys()
        if names:
            found[argument] = kind(**{name: given.pop(name) for name in names})
    return found | given

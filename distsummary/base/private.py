"""Private names of frameworks: another way, or a feature that is off, in a version that has none or another.

The names of torch are used in `frameworks/torch_private.py`, those of Ray in `base/actor_private.py`; of Ray
Train, Lightning, transformers and DeepSpeed in the module of each in `integrations/`.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from distsummary.base.health import note_absent

P = ParamSpec("P")
R = TypeVar("R")


def private(
    name: str, without: str, instead: Callable[..., Any]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator for a function that uses a private name of a framework, and does no more than that.

    Args:
        name: of the framework's, such as "torch._guards.TracingContext".
        without: what is lost when the function raises, in a version that has another such name or none; it is
            logged once, and counted in `health()`. Empty: nothing is lost.
        instead: called then, with the same arguments; its result is returned.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **named: P.kwargs) -> R:
            try:
                return function(*args, **named)
            except Exception as error:
                if without:
                    note_absent(f"{without}: this version has no {name} that works as expected", error)
                result: R = instead(*args, **named)
                return result

        return wrapper

    return decorate

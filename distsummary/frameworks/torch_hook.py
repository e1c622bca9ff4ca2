"""Hook: what distsummary hangs on the user's modules, parameters, tensors and optimizers, with a guard."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from torch.compiler import is_compiling

from distsummary.base.guard import Guard
from distsummary.frameworks.torch_private import hide_from_script

P = ParamSpec("P")
R = TypeVar("R")


class Hook(partial[Any]):
    """Calls a function, through a guard: what fails in it is counted, and the hook then returns None.

    Without a guard, the function is one that `Guard.wrap` made, and that torch.compile does not trace.

    A copy or a pickle of a hook does nothing, and needs no distsummary, so a copy of a model knows nothing of
    the run that the model is trained in. It is a `partial` because torch.compile sees through these.
    """

    __slots__ = ()
    # torch need not warn that a pickled tensor loses it.
    __torch_unserializable__ = True

    def __new__(cls, guard: Guard | None, function: Callable[..., Any], *args: Any) -> "Hook":
        """Hang up `function`, which is called with `args` before those that torch gives."""
        if guard is None:
            return super().__new__(cls, function, *args)
        return super().__new__(cls, _call, guard, function, *args)

    def __reduce__(self) -> Any:
        # A copy becomes a method that takes any arguments and returns None.
        return getattr, (nullcontext(), "__exit__")


def _call(guard: Guard, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    # What torch traces of a hook cannot fail later.
    if is_compiling():
        return function(*args, **named)
    return guard.call(function.__qualname__, function, *args, **named)


def guarded_tap(
    guard: Guard, count: Callable[..., None], *passing: type[Exception], gives: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator for a function that a network calls: a guarded call that torch.compile sees through.

    Args:
        count: called with the exception and the arguments, to count the value; what fails in it is counted by
            `guard`.
        passing: the classes of exceptions that are meant for the user.
        gives: the place of the argument that is returned if the function fails; by default, None is.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **named: P.kwargs) -> R:
            if is_compiling():
                return function(*args, **named)
            try:
                return function(*args, **named)
            except passing:
                raise
            except Exception as error:
                guard.call("operators", count, error, *args, **named)
                return cast(R, None if gives is None else args[gives])

        return wrapper

    return decorate


hide_from_script(lambda hook: isinstance(hook, Hook))

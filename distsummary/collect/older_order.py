"""The order of arguments of older versions of MindSpore, whose scripts pass them by position."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError

P = ParamSpec("P")
R = TypeVar("R")

logger = guarded_log(__name__)

NUM_PROCESS = 32  # the default of the argument that older versions do not have
NO_NETWORK = (bool, int, float, complex, str, bytes, dict, list, tuple, set)


def without_num_process(
    place: int, is_older: Callable[[Sequence[Any]], bool]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of a constructor that also takes the older order, without `num_process`, and says so.

    Args:
        place: the place of `num_process`, counted from 1 without `self`.
        is_older: decides by the arguments passed by position (without `self`) whether they come in
            the older order: by a type that the newer order does not take at that place.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def constructor(*args: P.args, **kwargs: P.kwargs) -> R:
            given: tuple[Any, ...] = args
            if len(given) > place and is_older(given[1:]):
                logger.warning(
                    "%s was called in the order of older versions of MindSpore, without num_process at place "
                    "%d: the arguments from there on are taken as the next ones; pass them by name",
                    type(given[0]).__name__,
                    place,
                )
                given = (*given[:place], NUM_PROCESS, *given[place:])
            return function(*given, **kwargs)

        return constructor

    return decorate


def is_older_collector(given: Sequence[Any]) -> bool:
    """Whether a SummaryCollector's arguments continue with `collect_specified_data, keep_default_action`."""
    specified = given[2]
    return isinstance(specified, dict) or (
        specified is None and len(given) > 3 and isinstance(given[3], bool)
    )


def is_older_record(given: Sequence[Any]) -> bool:
    """Whether the arguments of a SummaryRecord continue with `network, max_file_size, raise_exception`."""
    network, *rest = given[3:]
    if network is not None:
        return not isinstance(network, NO_NETWORK)
    size, raises, exports = (*rest, None, None, None)[:3]
    return type(size) is int or isinstance(raises, bool) or isinstance(exports, dict)


def check_network(field: str, value: object) -> None:
    """Raise InvalidTypeError for a value that is plainly no network: a number, text or a container."""
    if isinstance(value, NO_NETWORK):
        raise InvalidTypeError(
            f"{field} must be a network or None, got {value!r} of type {type(value).__name__}; pass other "
            "arguments by name"
        )

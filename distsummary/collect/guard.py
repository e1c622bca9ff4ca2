"""What keeps the collector's failures out of the training: they are counted, and said once."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from distsummary.errors import WriteError
from distsummary.format.records import Health

P = ParamSpec("P")
R = TypeVar("R")


class Guard:
    """Calls functions whose failure must not stop anything.

    Args:
        health: where failures are counted by their reason.
        logger: says each reason once. raise_exception: raise failures as WriteError, too.
    """

    def __init__(self, health: Health, logger: logging.Logger, *, raise_exception: bool = False) -> None:
        self._health = health
        self._logger = logger
        self._raise_exception = raise_exception

    def call(self, what: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | None:
        """The function's result, None if it failed; `what` names it in the reason."""
        try:
            return function(*args, **named)
        except Exception as error:  # counted, said, and raised if that was asked for
            if self._raise_exception and isinstance(error, WriteError):
                raise
            self.fail(f"{what}: {type(error).__name__}: {error}", error)
            return None

    def fail(self, reason: str, cause: Exception | None = None) -> None:
        """Count a failure."""
        if reason not in self._health.errors:
            self._logger.warning("%s (said once; counted in health())", reason)
        self._health.fail(reason)
        if self._raise_exception:
            raise WriteError(f"not recorded: {reason}") from cause

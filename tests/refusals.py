"""Tables of calls that must be refused."""

from collections.abc import Callable

import pytest


def refused(error: type[Exception], *rows: tuple[Callable[[], object], str]) -> None:
    """Check that each call raises the error, with a message in which its pattern is found."""
    for call, message in rows:
        with pytest.raises(error, match=message):
            call()

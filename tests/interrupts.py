"""Interrupts that a test sends to itself, and those that Python drops."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def sigint(action: Any) -> Iterator[None]:
    """What SIGINT does to this process meanwhile: a script's `make test &` has it ignored."""
    before = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Dropping:
    """Interrupts where Python can only report it and continue: when it is destroyed."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)

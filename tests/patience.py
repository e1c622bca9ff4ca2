"""How long tests wait for what takes seconds on a quiet machine."""

import time
from collections.abc import Callable

PATIENCE_S = 400.0  # below the `timeout` of a test in pyproject.toml, whose message would say less


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for what another thread or process does by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)

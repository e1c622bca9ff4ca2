"""Interrupts after as many chunks as a test says."""

from collections.abc import Callable
from typing import Any

import pytest

from distsummary.landscapes.engines.worker import LandscapeWorker


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch, cut_calls: Callable[[int], None]) -> Any:
    """Sets after how many chunks an interrupt comes; counts all that are evaluated."""
    real, seen = LandscapeWorker.evaluate, []
    limit = [0]

    def evaluate(self: LandscapeWorker, chunk: Any) -> Any:
        if len(seen) == limit[0]:
            raise KeyboardInterrupt
        seen.append(chunk)
        return real(self, chunk)

    def stop(after: int | None) -> list[Any]:
        seen.clear()
        limit[0] = -1 if after is None else after
        return seen

    monkeypatch.setattr(LandscapeWorker, "evaluate", evaluate)
    cut_calls(10**6)  # no chunk is cut
    stop(None)
    return stop

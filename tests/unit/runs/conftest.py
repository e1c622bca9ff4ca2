"""Indexes of files that are too small for one in practice."""

import pytest

from distsummary.events import event_files, index, recorded


@pytest.fixture
def indexed_by_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads an event file leaves an index of it."""
    monkeypatch.setattr(recorded, "LEAST_BYTES", 1)


@pytest.fixture
def indexed_by_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that closes an event file leaves an index of it."""
    for module in (event_files, index):
        monkeypatch.setattr(module, "LEAST_BYTES", 1)

"""Unit tests take seconds and say the same twice: few examples, always the same. More: tests/properties."""

import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from distsummary.collect import session

settings.register_profile("unit", max_examples=15, deadline=None, derandomize=True)
settings.load_profile("unit")

MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 256 << 20
NUMBERS = count()


@pytest.fixture(scope="session")
def session_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory, where a sync waits for no disk; pytest's own without room there or with --basetemp."""
    is_asked_for = request.config.getoption("--basetemp") is not None
    if is_asked_for or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MIN_FREE_BYTES:
        yield tmp_path_factory.getbasetemp()
        return
    with tempfile.TemporaryDirectory(prefix="unit-", dir=MEMORY) as path:
        yield Path(path)


@pytest.fixture
def tmp_path(session_path: Path) -> Path:
    """As pytest's, which looks through the directories of all earlier tests for a free name."""
    path = session_path / str(next(NUMBERS))
    path.mkdir()
    return path


@pytest.fixture(autouse=True, scope="session")
def one_provenance() -> Iterator[None]:
    """The real one, asked for once: every training starts git twice for it, in the same checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "provenance", cache(session.provenance))
        yield

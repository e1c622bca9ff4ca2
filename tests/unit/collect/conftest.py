import pytest

from distsummary.collect import session
from tests.unit.collect.doubles import ListWriter


class Writers(dict):
    """The writers of a test by rank, each of the class `kind`."""

    kind = ListWriter


@pytest.fixture
def writers(monkeypatch):
    """What the collectors of a test wrote, in place of the files, by rank."""
    opened = Writers()

    def open_writer(spec, collectors, *, ranks, is_timed):
        opened[spec.rank] = opened.kind()
        opened[spec.rank].spec = spec
        return opened[spec.rank], None

    monkeypatch.setattr(session, "open_writer", open_writer)
    return opened

import pytest

from distsummary.collect import session
from tests.unit.collect.doubles import ListWriter


@pytest.fixture
def writers(monkeypatch):
    """What the collectors of a test wrote, in place of the files, by rank."""
    opened = {}

    def open_rank_writer(run_dir, topology, registration, **options):
        opened[topology.rank] = ListWriter()
        opened[topology.rank].options = options
        return opened[topology.rank]

    monkeypatch.setattr(session, "open_rank_writer", open_rank_writer)
    return opened

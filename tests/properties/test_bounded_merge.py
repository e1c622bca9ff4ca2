"""A merged run keeps no more bulk values than its ranks, and takes files from which some were removed."""

import pytest

from distsummary import merge_run
from distsummary.aggregate.merged_files import is_merged
from distsummary.events.reader import read_directory
from distsummary.events.retention import removed_in
from distsummary.events.spec import Limits
from distsummary.format.records import DIALECTS, MINDSPORE, NORMS, Event, Value
from distsummary.rundir.attempts import note_fields
from distsummary.runs.status import read_status
from distsummary.runs.status_text import hints
from tests.bounded_files import histogram
from tests.unit.aggregate.live_ranks import Ranks
from tests.unit.aggregate.test_added_norms import part

STEPS, KEEP = 40, 100 << 10


def event(step: int, rank: int) -> Event:
    """Norms, which stay, and histograms of a rank's own parameters."""
    own = [Value("histogram", f"weight/{rank}/{n}", histogram(step)) for n in range(4)]
    return Event(step, 100.0 + step, [Value("scalar", "loss", step + rank), part(step, rank), *own])


@pytest.fixture
def ranks(tmp_path):
    made = Ranks(tmp_path / "run", 2, limits=Limits(keep_bytes=KEEP))
    note_fields(made.run_dir, ("train", 0), {"keep_bytes": KEEP})
    yield made
    made.close()


def merged(ranks, plugin, dialect=MINDSPORE):
    """The steps of the merged values of a plugin, and the bytes of the events of all of them."""
    found = [one for one in read_directory(ranks.run_dir.base, dialect) if is_merged(one.file)]
    found = [one for one in found if any(value.plugin == plugin for value in one.values)]
    return [*dict.fromkeys(one.step for one in found)], sum(one.end - one.offset for one in found)


def check(ranks):
    assert merged(ranks, "scalar")[0] == merged(ranks, NORMS)[0] == [*range(1, STEPS + 1)]
    steps = [merged(ranks, "histogram", dialect)[0] for dialect in DIALECTS]
    assert all(found == [*range(found[0], STEPS + 1)] and found[0] > 1 for found in steps)
    assert sum(merged(ranks, "histogram", dialect)[1] for dialect in DIALECTS) <= KEEP
    assert removed_in(ranks.run_dir.base).step + 1 == min(min(steps))


def test_a_merge_that_is_behind_misses_only_what_was_removed(ranks):
    live = ranks.live()
    for step in range(1, STEPS + 1):
        for rank in (0, 1):
            ranks.write(rank, [event(step, rank)])
        # It notes where values are; when it reads them, they are at another place or not there any more.
        live.poll()
    live.advance(set(), 1e9)
    report = live.close()
    check(ranks)
    assert not report.late
    assert not report.damage


def test_a_merge_while_ranks_train_is_bounded_and_one_afterwards_too(ranks):
    live = ranks.live()
    for step in range(1, STEPS + 1):
        for rank in (0, 1):
            ranks.write(rank, [event(step, rank)])
        live.advance({0, 1}, float(step))
    live.close()
    check(ranks)
    while_they_trained = merged(ranks, "histogram")
    report = merge_run(ranks.run_dir)
    check(ranks)
    assert not report.damage
    assert merged(ranks, "histogram")[1] > while_they_trained[1] // 2


def test_status_says_what_was_removed(ranks):
    for step in range(1, STEPS + 1):
        for rank in (0, 1):
            ranks.write(rank, [event(step, rank)])
    found = read_status(ranks.run_dir)
    healths = [writer.health().removed for writer in ranks.writers]
    assert found.removed == healths[0].plus(healths[1])
    assert f"{found.removed.values} bulk values up to step {found.removed.step} (" in " ".join(hints(found))

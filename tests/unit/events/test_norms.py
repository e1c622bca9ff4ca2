"""Norms in the files of a rank: each is there once, whatever happens to the writer."""

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from distsummary.events.files import Files
from distsummary.events.reader import read_directory, read_file
from distsummary.events.segments import segments
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import DIALECTS, MINDSPORE, NORMS, Batch, Event, Value
from tests.unit.format import samples

RUN_ID = "00000000000000ab"


def batch(first_seq, steps, value=None):
    events = [
        Event(step, float(step), [Value("scalar", "loss", 0.5), value or samples.norms(step=step)])
        for step in steps
    ]
    return Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=first_seq, events=events)


def writer(path, files=None, **options):
    return RankWriter(WriterSpec(directory=path, run_id=RUN_ID, **options), files)


def names(events):
    return [
        (event.step, value.data.table.names)
        for event in events
        for value in event.values
        if value.plugin == NORMS
    ]


TABLE = ("a.weight", "b.größe", "c")


class Refusing(Files):
    """The disk takes nothing at the writes with these numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.count = numbers, 0

    def write(self, descriptor, parts):
        self.count += 1
        if self.count in self.numbers:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(descriptor, parts)


@pytest.mark.parametrize("number", range(1, 8))
def test_a_batch_that_is_sent_again_is_there_once(tmp_path, number):
    rank = writer(tmp_path, Refusing(number))
    for first in (1, 3, 5):
        try:
            rank.write(batch(first, (first, first + 1)))
        except OSError:
            rank.write(batch(first, (first, first + 1)))
    rank.write(batch(5, (5, 6)))
    rank.close()
    assert names(read_directory(tmp_path)) == [(step, TABLE) for step in range(1, 7)]


def test_a_change_of_the_model_and_a_restarted_writer_change_the_names(tmp_path):
    first = writer(tmp_path)
    first.write(batch(1, (1, 2)))
    first.close()
    second = writer(tmp_path)
    second.write(batch(1, (1, 2)))  # was in the file already
    second.write(batch(3, (3,)))
    second.write(batch(4, (4, 5), samples.norms(("lora",))))
    second.close()
    for file in segments(tmp_path, MINDSPORE):
        assert None not in [table for _, table in names(read_file(file))]
    found = names(read_directory(tmp_path))
    assert found == [*((step, TABLE) for step in (1, 2, 3)), (4, ("lora",)), (5, ("lora",))]


def test_norms_stay_when_bulk_values_have_to_go_and_count_as_norms(tmp_path):
    class NearlyFull(Files):
        def free_space(self, path: Path) -> tuple[int, int]:
            return 0, 1 << 40

    rank = writer(tmp_path, NearlyFull())
    events = [Event(1, 1.0, [samples.norms(), Value("tensor", "t", samples.PICTURE)])]
    rank.write(Batch(run_id=RUN_ID, attempt=0, rank=0, first_seq=1, events=events))
    rank.write(batch(2, (2,), Value(NORMS, "zz_norms", None)))
    rank.close()
    assert names(read_directory(tmp_path)) == [(1, TABLE)]
    assert rank.health().dropped == {"tensor": 1, NORMS: 1}


@pytest.mark.parametrize("failing", [None, 2, 3, 4])
def test_the_only_rank_of_a_run_shows_their_totals_also_if_a_batch_is_sent_twice(tmp_path, failing):
    rank = writer(tmp_path, Refusing(failing), shows_norms=True)
    for first in (1, 3):
        sent = batch(first, (first, first + 1), None)
        own = Value("scalar", "zz_norms/weight", 7.0)  # what a user recorded under a name of ours stays
        sent.events[0].values.append(own)
        with suppress(OSError):
            rank.write(sent)
        rank.write(sent)
    rank.close()
    for dialect in DIALECTS:
        found = {
            (event.step, value.tag): value.data
            for event in read_directory(tmp_path, dialect)
            for value in event.values
            if value.plugin == "scalar"
        }
        weights = {step: number for (step, tag), number in found.items() if tag == "zz_norms/weight"}
        assert weights == {1: 7.0, 2: pytest.approx(14**0.5), 3: 7.0, 4: pytest.approx(14**0.5)}
        assert {tag for _, tag in found} == {"loss", "zz_norms/gradient", "zz_norms/weight"}
    assert rank.health().dropped == {}

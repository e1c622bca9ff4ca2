"""Norms in the files of a rank: every segment names its parameters, whatever happens to the writer."""

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from distsummary.events.files import Files
from distsummary.events.reader import decode_frame, read_directory, read_file
from distsummary.events.segments import segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import read_frames
from distsummary.format.norms import ParameterNorms, UnnamedNorms
from distsummary.format.records import DIALECTS, MINDSPORE, NORMS, TENSORBOARD, Batch, Event, Value
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


pytestmark = pytest.mark.usefixtures("forget_tables")


def names(events):
    return [
        (event.step, value.data.table.names if isinstance(value.data, ParameterNorms) else None)
        for event in events
        for value in event.values
        if value.plugin == NORMS
    ]


TABLE = ("a.weight", "b.größe", "c")


@pytest.mark.parametrize("formats", [DIALECTS, (TENSORBOARD,)])
def test_every_segment_names_its_parameters(tmp_path, forget_tables, formats):
    with_limits = writer(tmp_path, formats=formats, limits=Limits(rotate_bytes=700))
    for number in range(4):
        with_limits.write(batch(2 * number + 1, (2 * number + 1, 2 * number + 2)))
    with_limits.close()
    files = segments(tmp_path, formats[0])
    assert len(files) > 2
    for file in files:
        forget_tables()
        alone = tmp_path / "alone" / file.name
        alone.parent.mkdir(exist_ok=True)
        alone.write_bytes(file.read_bytes())
        found = names(read_file(alone))
        assert found
        assert {table for _, table in found} == {TABLE}
        alone.unlink()
    assert names(read_directory(tmp_path, formats[0])) == [(step, TABLE) for step in range(1, 9)]


def test_a_reader_that_begins_in_the_middle_finds_the_names_that_were_written_before(tmp_path, forget_tables):
    rank = writer(tmp_path)
    rank.write(batch(1, range(1, 6)))
    rank.close()
    [file] = segments(tmp_path, MINDSPORE)
    middle = [event.end for event in read_file(file)][2]
    forget_tables()
    assert names(read_file(file, start=middle)) == [(4, TABLE), (5, TABLE)]
    forget_tables()
    frame = [*read_frames(file)][-1]
    assert isinstance(decode_frame(frame, MINDSPORE, file)[1].values[1].data, ParameterNorms)


def test_norms_whose_table_is_lost_keep_their_numbers(tmp_path, forget_tables):
    rank = writer(tmp_path)
    rank.write(batch(1, range(1, 4)))
    rank.close()
    [file] = segments(tmp_path, MINDSPORE)
    frames = [*read_frames(file)]
    file.write_bytes(file.read_bytes()[: frames[1].offset] + file.read_bytes()[frames[1].end :])
    forget_tables()
    values = [event.values for event in read_file(file)]
    assert [one[0].data for one in values] == [0.5, 0.5]
    assert all(isinstance(one[1].data, UnnamedNorms) for one in values)
    assert values[0][1].data.columns["weight_sums"].tolist() == [1.0, 4.0, 9.0]


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
def test_a_batch_that_is_sent_again_has_its_names_and_is_there_once(tmp_path, forget_tables, number):
    rank = writer(tmp_path, Refusing(number))
    for first in (1, 3, 5):
        try:
            rank.write(batch(first, (first, first + 1)))
        except OSError:
            rank.write(batch(first, (first, first + 1)))
    rank.write(batch(5, (5, 6)))
    rank.close()
    forget_tables()
    assert names(read_directory(tmp_path)) == [(step, TABLE) for step in range(1, 7)]


def test_a_restarted_writer_names_them_again_and_a_change_of_the_model_too(tmp_path, forget_tables):
    first = writer(tmp_path)
    first.write(batch(1, (1, 2)))
    first.close()
    second = writer(tmp_path)
    second.write(batch(1, (1, 2)))  # was in the file already
    second.write(batch(3, (3,)))
    second.write(batch(4, (4, 5), samples.norms(("lora",))))
    second.close()
    for file in segments(tmp_path, MINDSPORE):
        forget_tables()
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
    rank.write(batch(2, (2,), Value(NORMS, "norms", None)))
    rank.close()
    assert names(read_directory(tmp_path)) == [(1, TABLE)]
    assert rank.health().dropped == {"tensor": 1, NORMS: 1}


@pytest.mark.parametrize("failing", [None, 2, 3, 4])
def test_the_only_rank_of_a_run_shows_their_totals_also_if_a_batch_is_sent_twice(tmp_path, failing):
    rank = writer(tmp_path, Refusing(failing), shows_norms=True)
    for first in (1, 3):
        sent = batch(first, (first, first + 1), None)
        own = Value("scalar", "norms/weight", 7.0)  # what a user recorded under a name of ours stays
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
        weights = {step: number for (step, tag), number in found.items() if tag == "norms/weight"}
        assert weights == {1: 7.0, 2: pytest.approx(14**0.5), 3: 7.0, 4: pytest.approx(14**0.5)}
        assert {tag for _, tag in found} == {
            "loss", "norms/gradient", "norms/weight", "norms/gradient/b.größe"
        }  # fmt: skip
    assert rank.health().dropped == {}


def test_norms_that_are_none_cost_themselves_also_where_their_totals_are_shown(tmp_path):
    rank = writer(tmp_path, shows_norms=True)
    bad = replace(samples.norms().data, weight_sums=samples.norms().data.weight_sums[:1])
    rank.write(batch(1, (1,), Value(NORMS, "norms", bad)))
    rank.close()
    [event] = read_directory(tmp_path)
    assert event.values == [Value("scalar", "loss", 0.5)]
    assert rank.health().dropped == {NORMS: 1}

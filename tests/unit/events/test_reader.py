"""Reading what was written, whole, damaged, twice and growing."""

import logging
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError
from distsummary.events.reader import (
    MAX_DAMAGE,
    Damage,
    read_directory,
    read_file,
    read_last_seq,
    read_lineage,
    read_values,
)
from distsummary.events.segments import dialect_of
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.crc import masked_crc
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.lineage import Lineage, encode_lineage
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import Event, EventIds, Value
from tests.refusals import refused
from tests.unit.format import samples

RUN = "0123456789abcdef"
MINDSPORE = "events.out.events.summary.{:010d}.0.host_MS"
TENSORBOARD = "events.out.tfevents.{:010d}.host.1.0"
LINEAGE = "events.out.events.summary.{:010d}.0.host_lineage"


def scalar_frames(dialect: str, seqs: range, *, attempt: int = 0, run_id: str = RUN) -> list[bytes]:
    """Frames of a version record and of scalars, the step ten times the seq."""
    formats = mindspore_format if dialect == "mindspore" else tensorboard_format
    found = [frame(formats.encode_version(1.0, EventIds(run_id, attempt)))]
    for seq in seqs:
        event = Event(10 * seq, float(seq), [Value("scalar", "loss", seq / 2)])
        payload = encode_event(event, EventIds(run_id, attempt, seq), (dialect,))[0][dialect]
        assert payload is not None
        found.append(frame(payload))
    return found


def write(directory: Path, name: str, frames: list[bytes]) -> Path:
    path = directory / name
    path.write_bytes(b"".join(frames))
    return path


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("dialect", "name"), [("mindspore", MINDSPORE), ("tensorboard", TENSORBOARD)])
def test_the_name_reports_the_dialect(nasty_tmp_path: Path, dialect: str, name: str):
    frames = scalar_frames(dialect, range(1, 4))
    path = write(nasty_tmp_path, name.format(17), frames)
    events = list(read_file(path))
    assert [(e.run_id, e.attempt, e.seq, e.step, e.wall_time) for e in events] == [
        (RUN, 0, seq, 10 * seq, float(seq)) for seq in (1, 2, 3)
    ]
    assert [value for e in events for value in e.values] == [
        Value("scalar", "loss", seq / 2) for seq in (1, 2, 3)
    ]
    assert {e.file for e in events} == {path}
    assert events[0].offset == len(frames[0])


def test_lineage_files_are_reported_by_their_suffix():
    assert dialect_of(Path("a") / LINEAGE.format(5)) == "lineage"
    assert dialect_of(MINDSPORE.format(5)) == "mindspore"
    assert dialect_of(TENSORBOARD.format(5)) == "tensorboard"


@pytest.mark.parametrize("mode", ["strict", "skip"])
def test_a_torn_tail_is_no_damage(nasty_tmp_path: Path, mode: str):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(17), [*frames, frames[-1][:-3]])
    skipped: list[Damage] = []
    assert [event.seq for event in read_file(path, mode, skipped=skipped)] == [1, 2, 3]
    assert skipped == []


def test_strict_names_the_file_and_the_offset(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(17), frames)
    offset = len(frames[0]) + len(frames[1])
    flip(path, offset + 14)
    events = read_file(path)
    assert next(events).seq == 1
    with pytest.raises(DamagedFileError, match="wrong CRC") as caught:
        next(events)
    assert str(path) in str(caught.value)
    assert f"byte {offset}:" in str(caught.value)


def test_skip_loses_only_the_damaged_event_and_says_so(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(17), frames)
    offset = len(frames[0]) + len(frames[1])
    flip(path, offset + 14)
    skipped: list[Damage] = []
    assert [event.seq for event in read_file(path, "skip", skipped=skipped)] == [1, 3]
    assert skipped == [Damage(path, offset, "the payload has a wrong CRC")]


def test_skip_finds_the_next_event_behind_a_damaged_length(nasty_tmp_path, caplog):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(17), frames)
    offset = len(frames[0]) + len(frames[1])
    flip(path, offset)
    with caplog.at_level(logging.WARNING):
        assert [event.seq for event in read_file(path, "skip")] == [1, 3]
    assert f"damaged at byte {offset}" in caplog.text
    with pytest.raises(DamagedFileError, match=f"byte {offset}:"):
        list(read_file(path, "strict"))


@pytest.mark.parametrize(
    "inserted",
    [
        bytes(4096),
        b"\xff" * 5000,
        struct.pack("<QI", 2**40, masked_crc(struct.pack("<Q", 2**40))),
        struct.pack("<QI", 2**64 - 17, masked_crc(struct.pack("<Q", 2**64 - 17))),
        struct.pack("<QI", 5000, masked_crc(struct.pack("<Q", 5000))) + b"torn",
    ],
    ids=["zeros", "ones", "2^40", "2^64-17", "torn in the middle"],
)
def test_skip_reads_everything_behind_damage_that_hides_it_from_the_viewers(nasty_tmp_path, inserted):
    frames = scalar_frames("mindspore", range(1, 101))
    before = b"".join(frames[:51])
    path = write(nasty_tmp_path, MINDSPORE.format(17), [before, inserted, *frames[51:]])
    skipped: list[Damage] = []
    assert [event.seq for event in read_file(path, "skip", skipped=skipped)] == list(range(1, 101))
    assert [damage.offset for damage in skipped] == [len(before)]
    assert read_last_seq(nasty_tmp_path, "mindspore", RUN, 0) == 100


def test_reading_continues_at_the_end_of_an_earlier_event(nasty_tmp_path: Path):
    path = write(nasty_tmp_path, MINDSPORE.format(17), scalar_frames("mindspore", range(1, 6)))
    third = list(read_file(path))[2]
    assert [event.seq for event in read_file(path, start=third.end)] == [4, 5]


def test_countless_damage_is_listed_up_to_a_limit_and_counted(nasty_tmp_path, caplog):
    bad = bytearray(frame(b"bad"))
    bad[-1] ^= 1
    path = write(nasty_tmp_path, MINDSPORE.format(17), [bytes(bad)] * (MAX_DAMAGE + 50))
    skipped: list[Damage] = []
    assert list(read_file(path, "skip", skipped=skipped)) == []
    assert len(skipped) == MAX_DAMAGE + 1
    assert skipped[-1].reason.startswith("50 more places")
    with caplog.at_level(logging.WARNING):
        list(read_file(path, "skip"))
    assert len(caplog.records) < 20


def test_values_come_flat_and_once(nasty_tmp_path: Path):
    first = write(nasty_tmp_path, MINDSPORE.format(9), scalar_frames("mindspore", range(1, 4)))
    write(nasty_tmp_path, MINDSPORE.format(10), scalar_frames("mindspore", range(2, 5), attempt=0))
    expected = [(0, seq, 10 * seq, float(seq), "loss", seq / 2) for seq in range(1, 5)]
    assert list(read_values(nasty_tmp_path)) == expected
    assert list(read_values(first)) == expected[:3]
    assert list(read_values(nasty_tmp_path, "tensorboard")) == []
    for path in nasty_tmp_path.iterdir():
        path.unlink()
    write(nasty_tmp_path, TENSORBOARD.format(9), scalar_frames("tensorboard", range(1, 5)))
    assert list(read_values(nasty_tmp_path)) == expected
    assert next(read_values(nasty_tmp_path)).tag == "loss"


def histogram_frame(fields: dict[str, Any]) -> bytes:
    value = tensorboard_pb2.Summary.Value(tag="h", histo=tensorboard_pb2.HistogramProto(**fields))
    event = tensorboard_pb2.Event(step=1, summary=tensorboard_pb2.Summary(value=[value]))
    return frame(event.SerializeToString())


@pytest.mark.parametrize(
    "histogram",
    [
        {"num": math.inf, "bucket": [1.0], "bucket_limit": [1.0]},
        {"num": math.nan, "bucket": [1.0], "bucket_limit": [1.0]},
        {"num": 2.0, "bucket": [1.0, math.nan], "bucket_limit": [1.0, 2.0]},
        {"num": 2.0, "bucket": [1.0, 1e300], "bucket_limit": [1.0, 2.0]},
    ],
)
def test_a_histogram_that_cannot_be_counted_is_damage(nasty_tmp_path: Path, histogram: dict[str, Any]):
    path = write(nasty_tmp_path, TENSORBOARD.format(17), [histogram_frame(histogram)])
    with pytest.raises(DamagedFileError, match=r"counts .* 2\*\*63"):
        list(read_file(path))


def test_infinite_edges_of_a_histogram_are_read_without_a_warning(nasty_tmp_path: Path):
    histogram = {"num": 2.0, "min": math.inf, "max": math.inf, "bucket": [2.0], "bucket_limit": [1.0]}
    path = write(nasty_tmp_path, TENSORBOARD.format(17), [histogram_frame(histogram)])
    (read,) = read_file(path)
    assert read.values[0].data.counts.tolist() == [2]
    assert math.isnan(read.values[0].data.width[0])


@pytest.mark.parametrize("name", [MINDSPORE, TENSORBOARD, LINEAGE])
def test_garbage_with_a_right_crc_is_damage_of_one_event(nasty_tmp_path: Path, name: str):
    path = write(nasty_tmp_path, name.format(17), [frame(b"\xff\xff\xff")])
    skipped: list[Damage] = []
    assert list(read_file(path, "skip", skipped=skipped)) == []
    assert [damage.offset for damage in skipped] == [0]
    with pytest.raises(DamagedFileError, match="not a"):
        list(read_file(path))


def test_what_cannot_be_read_is_refused(nasty_tmp_path: Path):
    refused(
        InvalidValueError,
        (lambda: read_file("nowhere", "tolerant"), "mode"),
        (lambda: read_file("nowhere", start=-1), "start"),
        (lambda: read_values(nasty_tmp_path, "lineage"), "dialect"),
    )
    refused(
        MissingFileError,
        (lambda: list(read_file(nasty_tmp_path / "nowhere")), "nowhere"),
        (lambda: read_directory(nasty_tmp_path / "nowhere"), "nowhere"),
    )


def test_segments_are_read_by_their_stamps_and_every_event_once(nasty_tmp_path: Path):
    write(nasty_tmp_path, MINDSPORE.format(30), scalar_frames("mindspore", range(4, 8)))
    write(nasty_tmp_path, MINDSPORE.format(9), scalar_frames("mindspore", range(1, 6)))
    write(nasty_tmp_path, MINDSPORE.format(40), scalar_frames("mindspore", range(1, 3), attempt=1))
    write(nasty_tmp_path, TENSORBOARD.format(9), scalar_frames("tensorboard", range(1, 3)))
    write(nasty_tmp_path, LINEAGE.format(9), [frame(b"\xff")])
    write(nasty_tmp_path, ".tmp-1234", [b"x"])
    found = [(event.attempt, event.seq) for event in read_directory(nasty_tmp_path)]
    assert found == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (1, 1), (1, 2)]
    assert [event.seq for event in read_directory(nasty_tmp_path, "tensorboard")] == [1, 2]


def test_events_of_other_writers_are_all_kept(nasty_tmp_path: Path):
    payload = encode_event(Event(1, 1.0, [Value("scalar", "loss", 0.5)]), None, ("mindspore",))[0][
        "mindspore"
    ]
    assert payload is not None
    write(nasty_tmp_path, MINDSPORE.format(9), [frame(payload), frame(payload)])
    events = list(read_directory(nasty_tmp_path))
    assert [(event.run_id, event.attempt, event.seq) for event in events] == [("", 0, 0)] * 2


def test_the_last_seq_of_an_attempt_is_found(nasty_tmp_path: Path):
    write(nasty_tmp_path, MINDSPORE.format(9), scalar_frames("mindspore", range(1, 6)))
    write(nasty_tmp_path, MINDSPORE.format(12), scalar_frames("mindspore", range(6, 9)))
    newest = write(nasty_tmp_path, MINDSPORE.format(13), scalar_frames("mindspore", range(1, 3), attempt=1))
    flip(newest, newest.stat().st_size - 6)
    write(nasty_tmp_path, MINDSPORE.format(14), [])
    assert read_last_seq(nasty_tmp_path, "mindspore", RUN, 0) == 8
    assert read_last_seq(nasty_tmp_path, "mindspore", RUN, 1) == 1
    assert read_last_seq(nasty_tmp_path, "mindspore", RUN, 2) == 0
    assert read_last_seq(nasty_tmp_path, "mindspore", "f" * 16, 0) == 0
    assert read_last_seq(nasty_tmp_path, "tensorboard", RUN, 0) == 0


def lineage_file(directory: Path, stamp: int, lineage: Lineage) -> Path:
    return write(directory, LINEAGE.format(stamp), [frame(p) for p in encode_lineage(lineage, 1.0)])


def test_a_later_evaluation_is_added_to_the_lineage(nasty_tmp_path: Path):
    first = Lineage(train=samples.TRAIN, dataset_graph=samples.DATASET, custom=samples.custom(a=1))
    path = lineage_file(nasty_tmp_path, 9, first)
    lineage_file(
        nasty_tmp_path, 10, Lineage(evaluation=samples.EVALUATION, custom=samples.custom(a=2, b="x"))
    )
    assert read_lineage(path) == first
    assert read_lineage(nasty_tmp_path) == Lineage(
        train=samples.TRAIN,
        dataset_graph=samples.DATASET,
        evaluation=samples.EVALUATION,
        custom=samples.custom(a=2, b="x"),
    )


def test_a_later_training_begins_the_lineage_again(nasty_tmp_path: Path):
    lineage_file(nasty_tmp_path, 9, Lineage(evaluation=samples.EVALUATION, custom=samples.custom(a=1)))
    lineage_file(nasty_tmp_path, 10, Lineage(train=samples.TRAIN))
    assert read_lineage(nasty_tmp_path) == Lineage(train=samples.TRAIN)


def test_a_directory_without_lineage_has_an_empty_one(nasty_tmp_path: Path):
    assert read_lineage(nasty_tmp_path) == Lineage()

"""Every way of reading gives what reading frame by frame through protobuf gives, on any file."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from distsummary.cli.dump import dump
from distsummary.errors import DamagedFileError
from distsummary.events.contents import scan
from distsummary.events.reader import Damage, read_directory, read_file, read_last_seq, read_values
from distsummary.events.scalar_columns import ScalarColumns, read_pieces
from distsummary.events.segments import dialect_of
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.encode import EventEncoder, encode_event
from distsummary.format.frames import frame, read_frames
from distsummary.format.pb import mindspore_summary_pb2, tensorboard_pb2
from distsummary.format.records import DIALECTS, Event, EventIds, Value
from distsummary.format.wire import read_identity, refuse_bad_text, refuse_bombs
from tests.properties.test_reader import GOLDEN_FILES, mutated
from tests.unit.events.test_reader import MINDSPORE, TENSORBOARD

RUNS = ("0123456789abcdef", "00ff00ff00ff00ff")
NAMES = {"mindspore": MINDSPORE.format(17), "tensorboard": TENSORBOARD.format(17)}
SUMMARY_FILES = [path for path in GOLDEN_FILES if dialect_of(path) == "mindspore"]
FORMATS = {"mindspore": mindspore_format, "tensorboard": tensorboard_format}
MESSAGES = {
    "mindspore": mindspore_summary_pb2.Event.DESCRIPTOR,
    "tensorboard": tensorboard_pb2.Event.DESCRIPTOR,
}
TAGS = ("loss", "acc/ü", "t" * 100, "rate", "x", "")
FIRST_SEQS = (1, 100, 5_400, 16_300, 699_000, 2_097_100)  # of events whose step is three times their seq
NUMBERS = (0.5, -0.0, 3.0, math.nan, math.inf, 1e-40)


class Expected(NamedTuple):
    """Events without their file, in reprs (NaN is equal to itself there), and the damage passed over."""

    events: list[str]
    damage: list[tuple[int, str]]
    error: str = ""


def reference(path: Path, mode: str, start: int = 0) -> Expected:
    """What a reader gives: frame by frame, every payload parsed by protobuf."""
    dialect = dialect_of(path)
    events, damage, waiting = [], [], []
    for one in read_frames(path, start=start, resync=mode != "strict"):
        try:
            if one.damage is not None:
                raise DamagedFileError(one.damage)
            refuse_bombs(one.payload, MESSAGES[dialect])
            with np.errstate(all="ignore"):
                decoded = FORMATS[dialect].decode_event(one.payload)
            refuse_bad_text([] if decoded is None else decoded[1].values)
        except DamagedFileError as error:
            if mode == "strict":
                return Expected(events, [], f"byte {one.offset}: {error}")
            waiting.append((one.offset, str(error)))
            continue
        damage += waiting
        waiting = []
        if decoded is not None:
            events.append(repr((*decoded[0], *decoded[1], one.offset, one.end)))
    return Expected(events, damage if mode == "tail" else damage + waiting)


def found(path: Path, mode: str, start: int = 0) -> Expected:
    """What `read_file` gives."""
    skipped: list[Damage] = []
    events, error = [], ""
    try:
        for event in read_file(path, mode, start=start, skipped=skipped):
            assert event.file == path
            events.append(repr((*event[:6], *event[7:])))
    except DamagedFileError as raised:
        error = str(raised).removeprefix(f"{path} is damaged at ").partition("; read it with")[0]
    return Expected(events, [damage[1:] for damage in skipped], error)


def check(path: Path) -> int:
    """Every public way to read the file against the reference; how many events came in columns."""
    for mode in ("strict", "skip", "tail"):
        expected = reference(path, mode)
        assert found(path, mode) == expected
        if len(expected.events) > 3:
            middle = int(expected.events[len(expected.events) // 2].rpartition(" ")[2][:-1])
            assert found(path, mode, middle) == reference(path, mode, middle)
    check_values(path)
    check_dump(path)
    dialect = dialect_of(path)
    pieces = read_pieces(path, dialect, resync=True)
    return sum(piece.seqs.size for piece in pieces if isinstance(piece, ScalarColumns))


def once(path: Path) -> Iterator[Any]:
    """The events of a file without those that came before."""
    seen = set()
    for event in read_file(path, "skip", skipped=[]):
        ids = (event.run_id, event.attempt, event.seq)
        if not event.seq or ids not in seen:
            seen.add(ids)
            yield event


def check_values(path: Path) -> None:
    """`read_values`, `scan`, `read_directory` and `read_last_seq` against `read_file`."""
    events = list(once(path))
    rows = [(*event[1:5], value.tag, value.data) for event in events for value in event.values]
    values = list(read_values(path, mode="skip", skipped=[]))
    assert repr([tuple(value) for value in values]) == repr(rows)
    assert [event[:3] for event in read_directory(path.parent, dialect_of(path), "skip", skipped=[])] == [
        event[:3] for event in events
    ]
    part = scan(path)
    if part.size:
        everything = list(read_file(path, "skip", skipped=[]))
        columns = {name: column.load().tolist() for name, column in part.events.items()}
        owners = [part.owners[number] for number in columns["owner"]]
        reported = zip(owners, columns["seq"], columns["step"], columns["wall_time"], strict=True)
        assert repr(list(reported)) == repr([((e.run_id, e.attempt), *e[2:5]) for e in everything])
        scalars = {}
        for place, event in enumerate(everything):
            for value in event.values:
                if value.plugin == "scalar" and value.shard is None:
                    scalars.setdefault(value.tag, []).append((place, float(np.float32(value.data))))
        assert part.scalars.keys() == scalars.keys()
        for tag, series in part.scalars.items():
            found = zip(*(column.load().tolist() for column in series), strict=True)
            assert repr(list(found)) == repr(scalars[tag])
    for run_id in RUNS:
        assert read_last_seq(path.parent, dialect_of(path), run_id, 0) == last_seq(path, run_id)


def check_dump(path: Path) -> None:
    """`dump` shows the values and the damage that `read_file` gives."""
    damage: list[Damage] = []
    reported = [
        (*event[1:4], value.plugin, value.tag)
        for event in read_file(path, "skip", skipped=damage)
        for value in event.values
    ]
    records = list(dump(path))
    keys = ("attempt", "seq", "step", "plugin", "tag")
    values = [record for record in records if record["plugin"] != "damage"]
    assert [tuple(record[key] for key in keys) for record in values] == reported
    found = [record["offset"] for record in records if record["plugin"] == "damage"]
    assert found[: len(damage)] == [one.offset for one in damage]
    assert len(found) - len(damage) in (0, 1)  # a torn tail is shown, too


def last_seq(path: Path, run_id: str) -> int:
    """The highest seq of the frames up to the first of another attempt than 0 of the run."""
    last = 0
    for one in read_frames(path, resync=True):
        if one.damage is None:
            try:
                owner, attempt, seq = read_identity(one.payload)
            except ValueError:
                break
            if (owner, attempt) != (run_id, 0):
                break
            last = max(last, seq)
    return last


def scalars(draw: Random, dialect: str) -> list[bytes]:
    """A run of frames of one writer's scalars; steps and seqs cross the lengths of their varints."""
    count, first = draw.choice((5, 70, 600)), draw.choice(FIRST_SEQS)
    seqs = range(first, first + count)
    tags = tuple(draw.sample(TAGS[:5], draw.randint(1, 3)))
    wide = draw.random() < 0.3  # tags of several lengths in turns
    events = []
    for seq in seqs:
        names = (draw.choice(TAGS[:5]),) if wide else tags
        values = [Value("scalar", tag, draw.choice(NUMBERS)) for tag in names]
        events.append(Event(3 * seq, 1.7e9 + seq / 8, values))
    encoder = EventEncoder(draw.choice(RUNS), draw.choice((0, 0, 1, 200)), (dialect,))
    parts = [part for run in encoder.encode(first, events).framed[dialect] for part in run.parts]
    return [frame(found.payload) for found in read_frames(io.BytesIO(b"".join(parts)))]


def broad(draw: Random, dialect: str) -> list[bytes]:
    """A few events of many tags each, of which some may be renamed on the way."""
    first, tags = (
        draw.choice(FIRST_SEQS),
        [f"layer{n // 10}/metric_{n % 10}" for n in range(draw.randint(90, 500))],
    )
    events = []
    for seq in range(first, first + draw.choice((1, 3, 9))):
        if draw.random() < 0.2:
            tags[draw.randrange(len(tags))] = draw.choice(("layer0/other___0", "new"))
        values = [Value("scalar", tag, draw.choice(NUMBERS)) for tag in tags]
        events.append(Event(3 * seq, 1.7e9 + seq / 8, values))
    encoder = EventEncoder(RUNS[0], 0, (dialect,))
    parts = [part for run in encoder.encode(first, events).framed[dialect] for part in run.parts]
    return [frame(found.payload) for found in read_frames(io.BytesIO(b"".join(parts)))]


def others(draw: Random, dialect: str) -> list[bytes]:
    """Events of the general encoder: other plugins, no identity, no step, no seq."""
    encoded = []
    for number in range(draw.choice((1, 2, 100))):
        value = draw.choice(
            (Value("scalar", draw.choice(TAGS[:5]), 0.25), Value("histogram", "h", np.ones(3)))
        )
        ids = draw.choice((None, EventIds(RUNS[0], 0), EventIds(RUNS[1], 3, number + 1)))
        event = Event(draw.choice((0, -1, number, 2**62)), draw.choice((0.0, 5.5)), [value])
        encoded.append(encode_event(event, ids, (dialect,))[0][dialect])
    return [frame(payload) for payload in encoded if payload is not None]


def rewritten(draw: Random, one: bytes) -> bytes:
    """The frame with a changed payload and the CRC of that: what no writer makes, but no damage either."""
    payload = bytearray(one[12:-4])
    for _ in range(draw.randint(1, 2)):
        payload[draw.randrange(len(payload))] = draw.choice(
            (0, 1, 0x0A, 0x1D, 0x80, 0xFF, draw.randrange(256))
        )
    return frame(bytes(payload))


def a_file(draw: Random, dialect: str, kinds: tuple[Any, ...] = (scalars, scalars, others)) -> bytes:
    """A version record, runs of scalars with other events, rewritten ones and damage between them."""
    frames = [frame(FORMATS[dialect].encode_version(1.0, EventIds(RUNS[0], 0)))]
    for _ in range(draw.randint(1, 5)):
        frames += draw.choice(kinds)(draw, dialect)
    for _ in range(draw.choice((0, 0, 1, 5))):
        place = draw.randrange(len(frames))
        frames[place] = rewritten(draw, frames[place])
    data = b"".join(frames)
    return mutated(data, draw) if draw.random() < 0.5 else data


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from(DIALECTS))
def test_columns_and_frames_report_the_same(nasty_tmp_path: Path, seed: int, dialect: str):
    path = nasty_tmp_path / NAMES[dialect]
    path.write_bytes(a_file(Random(seed), dialect))
    check(path)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from(DIALECTS))
@example(39916799, "mindspore")  # a tag of a frame that does not fit the columns
def test_columns_and_frames_of_many_tags_report_the_same(nasty_tmp_path: Path, seed: int, dialect: str):
    path = nasty_tmp_path / NAMES[dialect]
    path.write_bytes(a_file(Random(seed), dialect, (broad, broad, scalars)))
    check(path)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_most_events_come_in_columns(nasty_tmp_path: Path, dialect: str):
    path = nasty_tmp_path / NAMES[dialect]
    in_columns = events = 0
    for seed in range(8):
        path.write_bytes(a_file(Random(seed), dialect))
        in_columns += check(path)
        events += len(reference(path, "skip").events)
    assert in_columns > events / 3


@pytest.mark.parametrize("file", SUMMARY_FILES, ids=lambda path: f"{path.parts[-3]}/{path.name[-12:]}")
def test_real_files_of_mindspore_are_read_alike_whole_repeated_and_damaged(nasty_tmp_path: Path, file: Path):
    path = nasty_tmp_path / file.name
    scalars = [
        data[one.offset : one.end]
        for data in [file.read_bytes()]
        for one, kinds in plugins(file)
        if kinds == {"scalar"}
    ]
    path.write_bytes(file.read_bytes() + b"".join(scalars) * 50)
    in_columns = check(path)
    assert in_columns > 0 or len(scalars) < 3
    for seed in range(3):
        path.write_bytes(mutated(file.read_bytes() + b"".join(scalars) * 20, Random(seed)))
        check(path)


def plugins(file: Path) -> Iterator[tuple[Any, set[str]]]:
    for event in read_file(file):
        yield event, {value.plugin for value in event.values}


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
def test_files_of_other_writers_come_in_columns(nasty_tmp_path: Path, library: str):
    module = pytest.importorskip(library)
    with module.SummaryWriter(str(nasty_tmp_path)) as writer:
        for step in range(400):
            writer.add_scalar("loss", step / 4, step)
            writer.add_scalar("accuracy", step / 8, step)
    (path,) = nasty_tmp_path.iterdir()
    assert check(path) > 700
    part = scan(path)
    places, values = (column.load() for column in part.scalars["loss"])
    assert part.events["step"].load()[places].tolist() == list(range(400))
    assert values.tolist() == [step / 4 for step in range(400)]

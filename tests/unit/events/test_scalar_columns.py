"""Files in pieces: long runs of scalars in columns, and whatever else as the frames that it is."""

import io
from collections.abc import Sequence

import numpy as np
import pytest

from distsummary.events.scalar_columns import FEW, ScalarColumns, read_pieces
from distsummary.format import mindspore_format
from distsummary.format.encode import encode_event
from distsummary.format.frames import Frame, frame
from distsummary.format.records import DIALECTS, Event, EventIds, Value

RUN = "0123456789abcdef"
VERSION = frame(mindspore_format.encode_version(1.0, EventIds(RUN, 0)))
MANY = 4 * FEW


def run(
    seqs: Sequence[int], tags: tuple[str, ...] = ("loss",), attempt: int = 0, dialect: str = "mindspore"
) -> list[bytes]:
    """Frames of scalars, the step ten times the seq."""
    values = {seq: [Value("scalar", tag, seq / 2) for tag in tags] for seq in seqs}
    events = {seq: Event(10 * seq, 1.5 * seq, values[seq]) for seq in seqs}
    return [framed(event, EventIds(RUN, attempt, seq), dialect) for seq, event in events.items()]


def framed(event: Event, ids: EventIds, dialect: str) -> bytes:
    payload = encode_event(event, ids, (dialect,))[0][dialect]
    assert payload is not None
    return frame(payload)


def pieces(frames: list[bytes], dialect: str = "mindspore") -> list[ScalarColumns | Frame]:
    return list(read_pieces(io.BytesIO(b"".join(frames)), dialect))


def columns(frames: list[bytes], dialect: str = "mindspore") -> list[ScalarColumns]:
    return [piece for piece in pieces(frames, dialect) if isinstance(piece, ScalarColumns)]


def joined(found: list[ScalarColumns], column: str) -> list[float]:
    return np.concatenate([getattr(piece, column) for piece in found]).tolist()


def shape(frames: list[bytes], dialect: str = "mindspore") -> list[int | str | None]:
    """The events of each run of columns, and the damage of each frame."""
    return [
        piece.seqs.size if isinstance(piece, ScalarColumns) else piece.damage
        for piece in pieces(frames, dialect)
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_many_scalars_come_in_columns(dialect: str):
    seqs = range(1, 3 * MANY + 1)  # steps and seqs of one, two and three bytes
    frames = run(seqs, dialect=dialect)
    found = columns(frames, dialect)
    ends = np.cumsum([len(one) for one in frames])
    assert joined(found, "seqs") == list(seqs)
    assert joined(found, "steps") == [10 * seq for seq in seqs]
    assert joined(found, "wall_times") == [1.5 * seq for seq in seqs]
    assert joined(found, "numbers") == [seq / 2 for seq in seqs]
    assert joined(found, "ends") == ends.tolist()
    assert joined(found, "offsets") == [0, *ends[:-1]]
    assert [tag for piece in found for tag in piece.tag_texts()] == ["loss"] * len(seqs)
    assert {(piece.run_id, piece.attempt) for piece in found} == {(RUN, 0)}


def test_few_scalars_and_other_events_come_as_frames():
    assert shape([VERSION, *run(range(1, FEW))]) == [None] * FEW
    histogram = encode_event(Event(1, 1.0, [Value("histogram", "h", np.ones(3))]), None, ("mindspore",))
    other = frame(histogram[0]["mindspore"] or b"")
    found = shape([VERSION, *run(range(1, MANY + 1)), other, *run(range(MANY + 1, 2 * MANY))])
    assert sum(count for count in found if count) == 2 * MANY - FEW  # behind the version no try pays
    assert found.count(None) == FEW + 1


def test_a_damaged_frame_ends_the_columns_and_comes_as_itself():
    frames = run(range(200, 200 + MANY))
    bad = bytearray(frames[150])
    bad[20] ^= 64
    found = shape([*frames[:150], bytes(bad), *frames[151:]])
    assert [one for one in found if isinstance(one, str)] == ["the payload has a wrong CRC"]
    assert found[:2] == [150, "the payload has a wrong CRC"]
    assert sum(one for one in found[2:] if isinstance(one, int)) == MANY - 151


@pytest.mark.parametrize(
    ("place", "octet"),
    [(0, 0x11), (10, 0x7F), (11, 0x80), (18, 0xFF), (22, 0x15), (-1, 0x80), (-2, 0x7F), (-3, 0)],
    ids=["key", "shorter step", "longer step", "no text", "plugin", "longer seq", "shorter seq", "seq's key"],
)
def test_what_is_not_as_in_the_others_is_left_to_the_general_way(place: int, octet: int):
    frames = run(range(200, 500), ("abcd",))
    payload = bytearray(frames[170][12:-4])
    assert payload[10:12] == b"\xf4\x1c"  # step 3700
    assert payload[18:23] == b"abcd\x1d"
    assert payload[-4:] == b"\xd0\x3e\xf2\x02"  # seq 370
    payload[place] = octet
    frames[170] = frame(bytes(payload))
    found = pieces(frames)
    assert isinstance(found[0], ScalarColumns)
    assert found[0].seqs.size == 170
    assert found[1] == Frame(len(b"".join(frames[:170])), bytes(payload), None, len(b"".join(frames[:171])))


def test_columns_are_of_one_attempt():
    frames = [*run(range(200, 400)), *run(range(200, 400), attempt=1)]
    owners = [(piece.attempt, piece.seqs.size) for piece in columns(frames)]
    assert owners[0] == (0, 200)
    assert {attempt for attempt, _ in owners} == {0, 1}


def test_a_torn_frame_is_left_out():
    frames = run(range(200, 400))
    assert joined(columns([*frames, frames[0][:-1]]), "seqs") == list(range(200, 400))


def test_a_signalling_nan_is_read_as_a_nan():
    frames = run(range(200, 400))
    payload = frames[7][12:-4].replace(np.float32(103.5).tobytes(), b"\x01\x00\x80\x7f")
    frames[7] = frame(payload)
    assert np.flatnonzero(np.isnan(joined(columns(frames), "numbers"))).tolist() == [7]


@pytest.mark.parametrize(("tags", "events"), [(1_000, 20), (10_000, 3)])
def test_wide_events_come_in_columns_however_few(tags: int, events: int):
    names = tuple(f"layer{n // 10}/metric_{n % 10}" for n in range(tags))
    frames = run(range(120, 120 + events), names)  # seqs of one and of two bytes
    found = pieces([VERSION, *frames])
    alone = [piece for piece in found if isinstance(piece, Frame)]
    wide = [piece for piece in found if isinstance(piece, ScalarColumns)]
    assert alone[0].end == len(VERSION)
    assert len(alone) <= 2  # one may be read while the kind of the file is not known
    assert sum(piece.seqs.size for piece in wide) == events + 1 - len(alone)
    first = 120 + events - sum(piece.seqs.size for piece in wide)
    assert joined(wide, "seqs") == list(range(first, 120 + events))
    assert joined(wide, "numbers") == [seq / 2 for seq in range(first, 120 + events) for _ in names]
    assert [tag for piece in wide for tag in piece.tag_texts()] == [*names] * (events + 1 - len(alone))


def test_tags_of_an_earlier_event_of_the_same_layout_are_not_those_of_a_later_one():
    frames = [*run(range(200, 300), ("a",)), *run(range(300, 300 + 2 * MANY), ("b",))]
    one_by_one = [piece for piece in pieces(frames) if isinstance(piece, ScalarColumns)]
    for piece in one_by_one:
        texts = [*piece.tag_texts()]
        assert {*piece.tags} == {*texts}
    assert [tag for piece in one_by_one for tag in piece.tag_texts()] == ["a"] * 100 + ["b"] * 2 * MANY

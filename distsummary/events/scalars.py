"""Events of scalars alone, the most frequent ones: a batch of them encoded in columns for both dialects."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import numpy as np

from distsummary.events import wire
from distsummary.events.encode import MAX_TAG
from distsummary.events.frames import HEADER_BYTES, frame, masked
from distsummary.events.records import Array, Event, EventIds, Scalars, Value

FEW = 4  # events of one layout; fewer cost less in the general way
_MAX_LENGTH = 1 << 14  # bytes of an event; a larger one, like anything unusual, goes the general way
_MAX_LAYOUTS = 1024
_LONGER = np.array([1 << 7 * length for length in range(1, 9)])  # needs more than so many bytes
_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))
_MINDSPORE_KEY, _TENSORBOARD_KEY = wire.key(3, wire.FIXED32), wire.key(2, wire.FIXED32)

_Key: TypeAlias = tuple[tuple[str, ...], int, int]  # tags, bytes of the step, bytes of the seq


class _Layout(NamedTuple):
    """The frames of events with the same tags and equally long step and seq: only the numbers differ.

    `template` is such a frame in the MindSpore dialect, uint8 (length,); `fields` names its places for
    wall_time, step, seq, crc and the numbers "0", "1" ... `keys` are the offsets of the bytes that say that a
    number follows, all that is different in the TensorBoard dialect. `crc_change` is what that does to the
    CRC, the same for all numbers: CRCs are linear, the CRC of equally long a ^ b is crc(a) ^ crc(b) ^ crc(0).
    """

    template: Array
    fields: np.dtype[Any]
    keys: list[int]
    crc_change: int


def scalars_of(event: Event) -> Scalars | None:
    """The event in columns when it holds plain scalars alone, else None."""
    tags, numbers = [], []
    for plugin, tag, number, shard in event.values:
        if plugin != "scalar" or shard is not None or type(number) not in _NUMBERS or type(tag) is not str:
            return None
        tags.append(tag)
        numbers.append(number)
    return Scalars(event.step, event.wall_time, tuple(tags), numbers)


def event_of(scalars: Scalars) -> Event:
    """The same event with an object for each value, as the general way takes it."""
    pairs = zip(scalars.tags, scalars.numbers, strict=True)
    return Event(scalars.step, scalars.wall_time, [Value("scalar", tag, number) for tag, number in pairs])


class ScalarEncoder:
    """Frames of one attempt's scalar events: the bytes that `encode_event` and `frames.frame` would make."""

    def __init__(self, run_id: str, attempt: int) -> None:
        self._owner = wire.identity(EventIds(run_id, attempt))
        self._layouts: dict[_Key, _Layout | None] = {}

    def encode(self, seqs: Sequence[int], rows: Sequence[Scalars]) -> list[tuple[bytes, bytes] | None]:
        """The frame of each event in MindSpore's and in TensorBoard's dialect.

        None where the general way must judge: fewer than FEW events of equal tags and lengths, or anything
        unusual, such as a step of 0 or less, no tags, a tag that cannot be written, numbers that are none.
        Measured beside that way, 256 events together: a tenth of its CPU for one scalar, a fortieth for ten.
        """
        framed: list[tuple[bytes, bytes] | None] = [None] * len(rows)
        by_tags: dict[tuple[str, ...], list[int]] = {}
        for place, row in enumerate(rows):
            by_tags.setdefault(row.tags, []).append(place)
        for tags, places in by_tags.items():
            if len(places) >= FEW:
                columns = _columns([seqs[place] for place in places], [rows[place] for place in places])
                for number, pair in self._encode_columns(tags, columns):
                    framed[places[number]] = pair
        return framed

    def _encode_columns(
        self, tags: tuple[str, ...], columns: "_Columns | None"
    ) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
        """What can be encoded of the events, each with its place in the columns."""
        if columns is None or columns.numbers.shape[1] != len(tags):
            return
        step_bytes, seq_bytes = _varint_lengths(columns.steps), _varint_lengths(columns.seqs)
        is_usual = (columns.steps > 0) & (columns.seqs > 0) & (columns.wall_times != 0)  # zeros are left out
        for lengths in set(zip(step_bytes.tolist(), seq_bytes.tolist(), strict=True)):
            same = np.flatnonzero(is_usual & (step_bytes == lengths[0]) & (seq_bytes == lengths[1]))
            layout = self._layout((tags, *lengths)) if same.size >= FEW else None
            if layout is not None:
                chosen = _Columns(*(column[same] for column in columns))
                yield from zip(same.tolist(), _frames(layout, chosen), strict=True)

    def _layout(self, key: _Key) -> _Layout | None:
        if key not in self._layouts:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = _layout(self._owner, *key)
        return self._layouts[key]


class _Columns(NamedTuple):
    """Events of the same tags: seqs, steps int64 (n,), wall_times float64 (n,), numbers float32 (n, tags)."""

    seqs: Array
    steps: Array
    wall_times: Array
    numbers: Array


def _columns(seqs: list[int], rows: list[Scalars]) -> _Columns | None:
    """None when the numbers are none, or not as many in each event."""
    steps, wall_times, _, numbers = zip(*rows, strict=True)
    try:
        table = np.array(numbers)
        counted = np.array(seqs, np.int64), np.array(steps, np.int64), np.array(wall_times, np.float64)
    except (ValueError, OverflowError):
        return None
    if table.dtype.kind not in "biuf" or table.ndim != 2:
        return None
    with np.errstate(over="ignore", under="ignore"):
        return _Columns(*counted, table.astype(np.float64, copy=False).astype(np.float32))


def _layout(owner: bytes, tags: tuple[str, ...], step_bytes: int, seq_bytes: int) -> _Layout | None:
    """None for tags that cannot be written, or not here."""
    try:
        if not tags or not all(0 < len(str.encode(tag)) <= MAX_TAG for tag in tags):
            return None
    except (TypeError, UnicodeEncodeError):
        return None
    pieces = _pieces(owner, tags, step_bytes, seq_bytes)
    payload = b"".join([constant + bytes(np.dtype(slot).itemsize) for constant, _, slot in pieces])
    if len(payload) > _MAX_LENGTH:
        return None
    template, offsets, end = frame(payload), {}, HEADER_BYTES
    for constant, name, slot in pieces:
        offsets[name] = end + len(constant)
        end = offsets[name] + np.dtype(slot).itemsize
    fields = np.dtype(
        {
            "names": [*offsets, "crc"],
            "formats": [*(slot for _, _, slot in pieces), "<u4"],
            "offsets": [*offsets.values(), end],
            "itemsize": len(template),
        }
    )
    keys = [offsets[str(number)] - 1 - HEADER_BYTES for number in range(len(tags))]
    other = bytearray(payload)
    for key in keys:
        other[key] = _TENSORBOARD_KEY[0]
    crc_change = google_crc32c.value(payload) ^ google_crc32c.value(bytes(other))
    places = [key + HEADER_BYTES for key in keys]
    return _Layout(np.frombuffer(template, np.uint8), fields, places, crc_change)


def _pieces(
    owner: bytes, tags: tuple[str, ...], step_bytes: int, seq_bytes: int
) -> list[tuple[bytes, str, str]]:
    """An event as bytes that stay, each with the name and dtype of what is filled in behind them."""
    values = [wire.text(1, tag) + _MINDSPORE_KEY for tag in tags]
    heads = [wire.key(1, wire.LENGTH_DELIMITED) + wire.varint(len(value) + 4) + value for value in values]
    summary = wire.key(5, wire.LENGTH_DELIMITED) + wire.varint(sum(len(head) + 4 for head in heads))
    heads[0] = summary + heads[0]
    return [
        (wire.key(1, wire.FIXED64), "wall_time", "<f8"),
        (wire.key(2, wire.VARINT), "step", f"({step_bytes},)u1"),
        *[(head, str(number), "<f4") for number, head in enumerate(heads)],
        (owner + wire.key(1002, wire.VARINT), "seq", f"({seq_bytes},)u1"),
    ]


def _frames(layout: _Layout, columns: _Columns) -> Iterator[tuple[bytes, bytes]]:
    """The frames of events of one layout in both dialects."""
    frames = np.tile(layout.template, (columns.seqs.size, 1))
    fields = frames.view(layout.fields)[:, 0]
    fields["wall_time"] = columns.wall_times
    fields["step"] = _varints(columns.steps, fields["step"].shape[1])
    fields["seq"] = _varints(columns.seqs, fields["seq"].shape[1])
    for number, column in enumerate(columns.numbers.T):
        fields[str(number)] = column
    length = layout.template.size
    unsealed = frames.tobytes()
    starts = range(0, len(unsealed), length)
    crcs = np.array(
        [google_crc32c.value(unsealed[start + HEADER_BYTES : start + length - 4]) for start in starts],
        np.uint64,
    )
    fields["crc"] = masked(crcs)
    mindspore = frames.tobytes()
    frames[:, layout.keys] = _TENSORBOARD_KEY[0]
    fields["crc"] = masked(crcs ^ np.uint64(layout.crc_change))
    tensorboard = frames.tobytes()
    for start in starts:
        yield mindspore[start : start + length], tensorboard[start : start + length]


def _varint_lengths(numbers: Array) -> Array:
    """How many bytes the varints of positive numbers have."""
    return _LONGER.searchsorted(numbers, "right") + 1


def _varints(numbers: Array, length: int) -> Array:
    """Varints of `length` bytes each: uint8 (numbers, length)."""
    digits: Array = numbers[:, np.newaxis] >> np.arange(0, 7 * length, 7) & 0x7F
    digits[:, :-1] |= 0x80  # more follows
    return digits

"""Encodes packed rows of scalar events, the most frequent kind, as frames of both dialects, many at once."""

import contextlib
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import numpy as np

from distsummary.format import wire
from distsummary.format.crc import masked
from distsummary.format.frames import HEADER_BYTES, MAX_PAYLOAD, Framed, frame
from distsummary.format.records import MAX_TAG_BYTES, MINDSPORE, TENSORBOARD, Array, EventIds, Scalars
from distsummary.format.scalar_rows import row_dtype, row_struct

_FEW = 8  # events; fewer, of fewer than _FEW_TAGS tags, are encoded one by one, which is faster
_FEW_TAGS = 256
MAX_LENGTH = MAX_PAYLOAD // 2  # bytes of an event; a larger or unusual event is left to `encode_event`
_CHUNK = 1 << 18  # bytes of frames that are filled at a time: they stay in the processor's cache
_MAX_LAYOUTS = 1024
_MAX_LAYOUT_BYTES = 1 << 23  # of all templates together
_LONGER = np.array([1 << 7 * length for length in range(1, 9)])  # least numbers with varints of 2 .. 9 bytes
_FIRST_KEY = wire.key(1, wire.LENGTH_DELIMITED)
_MINDSPORE_KEY, _TENSORBOARD_KEY = wire.key(3, wire.FIXED32), wire.key(2, wire.FIXED32)

_Key: TypeAlias = tuple[tuple[str, ...], int, int]  # tags, bytes of the step, bytes of the seq


class _Layout(NamedTuple):
    """The layout of frames with equal tags and equal lengths of step and seq, so that only numbers differ.

    `template` is such a frame in the MindSpore dialect, uint8 (length,). `fields` gives the places of
    wall_time, step, seq and crc, `numbers` the offsets of the scalars, int64 (tags,). The byte before a
    scalar is its key: only these bytes of the payload differ in the TensorBoard dialect. `crc_change` is the
    effect of this difference on the CRC. It is the same for all numbers, since CRCs are linear: for strings
    of the same length, crc(a ^ b) is crc(a) ^ crc(b) ^ crc(zeros). `payload` packs the payload of one event
    from `parts`: for each dialect, the bytes before each field and, after them, a place for the field. With
    _FEW_TAGS or more there are none.
    """

    template: Array
    fields: np.dtype[Any]
    numbers: Array
    crc_change: int
    payload: struct.Struct
    parts: dict[str, list[Any]]


class Stretch(NamedTuple):
    """Rows start .. stop-1; `framed` has their frames for each dialect, or is None for unusual rows."""

    start: int
    stop: int
    framed: dict[str, Framed] | None


class ScalarEncoder:
    """Encodes the scalar events of one attempt to the same bytes as `encode_event` and `frames.frame`."""

    def __init__(self, run_id: str, attempt: int, formats: tuple[str, ...]) -> None:
        self._owner = wire.identity(EventIds(run_id, attempt))
        self._formats = formats
        self._layouts: dict[_Key, _Layout | None] = {}
        self._layout_bytes = 0

    def encode(self, first_seq: int, scalars: Scalars) -> Iterator[Stretch]:
        """Encode all rows in their order, in stretches of rows that have the same layout.

        A stretch without frames is unusual: for example, it has a step of 0 or less, a time of 0, no tags, or
        a tag that cannot be written. The caller must encode it with `encode_event`.
        """
        if scalars.size < _FEW and len(scalars.tags) < _FEW_TAGS:
            yield from self._one_by_one(first_seq, scalars)
            return
        table = np.frombuffer(scalars.rows, row_dtype(len(scalars.tags)))
        seqs = np.arange(first_seq, first_seq + table.size)
        step_bytes, seq_bytes = _varint_lengths(table["step"]), _varint_lengths(seqs)
        # Protobuf omits fields that are 0, and writes a negative step in ten bytes.
        is_usual = (table["step"] > 0) & (table["wall_time"] != 0)
        # Rows of one kind have varints of equal lengths, hence one layout; unusual rows are of kind 0.
        kinds = np.where(is_usual, 16 * step_bytes + seq_bytes, 0)
        bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), table.size]
        for start, stop in pairwise(bounds):
            layout = None
            if kinds[start]:
                layout = self._layout((scalars.tags, int(step_bytes[start]), int(seq_bytes[start])))
            rows = slice(start, stop)
            framed = None if layout is None else self._frames(layout, table[rows], seqs[rows])
            yield Stretch(start, stop, framed)

    def _one_by_one(self, first_seq: int, scalars: Scalars) -> Iterator[Stretch]:
        rows = row_struct(len(scalars.tags)).iter_unpack(scalars.rows)
        for number, (wall_time, step, *numbers) in enumerate(rows):
            seq, layout = wire.varint(first_seq + number), None
            if step > 0 and wall_time:
                layout = self._layout((scalars.tags, len(wire.varint(step)), len(seq)))
            framed = None
            if layout is not None:
                fields = (wall_time, wire.varint(step), *numbers, seq)
                # A number that exceeds float32 makes the row an unusual one.
                with contextlib.suppress(OverflowError):
                    framed = {
                        dialect: self._frame(layout, dialect, first_seq + number, fields)
                        for dialect in self._formats
                    }
            yield Stretch(number, number + 1, framed)

    def _frame(self, layout: _Layout, dialect: str, seq: int, fields: tuple[Any, ...]) -> Framed:
        parts = layout.parts[dialect]
        parts[1::2] = fields
        data = frame(layout.payload.pack(*parts))
        return Framed(seq, 1, [data], len(data))

    def _layout(self, key: _Key) -> _Layout | None:
        if key not in self._layouts:
            if len(self._layouts) >= _MAX_LAYOUTS or self._layout_bytes > _MAX_LAYOUT_BYTES:
                self._layouts.clear()
                self._layout_bytes = 0
            self._layouts[key] = layout = _layout(self._owner, *key)
            self._layout_bytes += 0 if layout is None else layout.template.size
        return self._layouts[key]

    def _frames(self, layout: _Layout, table: Array, seqs: Array) -> dict[str, Framed]:
        """The frames of events that have the same layout, for each dialect."""
        length, keys = layout.template.size, layout.numbers - 1
        at_once = max(1, min(seqs.size, _CHUNK // length))
        chunk = np.empty((at_once, length), np.uint8)
        filled: dict[str, list[bytes]] = {dialect: [] for dialect in self._formats}
        for start in range(0, seqs.size, at_once):
            frames = chunk[: seqs.size - start]
            rows = slice(start, start + at_once)
            crcs = _fill(layout, frames, table[rows], seqs[rows])
            for dialect, parts in filled.items():
                # Comes last in `formats`: from here on, the frames have the keys of this dialect.
                if dialect == TENSORBOARD:
                    frames[:, keys] = _TENSORBOARD_KEY[0]
                    crcs = crcs ^ np.uint64(layout.crc_change)
                frames.view(layout.fields)["crc"][:, 0] = masked(crcs)
                parts.append(frames.tobytes())
        nbytes = seqs.size * length
        return {
            dialect: Framed(int(seqs[0]), seqs.size, [b"".join(parts)], nbytes)
            for dialect, parts in filled.items()
        }


def _fill(layout: _Layout, frames: Array, table: Array, seqs: Array) -> Array:
    """Make `frames`, uint8 (events, length), those of the MindSpore dialect, except for their CRCs.

    Returns the CRCs of their payloads, uint64 (events,).
    """
    count, length = frames.shape
    frames[:] = layout.template
    fields = frames.view(layout.fields)[:, 0]
    fields["wall_time"] = table["wall_time"]
    fields["step"] = _varints(table["step"], fields["step"].shape[1])
    fields["seq"] = _varints(seqs, fields["seq"].shape[1])
    # The float32 that begins at each byte of a frame, (events, length - 3): they overlap.
    floats = np.ndarray((count, length - 3), "<f4", frames.data, 0, (length, 1))
    with np.errstate(over="ignore", under="ignore"):
        floats[:, layout.numbers] = table["numbers"]
    crc_of = google_crc32c.value
    return np.array([crc_of(payload) for payload in frames[:, HEADER_BYTES:-4]], np.uint64)


def _layout(owner: bytes, tags: tuple[str, ...], step_bytes: int, seq_bytes: int) -> _Layout | None:
    """The layout for these tags; None if they are invalid, or too long for this encoder (MAX_LENGTH)."""
    try:
        encoded = [str.encode(tag) for tag in tags]
    except (TypeError, UnicodeEncodeError):
        return None
    if not encoded or not all(0 < len(tag) <= MAX_TAG_BYTES for tag in encoded):
        return None
    heads = []
    for tag in encoded:
        value = _FIRST_KEY + wire.varint(len(tag)) + tag + _MINDSPORE_KEY
        heads.append(_FIRST_KEY + wire.varint(len(value) + 4) + value)
    summary = sum(map(len, heads)) + 4 * len(heads)
    heads[0] = wire.key(5, wire.LENGTH_DELIMITED) + wire.varint(summary) + heads[0]
    # An event: constant bytes, and the sizes of the fields that follow each of them.
    wall_time, step = wire.key(1, wire.FIXED64), wire.key(2, wire.VARINT)
    constants = [wall_time, step, *heads, owner + wire.key(1002, wire.VARINT)]
    sizes = [8, step_bytes, *[4] * len(heads), seq_bytes]
    payload = b"".join([constant + bytes(size) for constant, size in zip(constants, sizes, strict=True)])
    if len(payload) > MAX_LENGTH:
        return None
    template = frame(payload)
    ends = HEADER_BYTES + np.cumsum(np.array([*map(len, constants)]) + sizes)
    offsets = ends - sizes
    fields = np.dtype(
        {
            "names": ["wall_time", "step", "seq", "crc"],
            # No text such as "(3,)u1": NumPy parses it as Python, which may fail while another thread does.
            "formats": ["<f8", ("u1", (step_bytes,)), ("u1", (seq_bytes,)), "<u4"],
            "offsets": [*offsets[[0, 1, -1]].tolist(), int(ends[-1])],
            "itemsize": len(template),
        }
    )
    numbers = offsets[2:-1]
    other = np.frombuffer(payload, np.uint8).copy()
    other[numbers - HEADER_BYTES - 1] = _TENSORBOARD_KEY[0]
    crc_change = google_crc32c.value(payload) ^ google_crc32c.value(other)
    packed, parts = "", {}
    if len(tags) < _FEW_TAGS:
        codes = ["d", f"{step_bytes}s", *["f"] * len(tags), f"{seq_bytes}s"]
        packed = "".join([f"{len(constant)}s{code}" for constant, code in zip(constants, codes, strict=True)])
        own: list[Any] = [part for constant in constants for part in (constant, None)]
        others = [*own]
        for place in range(4, 4 + 2 * len(tags), 2):
            others[place] = own[place][:-1] + _TENSORBOARD_KEY
        parts = {MINDSPORE: own, TENSORBOARD: others}
    return _Layout(
        np.frombuffer(template, np.uint8), fields, numbers, crc_change, struct.Struct(f"<{packed}"), parts
    )


def _varint_lengths(numbers: Array) -> Array:
    """How many bytes the varints of positive numbers have."""
    return _LONGER.searchsorted(numbers, "right") + 1


def _varints(numbers: Array, length: int) -> Array:
    """Varints of `length` bytes each: uint8 (numbers, length)."""
    digits: Array = numbers[:, np.newaxis] >> np.arange(0, 7 * length, 7) & 0x7F
    # A set high bit means that more bytes follow.
    digits[:, :-1] |= 0x80
    return digits

"""The norms of every parameter of a model at one step, and their bytes: field 1003 of an event."""

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.base.checks import check_type
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.format import wire
from distsummary.format.pb import norms_pb2
from distsummary.format.records import MINDSPORE, TENSORBOARD, Array

NORMS_TAG = "norms"  # the tag of the only value of the plugin "norms" in an event
FIELD = 1003  # of an event
REPEAT = 256  # one of so many records has the table again: damage costs the names of no more
_DIGEST_BYTES = 16
_MAX_TABLE = 64 << 20  # bytes of a table when it is not compressed
_MAX_OBJECTS = 1 << 24  # of a table: about ten for each parameter
MAX_PARAMETERS = 250_000
_MAX_KNOWN = 4096  # tables of files that are remembered


@dataclass(frozen=True)
class ParameterTable:
    """The n parameters of a model, in the order of all columns of `ParameterNorms`.

    `shapes` are those of the whole parameters. `local_sizes` is how many elements of each are on this rank,
    and `split` names the axes of the mesh that each is split over: () if it is whole on this rank.

    Make one and keep it as long as the parameters stay: what it takes to write it is computed once.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    local_sizes: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]

    @cached_property
    def sizes(self) -> Array:
        """The number of elements of each whole parameter, int64 (n,)."""
        return np.array([np.prod(shape, dtype=np.int64) for shape in self.shapes], np.int64)

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes of the mesh that split any parameter."""
        return frozenset(axis for split in self.split for axis in split)

    @cached_property
    def serialized(self) -> bytes:
        """The bytes of a `ParameterTable` message; raises InvalidValueError if the columns disagree."""
        lengths = {len(self.names), len(self.shapes), len(self.local_sizes), len(self.split)}
        if lengths != {len(self.names)}:
            raise InvalidValueError(
                "names, shapes, local_sizes and split of a table must be equally long, got "
                f"{len(self.names)}, {len(self.shapes)}, {len(self.local_sizes)} and {len(self.split)}; give "
                "one of each per parameter"
            )
        if not self.names or len(set(self.names)) != len(self.names):
            raise InvalidValueError(
                f"a table must have names, each once, got {len(self.names)} with {len(set(self.names))} "
                "different ones; leave out a model without parameters, and shared parameters but for one"
            )
        message = norms_pb2.ParameterTable(
            name=self.names,
            shape=[norms_pb2.ParameterTable.Shape(size=shape) for shape in self.shapes],
            local_size=self.local_sizes,
            split=[norms_pb2.ParameterTable.Axes(axis=axes) for axes in self.split],
        )
        serialized = message.SerializeToString()
        if len(self.names) > MAX_PARAMETERS or len(serialized) >= _MAX_TABLE:  # no reader would take it
            raise InvalidValueError(
                f"norms must be of at most {MAX_PARAMETERS} parameters whose names and shapes take less than "
                f"{_MAX_TABLE} bytes, got {len(self.names)} of {len(serialized)}; watch a part of the model"
            )
        return serialized

    @cached_property
    def digest(self) -> bytes:
        """Identifies the table by its content, 16 bytes."""
        return _digest(self.serialized)

    @cached_property
    def compressed(self) -> bytes:
        """The bytes of the table as they are written."""
        return zlib.compress(self.serialized)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its compressed bytes; equal tables become one object where they arrive."""
        return remember_table, (self.digest, self.compressed)


@dataclass(frozen=True, slots=True, eq=False)
class ParameterNorms:
    """What one rank measured of its local elements at one step; every column has n rows.

    `weight_sums`, `gradient_sums`: sums of squares, float64; NaN and infinite elements make a sum NaN or
    infinite. `weight_nonfinite`, `gradient_nonfinite`: how many elements are NaN or infinite, int64.
    `has_gradient`: bool; without a gradient, `gradient_sums` is 0. `update_sums` (float64) and `update_max`
    (float32): sum of squares and largest absolute value of the optimizer's change; NaN where another rank or
    another step measures it.

    Of a merged run they are those of whole parameters; a sum is NaN, with a count of 0, where the part of
    some rank is missing.
    """

    table: ParameterTable
    weight_sums: Array
    gradient_sums: Array
    has_gradient: Array
    weight_nonfinite: Array
    gradient_nonfinite: Array
    update_sums: Array
    update_max: Array

    @property
    def columns(self) -> dict[str, Array]:
        """The columns by name, see COLUMNS."""
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return sum(column.nbytes for column in self.columns.values())


@dataclass(frozen=True, slots=True, eq=False)
class UnnamedNorms:
    """Norms of which the table is in none of the directory's files that can be read; see ParameterNorms.

    `digest`: that of the table. `columns`: the columns of ParameterNorms by name.
    """

    digest: bytes
    columns: Mapping[str, Array]

    def named(self, table: ParameterTable) -> ParameterNorms:
        """The norms with their table; raises DamagedFileError if it has another number of parameters."""
        rows = len(self.columns["weight_sums"])
        if len(table.names) != rows:
            raise DamagedFileError(f"norms of {rows} parameters name a table of {len(table.names)}")
        return ParameterNorms(table, **self.columns)


COLUMNS = {  # the columns of ParameterNorms and their dtypes
    "weight_sums": np.dtype(np.float64),
    "gradient_sums": np.dtype(np.float64),
    "has_gradient": np.dtype(np.bool_),
    "weight_nonfinite": np.dtype(np.int64),
    "gradient_nonfinite": np.dtype(np.int64),
    "update_sums": np.dtype(np.float64),
    "update_max": np.dtype(np.float32),
}


def checked_norms(norms: Any) -> ParameterNorms:
    """The norms with their columns as arrays of the right dtypes.

    Raises InvalidTypeError for other data, InvalidValueError for columns that do not fit the table.
    """
    check_type("the data of norms", norms, ParameterNorms)
    check_type("the table of norms", norms.table, ParameterTable)
    rows = len(norms.table.names)
    columns: dict[str, Array] = {}
    for name, dtype in COLUMNS.items():
        column = np.asarray(getattr(norms, name))
        if column.shape != (rows,):
            raise InvalidValueError(
                f"{name} of norms must have the shape ({rows},), one number for each name of the table, got "
                f"{column.shape}"
            )
        if column.dtype != dtype and not np.can_cast(column.dtype, dtype, "same_kind"):
            raise InvalidTypeError(f"{name} of norms must be {dtype}, got {column.dtype}; convert it")
        columns[name] = column.astype(dtype, copy=False)
    if min(columns["weight_nonfinite"].min(), columns["gradient_nonfinite"].min()) < 0:
        raise InvalidValueError("counts of elements that are not finite must not be negative")
    return ParameterNorms(norms.table, **columns)


# --- encoding


class TableTurns:
    """Decides which records have their table: the first one, one after a change, and one of REPEAT.

    Attributes:
        table: the table of the newest record, None before the first.
    """

    def __init__(self) -> None:
        self.table: ParameterTable | None = None
        self._since = REPEAT

    def carries(self, table: ParameterTable) -> bool:
        """Whether the next record, of this table, has it."""
        is_due = self._since >= REPEAT - 1 or self.table is None or self.table.digest != table.digest
        self.table = table
        self._since = 0 if is_due else self._since + 1
        return is_due

    def repeat(self) -> None:
        """The next record has its table: what was encoded may not have been written."""
        self._since = REPEAT


def carrier_of(formats: tuple[str, ...]) -> str:
    """The dialect whose events have the norms: MindSpore's, or TensorBoard's if it is the only one."""
    return MINDSPORE if MINDSPORE in formats else TENSORBOARD


def encode_table(table: ParameterTable) -> bytes:
    """A field of an event that has the table only."""
    return wire.delimited(FIELD, wire.delimited(1, table.digest) + wire.delimited(2, table.compressed))


def encode_norms(norms: ParameterNorms, *, has_table: bool) -> bytes:
    """The field of an event for checked norms; with or without their table."""
    rows = len(norms.table.names)
    fields = [wire.delimited(1, norms.table.digest)]
    if has_table:
        fields.append(wire.delimited(2, norms.table.compressed))
    fields += [wire.integer(3, rows), wire.delimited(4, _packed(norms.weight_sums, "<f8"))]
    gradients = norms.has_gradient
    if not gradients.all():
        fields.append(wire.delimited(5, _mask(~gradients)))
    fields.append(wire.delimited(6, _packed(norms.gradient_sums[gradients], "<f8")))
    bad = (norms.weight_nonfinite | norms.gradient_nonfinite) > 0
    if bad.any():
        fields.append(wire.delimited(7, _mask(bad)))
        fields.append(wire.delimited(8, _packed(norms.weight_nonfinite[bad], "<u8")))
        fields.append(wire.delimited(9, _packed(norms.gradient_nonfinite[bad], "<u8")))
    updated = ~np.isnan(norms.update_sums)
    if updated.any():
        fields.append(wire.delimited(10, _mask(updated)))
        fields.append(wire.delimited(11, _packed(norms.update_sums[updated], "<f8")))
        fields.append(wire.delimited(12, _packed(norms.update_max[updated], "<f4")))
    return wire.delimited(FIELD, b"".join(fields))


def _packed(column: Array, dtype: str) -> bytes:
    return column.astype(dtype, copy=False).tobytes()


def _mask(chosen: Array) -> bytes:
    return np.packbits(chosen, bitorder="little").tobytes()


# --- decoding


def decode_norms(message: norms_pb2.Norms) -> ParameterNorms | UnnamedNorms | None:
    """The norms in a field 1003; unnamed if it has no table and none with its digest has been read yet.

    None for a field that has a table only. A table that it has is remembered, see `known_table`. Raises
    DamagedFileError.
    """
    table = remember_table(message.digest, message.table) if message.table else known_table(message.digest)
    rows = message.parameters
    if not rows:
        return None
    weights = _numbers(message.weight_sums, "<f8", rows)  # its length bounds `rows`, and all that follows
    has_gradient = ~_chosen(message.without_gradient, rows)
    gradients = np.zeros(rows)
    gradients[has_gradient] = _numbers(message.gradient_sums, "<f8", int(has_gradient.sum()))
    bad = _chosen(message.nonfinite, rows)
    weight_bad, gradient_bad = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    weight_bad[bad] = _numbers(message.weight_nonfinite, "<u8", int(bad.sum()))
    gradient_bad[bad] = _numbers(message.gradient_nonfinite, "<u8", int(bad.sum()))
    updated = _chosen(message.updated, rows)
    update_sums, update_max = np.full(rows, np.nan), np.full(rows, np.nan, np.float32)
    update_sums[updated] = _numbers(message.update_sums, "<f8", int(updated.sum()))
    update_max[updated] = _numbers(message.update_max, "<f4", int(updated.sum()))
    unnamed = UnnamedNorms(
        message.digest,
        {
            "weight_sums": weights.copy(),
            "gradient_sums": gradients,
            "has_gradient": has_gradient,
            "weight_nonfinite": weight_bad,
            "gradient_nonfinite": gradient_bad,
            "update_sums": update_sums,
            "update_max": update_max,
        },
    )
    return unnamed if table is None else unnamed.named(table)


def _numbers(data: bytes, dtype: str, count: int) -> Array:
    if len(data) != count * np.dtype(dtype).itemsize:
        raise DamagedFileError(f"a column of norms has {len(data)} bytes for {count} numbers")
    return np.frombuffer(data, dtype)


def _chosen(data: bytes, count: int) -> Array:
    if not data:
        return np.zeros(count, np.bool_)
    if len(data) != -(-count // 8):
        raise DamagedFileError(f"a mask of norms has {len(data)} bytes for {count} parameters")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little").astype(np.bool_)


# --- tables that have been read. The content of a table is its name, so one place for the process is right.

_known: "OrderedDict[bytes, ParameterTable]" = OrderedDict()
_shared: dict[Any, Any] = {}  # names, shapes and split axes, which the tables of all ranks have in common
_turn = threading.Lock()


def known_table(digest: bytes) -> ParameterTable | None:
    """The table with this digest, if it has been read in this process and not many since."""
    with _turn:
        table = _known.get(digest)
        if table is not None:
            _known.move_to_end(digest)
        return table


def remember_table(digest: bytes, compressed: bytes) -> ParameterTable:
    """The table in these bytes, for `known_table`; raises DamagedFileError."""
    known = known_table(digest)
    if known is not None:
        return known
    try:
        inflater = zlib.decompressobj()
        serialized = inflater.decompress(compressed, _MAX_TABLE)
        if not inflater.eof or _digest(serialized) != digest:
            raise DamagedFileError("the table of the parameters is cut, too large, or has another digest")
        wire.refuse_bombs(serialized, norms_pb2.ParameterTable.DESCRIPTOR, _MAX_OBJECTS)
        message = norms_pb2.ParameterTable.FromString(serialized)
        columns = {len(message.name), len(message.shape), len(message.local_size), len(message.split)}
        if len(columns) != 1:
            raise DamagedFileError("the columns of the table of the parameters differ in length")
        names = tuple(message.name)
        shapes = tuple(tuple(shape.size) for shape in message.shape)
        split = tuple(tuple(axes.axis) for axes in message.split)
        local_sizes = tuple(message.local_size)
        with _turn:
            if len(_shared) > _MAX_KNOWN:
                _shared.clear()
            table = ParameterTable(
                _shared.setdefault(names, names),
                _shared.setdefault(shapes, shapes),
                local_sizes,
                _shared.setdefault(split, split),
            )
            table.__dict__["digest"] = digest
            _known[digest] = table
            if len(_known) > _MAX_KNOWN:
                _known.popitem(last=False)
        return table
    except DamagedFileError:
        raise
    except (DecodeError, zlib.error, ValueError, OverflowError) as error:
        raise DamagedFileError(f"the table of the parameters cannot be read ({error})") from error


def _digest(serialized: bytes) -> bytes:
    return hashlib.sha256(serialized).digest()[:_DIGEST_BYTES]

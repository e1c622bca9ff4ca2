"""The norms of every parameter of a model at one step, and their bytes in both dialects."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError, InvalidValueError
from distsummary.format import wire
from distsummary.format.pb import norms_pb2
from distsummary.format.records import Array

MAX_PARAMETERS = 250_000
_MAX_TABLE = 64 << 20  # bytes of a table when it is not compressed
_MAX_OBJECTS = 1 << 24  # of a table: about ten for each parameter


@dataclass(frozen=True)
class ParameterTable:
    """The n parameters of a model, in the order of all columns of `ParameterNorms`.

    `shapes` are those of the whole parameters. `local_sizes` and `starts` say which part of each this rank
    holds: how many elements, and the place of the first one in the whole, row by row.

    Make one and keep it as long as the parameters stay: what it takes to write it is computed once.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    local_sizes: tuple[int, ...]
    starts: tuple[int, ...]

    @cached_property
    def sizes(self) -> Array:
        """The number of elements of each whole parameter, int64 (n,)."""
        return np.array([math.prod(shape) for shape in self.shapes], np.int64)

    @cached_property
    def encoded(self) -> tuple[bytes, bytes]:
        """The fields `parameters` and `parts` of a `Norms` message; all ranks have the first in common.

        Raises InvalidValueError for a table that no reader would take.
        """
        shapes = [norms_pb2.Parameters.Shape(size=shape) for shape in self.shapes]
        serialized = norms_pb2.Parameters(name=self.names, shape=shapes).SerializeToString()
        if len(self.names) > MAX_PARAMETERS or len(serialized) >= _MAX_TABLE:
            raise InvalidValueError(
                f"norms must be of at most {MAX_PARAMETERS} parameters whose names and shapes take less than "
                f"{_MAX_TABLE} bytes, got {len(self.names)} of {len(serialized)}; watch a part of the model"
            )
        is_whole = not any(self.starts) and (self.sizes == self.local_sizes).all()
        parts = b"" if is_whole else np.array([self.local_sizes, self.starts], "<i8").tobytes()
        return zlib.compress(serialized), parts and zlib.compress(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its compressed bytes; equal tables become one object where they arrive."""
        return read_table, self.encoded


@dataclass(frozen=True, slots=True, eq=False)
class ParameterNorms:
    """What one rank measured of its local elements at one step; every column has n rows.

    `weight_sums`, `gradient_sums`: sums of squares, float64; NaN and infinite elements make a sum NaN or
    infinite. `weight_nonfinite`, `gradient_nonfinite`: how many elements are NaN or infinite, int64.
    `has_gradient`: bool; without a gradient, `gradient_sums` is 0. `update_sums` (float64) and `update_max`
    (float32): sum of squares and largest absolute value of the optimizer's change; NaN where another step
    measures it.

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

    def roots(self) -> dict[str, Array]:
        """The L2 norms: `weight`, `gradient` and `update`; NaN without a gradient, and where not measured."""
        # Whatever numbers a file holds, this does not warn.
        with np.errstate(invalid="ignore"):
            found = {
                name: np.sqrt(getattr(self, f"{name}_sums")) for name in ("weight", "gradient", "update")
            }
        found["gradient"][~self.has_gradient] = np.nan
        return found

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return sum(column.nbytes for column in self.columns.values())


# The columns of ParameterNorms: their dtypes, and the numbers of the rows that are not written.
COLUMNS: Mapping[str, tuple[np.dtype[Any], Any]] = {
    "weight_sums": (np.dtype("<f8"), 0.0),
    "gradient_sums": (np.dtype("<f8"), 0.0),
    "has_gradient": (np.dtype(np.bool_), True),
    "weight_nonfinite": (np.dtype("<i8"), 0),
    "gradient_nonfinite": (np.dtype("<i8"), 0),
    "update_sums": (np.dtype("<f8"), np.nan),
    "update_max": (np.dtype("<f4"), np.nan),
}


def encode_norms(norms: ParameterNorms) -> list[bytes]:
    """The fields of a `Norms` message; raises InvalidValueError for too many parameters."""
    parameters, parts = norms.table.encoded
    fields = [wire.delimited(1, parameters)]
    if parts:
        fields.append(wire.delimited(2, parts))
    for field, (name, (dtype, default)) in enumerate(COLUMNS.items(), 3):
        column = getattr(norms, name)
        # Rows that have the default are left out, and a mask names the others.
        given = ~np.isnan(column) if np.isnan(default) else column != default
        if given.all():
            numbers = column.astype(dtype, copy=False).tobytes()
            fields.append(wire.delimited(field, wire.delimited(2, numbers)))
        elif given.any():
            mask = np.packbits(given, bitorder="little").tobytes()
            numbers = column[given].astype(dtype, copy=False).tobytes()
            fields.append(wire.delimited(field, wire.delimited(1, mask) + wire.delimited(2, numbers)))
    return fields


def decode_norms(message: norms_pb2.Norms) -> ParameterNorms:
    """The norms in a message; raises DamagedFileError."""
    table = read_table(message.parameters, message.parts)
    rows = len(table.names)
    columns: dict[str, Array] = {}
    for name, (dtype, default) in COLUMNS.items():
        columns[name] = column = np.full(rows, default, dtype)
        if not message.HasField(name):
            continue
        stored = getattr(message, name)
        given: Any = slice(None)
        if stored.rows:
            if len(stored.rows) != -(-rows // 8):
                raise DamagedFileError(f"a mask of norms has {len(stored.rows)} bytes for {rows} parameters")
            octets = np.frombuffer(stored.rows, np.uint8)
            given = np.unpackbits(octets, count=rows, bitorder="little").astype(np.bool_)
        count = column[given].size
        if len(stored.numbers) != count * dtype.itemsize:
            raise DamagedFileError(f"{name} of norms has {len(stored.numbers)} bytes for {count} numbers")
        # NumPy must not see a bool of another byte than 0 or 1.
        column[given] = np.frombuffer(stored.numbers, np.uint8 if dtype.kind == "b" else dtype)
    return ParameterNorms(table, **columns)


@lru_cache(maxsize=4096)
def read_table(parameters: bytes, parts: bytes) -> ParameterTable:
    """The table in two fields of a `Norms` message; raises DamagedFileError.

    It is read once in a process: each record has it.
    """
    names, shapes = _names_and_shapes(parameters)
    local_sizes, starts = [*map(math.prod, shapes)], [0] * len(names)
    if parts:
        stored = _inflated(parts, 16 * len(names))
        if len(stored) != 16 * len(names):
            raise DamagedFileError(f"the parts of {len(names)} parameters have {len(stored)} bytes")
        local_sizes, starts = np.frombuffer(stored, "<i8").reshape(2, -1).tolist()
    table = ParameterTable(names, shapes, tuple(local_sizes), tuple(starts))
    # The cached property need not compute again what was just read.
    table.__dict__["encoded"] = parameters, parts
    return table


@lru_cache(maxsize=64)  # of all ranks
def _names_and_shapes(parameters: bytes) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    serialized = _inflated(parameters, _MAX_TABLE)
    wire.refuse_bombs(serialized, norms_pb2.Parameters.DESCRIPTOR, _MAX_OBJECTS)
    try:
        message = norms_pb2.Parameters.FromString(serialized)
    except (DecodeError, ValueError) as error:
        raise DamagedFileError(f"the names of the parameters cannot be read ({error})") from error
    names, shapes = tuple(message.name), tuple(tuple(shape.size) for shape in message.shape)
    if not len(names) == len(shapes) <= MAX_PARAMETERS:
        raise DamagedFileError(f"{len(names)} parameters have {len(shapes)} shapes")
    if max(map(math.prod, shapes), default=0) >= 1 << 63:
        raise DamagedFileError("a parameter has more than 63 bits of elements")
    return names, shapes


def _inflated(compressed: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(compressed, most + 1)
    except zlib.error as error:
        raise DamagedFileError(f"the table of the parameters cannot be read ({error})") from error
    if not inflater.eof or len(inflated) > most:
        raise DamagedFileError("the table of the parameters is cut or too large")
    return inflated

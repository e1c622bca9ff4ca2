"""Every value of event files as one strict JSON object: what `distsummary dump` prints."""

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterator, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError, Message

from distsummary.errors import DamagedFileError, MissingFileError
from distsummary.format.records import (
    MINDSPORE,
    TENSORBOARD,
    Array,
    Event,
    EventIds,
    Histogram,
    Image,
    Landscape,
    Value,
)
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.reading.reader import ReadValue, decode_frame, values_of
from distsummary.reading.scalar_columns import ScalarColumns, read_pieces
from distsummary.reading.segments import all_event_files, dialect_of

Json: TypeAlias = Any  # what json.dumps takes: JSON has no better type in Python

_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps would make one for each line


def dump(path: str | os.PathLike[str], *, full: bool = False) -> Iterator[dict[str, Json]]:
    """One object for each value of a file, of the files of a directory, or of a run and its directories.

    Nothing is left out as a duplicate. Damage is an object of the plugin "damage" with its byte offset, and
    reading goes on behind it. Numbers that JSON has not are "NaN", "Infinity" and "-Infinity".

    Args:
        path: an event file, the directory of a rank, or a run dir (its direct children are read, too).
        full: also the numbers of tensors and landscapes and the bytes of images (base64).

    Raises:
        MissingFileError: there is no such path, or no event file in the directory.
    """
    return _dump(event_files(path), full)


def to_line(record: dict[str, Json]) -> str:
    """The object as one line of strict JSON, ASCII only, so that no tag reaches the terminal raw."""
    return _ENCODER.encode(record)


def event_files(path: str | os.PathLike[str]) -> list[Path]:
    """The event files of `path` and, for a directory, of its direct children; raises MissingFileError."""
    target = Path(path)
    if target.is_dir():
        children = sorted(p for p in target.iterdir() if p.is_dir() and not p.is_symlink())
        found = [file for directory in (target, *children) for file in all_event_files(directory)]
        if not found:
            raise MissingFileError(
                f"there are no event files in {target}; name a run dir or a rank's directory"
            )
        return found
    if not target.exists():
        raise MissingFileError(f"there is no {target}; name an event file, a rank's directory or a run dir")
    return [target]


def _dump(files: list[Path], full: bool) -> Iterator[dict[str, Json]]:
    for file in files:
        kind = dialect_of(file)
        place = {"file": str(file), "dialect": TENSORBOARD if kind == TENSORBOARD else MINDSPORE}
        end = 0
        for piece in read_pieces(file, kind, resync=True):
            if isinstance(piece, ScalarColumns):
                end = int(piece.ends[-1])
                for value in values_of(piece):
                    yield place | _record("scalar", value, number(value.value))
                continue
            end = piece.end
            try:
                decoded = decode_frame(piece, kind)
            except DamagedFileError as error:
                yield place | _damage(piece.offset, str(error))
                continue
            if decoded is not None:
                for record in _values(*decoded, full):
                    yield place | record
        if end < file.stat().st_size:
            yield place | _damage(end, "the file ends inside this frame: torn, or being written")


def _damage(offset: int, reason: str) -> dict[str, Json]:
    nowhere = dict.fromkeys(("attempt", "seq", "step", "wall_time"))
    return nowhere | {"plugin": "damage", "tag": "", "value": reason, "offset": offset}


def _record(plugin: str, value: ReadValue, described: Json) -> dict[str, Json]:
    return {
        "attempt": value.attempt,
        "seq": value.seq,
        "step": value.step,
        "wall_time": number(value.wall_time),
        "plugin": plugin,
        "tag": value.tag,
        "value": described,
    }


def _values(ids: EventIds, event: Event, full: bool) -> Iterator[dict[str, Json]]:
    for value in event.values:
        read = ReadValue(ids.attempt, ids.seq, event.step, event.wall_time, value.tag, value.data)
        record = _record(value.plugin, read, _described(value, full))
        if value.shard is not None:
            record["shard"] = {
                "global_shape": list(value.shard.global_shape),
                "offset": list(value.shard.offset),
            }
        yield record


def _described(value: Value, full: bool) -> Json:
    """What the value says, by its plugin."""
    match value.plugin:
        case "scalar":
            return number(value.data)
        case "tensor":
            return _tensor(value.data, full)
        case "histogram":
            return _histogram(value.data)
        case "image":
            return _image(value.data, full)
        case "landscape":
            return _landscape(value.data, full)
        case "graph":
            return _graph(value.data)
    return fields(value.data)


def number(value: float | None) -> Json:
    """A number as JSON can hold it: one of three words where it is not finite."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tensor(array: Array, full: bool) -> dict[str, Json]:
    described: dict[str, Json] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if full:
        described["data"] = numbers(array)
    return described


def numbers(array: Array) -> Json:
    """The numbers of an array as nested lists; a flat empty one for a shape with a 0.

    (A file may claim a shape like (10**9, 0): its nested lists would fill the memory.)
    """
    if not array.size:
        return []
    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return array.tolist()
    words = np.array([number(item) for item in array.reshape(-1).tolist()], object)
    return words.reshape(array.shape).tolist()


def _histogram(histogram: Histogram) -> dict[str, Json]:
    columns = (histogram.left.tolist(), histogram.width.tolist(), histogram.counts.tolist())
    return {
        "count": histogram.count,
        "nan": histogram.nan_count,
        "pos_inf": histogram.pos_inf_count,
        "neg_inf": histogram.neg_inf_count,
        "min": number(histogram.min),
        "max": number(histogram.max),
        "sum": number(histogram.sum),
        "buckets": [
            [number(left), number(width), count] for left, width, count in zip(*columns, strict=True)
        ],
    }


def _image(image: Image, full: bool) -> dict[str, Json]:
    described: dict[str, Json] = {
        "height": image.height,
        "width": image.width,
        "colorspace": image.colorspace,
        "sha256": hashlib.sha256(image.encoded).hexdigest(),
    }
    if full:
        described["base64"] = base64.b64encode(image.encoded).decode()
    return described


def _landscape(landscape: Landscape, full: bool) -> dict[str, Json]:
    arrays = {name: getattr(landscape, name) for name in ("x", "y", "z", "path_x", "path_y", "path_z")}
    described: dict[str, Json] = {
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "decomposition": landscape.decomposition,
        "unit": landscape.unit,
        "step_per_epoch": landscape.step_per_epoch,
        "convergence_point": [number(coordinate) for coordinate in landscape.convergence_point],
        "intervals": list(landscape.intervals),
    }
    if full:
        described |= {name: numbers(array) for name, array in arrays.items()}
    return described


def _graph(graph: bytes) -> dict[str, Json]:
    try:
        message = anf_ir_pb2.GraphProto.FromString(graph)
    except DecodeError as error:
        return {"nodes": None, "bytes": len(graph), "error": str(error)}
    return {"nodes": len(message.node), "bytes": len(graph)}


def fields(message: Message) -> dict[str, Json]:
    """The fields of a protobuf message that are set, by their names; 64-bit integers stay numbers."""
    return {field.name: _plain(content) for field, content in message.ListFields()}


def _plain(content: Any) -> Json:  # Any: whatever a field holds
    if isinstance(content, Message):
        return fields(content)
    if isinstance(content, MutableMapping):
        return {str(name): _plain(content[name]) for name in sorted(content)}
    if isinstance(content, MutableSequence):
        return [_plain(item) for item in content]
    return number(content) if isinstance(content, float) else content

"""Describes each value of event files as a strict JSON object, for the command `distsummary dump`."""

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.base.checks import check_choice, check_recorded
from distsummary.base.columns import as_ranges
from distsummary.base.terminal import doing
from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError
from distsummary.events.reader import ReadValue, decode_frame, values_of
from distsummary.events.scalar_columns import ScalarColumns, read_pieces
from distsummary.events.segments import all_event_files, dialect_of, stamp_of
from distsummary.format.json_values import Json, fields, number
from distsummary.format.norms import ParameterNorms
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.records import (
    DIALECTS,
    MINDSPORE,
    PLUGINS,
    TENSORBOARD,
    TENSORBOARD_PLUGINS,
    Array,
    Value,
)
from distsummary.rundir.run_dir import RunDir

MAX_TEXT = 200  # characters of a text that are shown, unless `full` is set
# Made once: json.dumps would make an encoder for each line.
_ENCODER = json.JSONEncoder(allow_nan=False)


def dump(
    path: str | os.PathLike[str],
    *,
    full: bool = False,
    tags: Collection[str] = (),
    plugins: Collection[str] = (),
    dialect: str | None = None,
    rank: int | None = None,
) -> Iterator[dict[str, Json]]:
    """Yield one object for each value in an event file, or in the files of a directory and its children.

    Duplicates are included. A damaged place yields an object with the plugin "damage" and the byte offset of
    the place; reading continues after it. Numbers unknown to JSON become "NaN", "Infinity" and "-Infinity".

    Args:
        path: an event file, the directory of a rank, or a run dir (its direct children are read, too).
        full: include the numbers of tensors and landscapes, the bytes of images (base64) and whole texts, of
            which the first MAX_TEXT characters are shown otherwise.
        tags, plugins: only values with one of these tags, of one of these plugins; damage is always reported.
        dialect: only files of this dialect. rank: only those of this rank's directory.

    Raises:
        InvalidValueError: the run has no directory of this rank; or, when all files were read, none of them
            has a value with one of these tags (the nearest are named).
        MissingFileError: there is no such path, or no event file in the directory.
        DamagedFileError: it is a file of another kind, by its name and its bytes.
    """
    if dialect is not None:
        check_choice("dialect", dialect, DIALECTS)
    for plugin in plugins:
        check_choice("plugin", plugin, (*PLUGINS, *TENSORBOARD_PLUGINS))
    files = _event_files(path if rank is None else _rank_dir(path, rank))
    if dialect is not None:
        files = [file for file in files if (dialect_of(file) == TENSORBOARD) == (dialect == TENSORBOARD)]
    return _chosen(_dump(files, full), tags, plugins)


def _chosen(
    records: Iterator[dict[str, Json]], tags: Collection[str], plugins: Collection[str]
) -> Iterator[dict[str, Json]]:
    """Those with one of the tags and of the plugins, and damage; each tag must have been there at the end."""
    seen = set()
    for record in records:
        is_damage = record["plugin"] == "damage"
        if not is_damage and plugins and record["plugin"] not in plugins:
            continue
        if not is_damage:
            seen.add(record["tag"])
        if is_damage or not tags or record["tag"] in tags:
            yield record
    for tag in tags:
        check_recorded(tag, seen, f"values of {', '.join(plugins)}" if plugins else "values")


def _rank_dir(path: str | os.PathLike[str], rank: int) -> Path:
    """The directory of a rank; of a run of one rank, the run dir itself is that of rank 0."""
    run = RunDir(path)
    places = run.rank_dirs() or {0: run.base}
    if rank not in places:
        raise InvalidValueError(
            f"rank must be one that has a directory ({as_ranges(places)}), got {rank}; leave it out for all"
        )
    return places[rank]


def to_line(record: dict[str, Json]) -> str:
    """The object as one line of strict JSON; ASCII only, so no tag can send control codes to a terminal."""
    return _ENCODER.encode(record)


def _event_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file `path`, or the event files of a directory and its direct children; see `dump` for errors."""
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
    # A file of any name is accepted if it holds an intact event.
    pieces = read_pieces(target, dialect_of(target), resync=True)
    has_event = (isinstance(piece, ScalarColumns) or piece.damage is None for piece in pieces)
    if stamp_of(target.name) is None and not any(has_event):
        raise DamagedFileError(
            f"{target} is no event file: it has neither the name of one nor an intact event; name an event "
            "file, a rank's directory or a run dir"
        )
    return [target]


def _dump(files: list[Path], full: bool) -> Iterator[dict[str, Json]]:
    for count, file in enumerate(files):
        doing("reading file", count + 1, len(files))
        kind = dialect_of(file)
        place: dict[str, Json] = {
            "file": str(file),
            "dialect": TENSORBOARD if kind == TENSORBOARD else MINDSPORE,
        }
        end = 0
        for piece in read_pieces(file, kind, resync=True):
            if isinstance(piece, ScalarColumns):
                end = int(piece.ends[-1])
                for scalar in values_of(piece):
                    yield place | _record("scalar", scalar, number(scalar.value))
                continue
            end = piece.end
            try:
                decoded = decode_frame(piece, kind, file)
            except DamagedFileError as error:
                yield place | _damage(piece.offset, str(error))
                continue
            if decoded is None:
                continue
            ids, event = decoded
            for value in event.values:
                read = ReadValue(ids.attempt, ids.seq, event.step, event.wall_time, value.tag, value.data)
                record = place | _record(value.plugin, read, _described(value, full))
                if value.shard is not None:
                    record["shard"] = {
                        "global_shape": list(value.shard.global_shape),
                        "offset": list(value.shard.offset),
                    }
                yield record
        if end < file.stat().st_size:
            yield place | _damage(end, "the file ends inside this frame: it is torn, or being written")


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


def _described(value: Value, full: bool) -> Json:
    """Returns the data of a value in a form for JSON; docs/format.md lists the fields for each plugin."""
    data = value.data
    described: dict[str, Json]
    match value.plugin:
        case "scalar":
            return number(data)
        case "tensor" | "pr_curve":
            described = {"dtype": str(data.dtype)} if value.plugin == "tensor" else {}
            described["shape"] = list(data.shape)
            if full:
                described["data"] = numbers(data)
        case "histogram":
            buckets = zip(data.left.tolist(), data.width.tolist(), data.counts.tolist(), strict=True)
            described = {
                "count": data.count,
                "nan": data.nan_count,
                "pos_inf": data.pos_inf_count,
                "neg_inf": data.neg_inf_count,
                "min": number(data.min),
                "max": number(data.max),
                "sum": number(data.sum),
                "buckets": [[number(left), number(width), count] for left, width, count in buckets],
            }
        case "image" | "audio":
            is_image = value.plugin == "image"
            names = ("height", "width", "colorspace") if is_image else ("rate", "channels", "frames")
            described = {name: number(getattr(data, name)) for name in names}
            described["sha256"] = hashlib.sha256(data.encoded).hexdigest()
            if full:
                described["base64"] = base64.b64encode(data.encoded).decode()
        case "landscape":
            arrays = {name: getattr(data, name) for name in ("x", "y", "z", "path_x", "path_y", "path_z")}
            described = {
                "shapes": {name: list(array.shape) for name, array in arrays.items()},
                "decomposition": data.decomposition,
                "unit": data.unit,
                "step_per_epoch": data.step_per_epoch,
                "convergence_point": [number(coordinate) for coordinate in data.convergence_point],
                "intervals": list(data.intervals),
            }
            if full:
                described |= {name: numbers(array) for name, array in arrays.items()}
        case "norms":
            return _norms(data, full)
        case "text":
            described = {"characters": len(data), "text": data if full else data[:MAX_TEXT]}
        case "graph":
            try:
                message = anf_ir_pb2.GraphProto.FromString(data)
            except DecodeError as error:
                return {"nodes": None, "bytes": len(data), "error": str(error)}
            described = {"nodes": len(message.node), "bytes": len(data)}
        case _:
            return fields(data)
    return described


def _norms(norms: ParameterNorms, full: bool) -> Json:
    """One object for each parameter."""
    table = norms.table
    roots = {name: column.tolist() for name, column in norms.roots().items()}
    nonfinite = np.stack((norms.weight_nonfinite, norms.gradient_nonfinite), axis=1).tolist()
    rows: list[dict[str, Json]] = []
    for row, name in enumerate(table.names):
        described = {
            "name": name,
            "weight": number(roots["weight"][row]),
            "gradient": number(roots["gradient"][row]) if norms.has_gradient[row] else None,
            "nonfinite": nonfinite[row],
        }
        if full:
            described["update"] = number(roots["update"][row])
            described["update_max"] = number(float(norms.update_max[row]))
            described["shape"] = list(table.shapes[row])
            described["start"] = table.starts[row]
            described["local_size"] = table.local_sizes[row]
        rows.append(described)
    return {"parameters": rows}


def numbers(array: Array) -> Json:
    """The numbers of an array as nested lists.

    An array without elements gives one empty list, whatever its shape: a file may claim a shape such as
    (10**9, 0), and nested lists for it would fill the memory.
    """
    if not array.size:
        return []
    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return array.tolist()
    # JSON has neither NaN nor infinities: these become words.
    words = np.array([number(item) for item in array.reshape(-1).tolist()], object)
    return words.reshape(array.shape).tolist()

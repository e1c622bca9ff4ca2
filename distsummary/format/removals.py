"""Events without their bulk values, and what the first event of a file says was removed from the file."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from google.protobuf.message import DecodeError

from distsummary.base.health import Removed
from distsummary.errors import DamagedFileError
from distsummary.format.frames import read_frames
from distsummary.format.own_tags import is_own
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import MINDSPORE, REMOVABLE_PLUGINS, TENSORBOARD

# The kinds of values in files: the fields of MindSpore's, and of TensorBoard's, whose tensors name a plugin.
_FIELDS = {
    MINDSPORE: REMOVABLE_PLUGINS,
    TENSORBOARD: frozenset(("histo", "image", "audio")),
}
_TENSORS = ("text", "pr_curves")
_Message: TypeAlias = Any  # an Event of either dialect, or one of its values
_EVENTS: Mapping[str, _Message] = {MINDSPORE: summary_pb2.Event, TENSORBOARD: tensorboard_pb2.Event}


def without_bulk(payload: bytes, dialect: str) -> tuple[bytes, Removed] | None:
    """An event without its bulk values, all else as it is, and what that removes; None: it has none.

    Raises DamagedFileError.
    """
    event = _parsed(payload, dialect)
    if not event.HasField("summary"):
        return None
    values = event.summary.value
    bulk = [place for place, value in enumerate(values) if _is_bulk(value, dialect)]
    for place in reversed(bulk):
        del values[place]
    return (event.SerializeToString(), Removed(len(bulk), len(payload), event.step)) if bulk else None


def with_removed(payload: bytes, dialect: str, removed: Removed) -> bytes:
    """The first event of a file with what was removed from the file; raises DamagedFileError."""
    event = _parsed(payload, dialect)
    event.removed_values, event.removed_bytes, event.removed_step = removed
    return bytes(event.SerializeToString())


def removed_from(file: Path | BinaryIO, dialect: str) -> Removed:
    """What was removed from an event file, by its first event; raises OSError."""
    first = next(read_frames(file), None)
    if first is not None and first.damage is None:
        with suppress(DamagedFileError):
            event = _parsed(first.payload, dialect)
            if event.removed_values:
                return Removed(event.removed_values, event.removed_bytes, event.removed_step)
    return Removed()


def _is_bulk(value: _Message, dialect: str) -> bool:
    kind = value.WhichOneof("value")
    if dialect == TENSORBOARD and kind == "tensor":
        kind = value.metadata.plugin_data.plugin_name
        return kind in _TENSORS and not (kind == "text" and is_own(value.tag))
    return kind in _FIELDS[dialect] and not (kind == "text" and is_own(value.tag))


def _parsed(payload: bytes, dialect: str) -> _Message:
    try:
        return _EVENTS[dialect].FromString(payload)
    except DecodeError as error:
        raise DamagedFileError(f"not an event ({error})") from error

"""Checks and copies a value that a user records under a name, before it is queued."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distsummary.errors import InvalidArgumentError, InvalidTypeError, InvalidValueError
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import GIVEN_PLUGINS, LINEAGE_PLUGINS, Value
from distsummary.frameworks.base import ArraySpec, Computed, framework_of, spec_of
from distsummary.training.values import check_tag, refuse_sparse, scalar

# The rest of an event, 8 KiB, is for the tag, the shape, a shard's position (up to 64 axes) and other fields.
MAX_VALUE_BYTES = MAX_PAYLOAD - (8 << 10)
_REMEDIES = {  # kind of dtype -> advice for the user
    "f": "convert it to float64",
    "c": "record its absolute value, or its real and imaginary parts",
    "M": "convert it to a number of seconds",
    "m": "convert it to a number of seconds",
    "V": "record its fields one by one",
}


class OnlyExported(Computed):
    """The copy of a tensor that a .npy file can hold but an event cannot."""

    __slots__ = ()


def checked_value(
    plugin: object, name: object, value: object, *, exports: bool = False, compatibility: Compatibility = OURS
) -> Value:
    """A checked `Value` of a plugin (the kind of value), with a copy of the value.

    Does not wait for a device, except for arrays of JAX.

    Args:
        plugin: one of `records.GIVEN_PLUGINS`, in any case.
        name: the tag; ignored for graphs and lineage.
        value: what the plugin takes:
            "scalar": a number, or a tensor of one element.
            "tensor", "histogram", "image": an array of NumPy, torch or JAX as `checked_copy` describes, an
                object that NumPy can read as one, or numbers in (nested) lists and tuples. A tensor or
                histogram needs at least one dimension.
            "text": a str that takes at most MAX_VALUE_BYTES in UTF-8; shown as Markdown.
            "table": a list of dicts, which becomes a text; see `table_text`.
            "figure": a matplotlib Figure, which is drawn at once and becomes an image.
            "video": (frames, frames a second), an image that moves; see `pictures.animation`.
            "confusion_matrix": (counts, names of classes or None), drawn as an image; see `pictures`.
            "audio": (samples, samples a second); see `format.wav.wav`.
            "pr_curve": (labels, predictions) or (labels, predictions, number of thresholds); see
                `precision_recall`.
            "landscape": a `records.Landscape`, or MindSpore's LossLandscape message.
            "graph": a ModelProto or GraphProto, or the bytes of one.
            a lineage plugin: its protobuf message, of MindSpore's classes or of ours.
        exports: whether tensors are also exported as .npy files. compatibility: whether histograms
            and images are MindSpore's. For both see `checked_copy`.

    Raises:
        InvalidTypeError: the value is of a type that the plugin cannot hold.
        InvalidValueError: the plugin is unknown, the name is bad, or the value has a wrong shape or size.
        InvalidArgumentError: the name is empty or no text.
        MissingExtraError: a figure is given, but matplotlib is not installed.
    """
    kind = plugin.lower() if isinstance(plugin, str) else plugin
    if kind not in GIVEN_PLUGINS or not isinstance(kind, str):
        raise InvalidValueError(f"plugin must be one of {list(GIVEN_PLUGINS)}, got {plugin!r}")
    # Modules for messages, pictures and sounds are loaded with the first of them.
    if kind in LINEAGE_PLUGINS or kind == "graph":
        from distsummary.collect.values.messages import graph_bytes, lineage_message

        if kind == "graph":
            return Value(kind, name if isinstance(name, str) else "", graph_bytes(value))
        return Value(kind, "", lineage_message(kind, value))
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"the name of a {kind} must be text that is not empty, got {name!r}")
    check_tag(name)
    field = f"the {kind} {name!r}"
    if kind == "landscape":
        from distsummary.collect.values.messages import landscape_of

        return Value(kind, name, landscape_of(field, value))
    if kind in ("figure", "video", "confusion_matrix"):
        return Value("image", name, _picture(kind, field, value))
    if kind in ("text", "table"):
        return Value(
            "text", name, _checked_text(field, table_text(field, value) if kind == "table" else value)
        )
    if kind in ("audio", "pr_curve"):
        what, most = ("(samples, rate)", 2) if kind == "audio" else ("(labels, predictions)", 3)
        if not isinstance(value, tuple) or not 2 <= len(value) <= most:
            raise InvalidTypeError(f"{field} must be a tuple {what}, got {type(value).__name__}")
        # What is encoded at once has to be on the host now.
        if kind == "audio":
            from distsummary.format.wav import wav

            return Value(kind, name, wav(field, _on_host(field, value[0]), value[1]))
        from distsummary.collect.values.precision_recall import precision_recall

        labels, predictions = (_on_host(field, part) for part in value[:2])
        return Value(kind, name, precision_recall(field, labels, predictions, *value[2:]))
    if kind == "scalar":
        return Value(kind, name, scalar(field, value))
    if kind == "image" and type(value).__module__.startswith("PIL."):
        from distsummary.collect.values.pictures import array_of_pil

        value = array_of_pil(value)
    tensor = _tensor(field, value)
    if kind != "image" and not spec_of(field, tensor).shape:
        raise InvalidValueError(f"{field} must have at least one dimension; record it as a scalar")
    copy = checked_copy(kind, name, tensor, exports=exports, compatibility=compatibility)
    return Value(kind, name, copy, framework_of(tensor).shard(tensor))


def _picture(kind: str, field: str, value: object) -> Any:
    """A figure, a video or a confusion matrix, drawn now."""
    from distsummary.collect.values.pictures import DEFAULT_FPS, animation, drawn, drawn_matrix

    if kind == "figure":
        return drawn(field, value)
    content, detail = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    array = _on_host(field, content)
    if kind == "video":
        return animation(field, array, DEFAULT_FPS if detail is None else detail)
    return drawn_matrix(field, array, detail)


def _tensor(field: str, value: object) -> Any:
    """The value itself if a framework owns it, otherwise the array that NumPy makes of it."""
    if framework_of(value).is_tensor(value):
        refuse_sparse(field, value)
        return value
    is_readable = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    if not is_readable and not isinstance(value, (int, float, list, tuple)):
        raise InvalidTypeError(
            f"{field} must be an array, a tensor or numbers in lists, got {type(value).__name__}"
        )
    try:
        return np.asarray(value)
    except Exception as error:
        # The value's own conversion may raise anything.
        # NumPy's first sentence is enough: the second one names the shapes.
        reason = str(error).partition(". ")[0]
        raise InvalidValueError(
            f"{field} must be numbers in a regular shape, got a {type(value).__name__} that NumPy cannot "
            f"read ({reason}); make it an array, or stack its items"
        ) from error


def _on_host(field: str, value: object) -> Any:
    """The numbers as an array of NumPy, now."""
    tensor = _tensor(field, value)
    return framework_of(tensor).to_numpy(tensor)


def checked_copy(
    plugin: str, name: str, tensor: Any, *, exports: bool = False, compatibility: Compatibility = OURS
) -> Any:
    """Copies an array or tensor as it is now, for a `Value` of the plugin tensor, histogram or image.

    All three accept bool, integers and floats of up to 64 bits, and the small floats of torch and ml_dtypes
    (bfloat16, float8 ...), which become float32. A tensor takes 4 bytes per element in its event, whatever
    its dtype, and at most MAX_VALUE_BYTES. An image must have one of `png.LAYOUTS`; uint8 is kept exactly.

    Args:
        exports: also accept tensors that only a .npy file can hold (complex, long double, text, times,
            structs, and tensors too large for an event), as OnlyExported.
        compatibility: histograms of MindSpore are counted later on the host, not on the tensor's device.
            Its images must be (N, C, H, W).

    Raises:
        InvalidTypeError: the dtype cannot be recorded. InvalidValueError: the shape or size is wrong.
    """
    framework, field = framework_of(tensor), f"the {plugin} {name!r}"
    spec = spec_of(field, tensor)
    # What an event cannot hold may still be exported.
    if plugin == "tensor" and exports and not spec.dtype.hasobject and not _fits_event(spec):
        return OnlyExported(framework.snapshot(tensor), lambda array: array)
    if not is_real(spec.dtype):
        remedy = _REMEDIES.get(spec.dtype.kind, "convert it to numbers")
        raise InvalidTypeError(
            f"{field} must be bool, integer or float of up to 64 bits, got {spec.dtype}; {remedy}"
        )
    if plugin == "image":
        from distsummary.format.png import layout_of

        try:
            layout_of(spec.shape, compatibility=compatibility)
        except InvalidValueError as error:
            raise InvalidValueError(f"{field}: {error}") from error
    elif plugin == "tensor" and not _fits_event(spec):
        raise InvalidValueError(
            f"{field} of shape {spec.shape} takes {4 * math.prod(spec.shape)} bytes, more than the "
            f"{MAX_VALUE_BYTES} of an event; record a part of it or its histogram, or export tensors with "
            'export_options={"tensor_format": "npy"}'
        )
    elif plugin == "histogram" and not compatibility.histograms:
        return framework.histogram(tensor)
    return framework.snapshot(tensor)


def _checked_text(field: str, value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        raise InvalidTypeError(f"{field} must be str, got {type(value).__name__}; decode it: value.decode()")
    if not isinstance(value, str):
        raise InvalidTypeError(f"{field} must be str, got {type(value).__name__}; convert it with str()")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{field} cannot be written as UTF-8: character {error.start} is the surrogate "
            f'{value[error.start]!r}; replace it: value.encode(errors="replace").decode()'
        ) from error
    if size > MAX_VALUE_BYTES:
        raise InvalidValueError(
            f"{field} takes {size} bytes, more than the {MAX_VALUE_BYTES} of an event; record a part of it"
        )
    # Make it a plain str: the collector's process may not know a subclass.
    return str.__str__(value)


def table_text(field: str, rows: Any) -> str:
    """The rows as a table, whose columns are in the order in which the rows name them first.

    Args:
        field: names the table in messages.
        rows: a list of dicts, column -> value; a row without a column has an empty cell there. Real numbers
            that are no integers have six digits.

    Raises InvalidTypeError if `rows` is no such list, InvalidValueError if it names no column.
    """
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidTypeError(
            f'{field} must be a list of dicts, column -> value, such as [{{"epoch": 1, "loss": 0.5}}], got '
            f"{type(rows).__name__}; of a data frame, pass frame.to_dict('records')"
        )
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        raise InvalidValueError(f"{field} must have at least one row with a column, got {len(rows)} row(s)")
    lines = [[_cell(column) for column in columns], ["---"] * len(columns)]
    lines += [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "<br>".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of `dtype` can be recorded: bool, integers and floats of up to 64 bits."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def _fits_event(spec: ArraySpec) -> bool:
    return is_real(spec.dtype) and 4 * math.prod(spec.shape) <= MAX_VALUE_BYTES

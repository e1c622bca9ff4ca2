"""Results, numbers and protobuf messages as values for JSON, which has neither NaN nor infinities."""

import dataclasses
import math
from collections.abc import Mapping, MutableMapping, MutableSequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import Message

Json: TypeAlias = Any  # what json.dumps takes; Python has no better type for JSON


def number(value: float | None) -> Json:
    """Returns the number for JSON; NaN and infinities become strings."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any, *, most: float = math.inf) -> Json:
    """A value for JSON: dataclasses and named tuples become objects of their fields, others texts.

    `most`: whole numbers of a larger magnitude become texts, for readers that would round them.
    """
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(name): plain(one, most=most) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, most=most) for one in value]
    if isinstance(value, float):
        return number(value)
    is_kept = value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) <= most)
    return value if is_kept else str(value)


def fields(message: Message) -> dict[str, Json]:
    """The fields that are set in a protobuf message, by name; 64-bit integers stay numbers, not strings."""
    return {field.name: _plain(content) for field, content in message.ListFields()}


def _plain(content: Any) -> Json:  # Any: whatever a field holds
    """A field's content for JSON."""
    if isinstance(content, Message):
        return fields(content)
    if isinstance(content, MutableMapping):
        return {str(name): _plain(content[name]) for name in sorted(content)}
    if isinstance(content, MutableSequence):
        return [_plain(item) for item in content]
    return number(content) if isinstance(content, float) else content

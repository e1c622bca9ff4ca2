"""Numbers and protobuf messages as values for JSON, which has neither NaN nor infinities."""

import math
from collections.abc import MutableMapping, MutableSequence
from typing import Any, TypeAlias

from google.protobuf.message import Message

Json: TypeAlias = Any  # what json.dumps takes; Python has no better type for JSON


def number(value: float | None) -> Json:
    """Returns the number for JSON; NaN and infinities become strings."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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

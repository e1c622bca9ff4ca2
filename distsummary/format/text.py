"""Text in decoded messages: proto2 lets bytes that are no UTF-8 through until somebody reads them."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from distsummary.errors import DamagedFileError
from distsummary.format.records import Value


def refuse_bad_text(values: Iterable[Value]) -> None:
    """Raise DamagedFileError for a tag, or a string of a lineage message, that is no UTF-8."""
    for value in values:
        _require_text(value.tag)
        if isinstance(value.data, Message):
            _refuse_in(value.data)


def _require_text(text: object) -> None:
    if not isinstance(text, str):
        raise DamagedFileError(f"a text of the event is not UTF-8: {text!r}")


def _refuse_in(message: Message) -> None:
    try:
        for field, found in message.ListFields():
            for item in _items(found):
                if isinstance(item, Message):
                    _refuse_in(item)
                elif isinstance(item, bytes) and field.type != field.TYPE_BYTES:
                    _require_text(item)
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"a text of the event is not UTF-8: {error}") from error


def _items(found: Any) -> Iterable[Any]:
    """One value, the values of a repeated field, or the keys and values of a map."""
    if hasattr(found, "items"):
        return [part for pair in found.items() for part in pair]
    return found if hasattr(found, "extend") or hasattr(found, "add") else [found]

"""Labels: what people call a run, its name, group, tags and notes, as run.json keeps them."""

from collections.abc import Sequence
from typing import Any

from distsummary.base.checks import check_text, check_type
from distsummary.base.redaction import redacted
from distsummary.errors import InvalidTypeError, InvalidValueError

MOST_NAME, MOST_NOTES, MOST_TAGS = 200, 10_000, 100  # characters of a name, group or tag; of notes; tags


def check_labels(
    name: str | None = None,
    group: str | None = None,
    tags: str | Sequence[str] | None = None,
    notes: str | None = None,
) -> dict[str, Any]:
    """The labels that are given (not None) by their keys in run.json; `tags` without repetitions.

    What looks like a secret is replaced. Raises InvalidTypeError or InvalidValueError.
    """
    given: dict[str, Any] = {}
    for field, text in (("name", name), ("group", group)):
        if text is not None:
            given[field] = _line(field, text)
    if tags is not None:
        several = [tags] if isinstance(tags, str) else tags
        if not isinstance(several, (list, tuple, set, frozenset)):
            raise InvalidTypeError(
                f"tags must be a list of texts, got {tags!r} of type {type(tags).__name__}; "
                'write tags=["baseline"]'
            )
        listed = sorted(several) if isinstance(several, (set, frozenset)) else several
        given["tags"] = [*dict.fromkeys(_line("a tag", tag) for tag in listed)]
        if len(given["tags"]) > MOST_TAGS:
            raise InvalidValueError(f"tags must be at most {MOST_TAGS}, got {len(given['tags'])}")
    if notes is not None:
        check_type("notes", notes, str)
        check_text("notes", notes)
        if len(notes) > MOST_NOTES:
            raise InvalidValueError(
                f"notes must have at most {MOST_NOTES:,} characters, got {len(notes):,}; shorten them"
            )
        given["notes"] = redacted(notes)
    return given


def _line(field: str, text: object) -> str:
    check_type(field, text, str)
    line = str(text).strip()
    check_text(field, line)
    if not 1 <= len(line) <= MOST_NAME or not line.isprintable():
        raise InvalidValueError(
            f"{field} must be one line of 1 to {MOST_NAME} printable characters, got {text!r:.100}"
        )
    return str(redacted(line))

"""What people may call a run: the checks of its name, group, tags and notes, when given and when changed."""

from collections.abc import Iterable, Sequence
from typing import Any

from distsummary.base.checks import check_text, check_type
from distsummary.base.redaction import redacted
from distsummary.errors import InvalidTypeError, InvalidValueError

MOST = {"name": 200, "group": 200, "tag": 100, "notes": 20_000}  # characters
MOST_TAGS = 100


def check_labels(
    name: str | None = None,
    group: str | None = None,
    tags: str | Sequence[str] | None = None,
    notes: str | None = None,
) -> dict[str, Any]:
    """The labels that are given (not None), by their keys in run.json.

    Raises InvalidTypeError or InvalidValueError.
    """
    given: dict[str, Any] = {}
    for field, text in (("name", name), ("group", group), ("notes", notes)):
        if text is not None:
            given[field] = check_label(field, text, may_be_empty=field == "notes")
    if tags is not None:
        several = [tags] if isinstance(tags, str) else tags
        if not isinstance(several, (list, tuple, set, frozenset)):
            raise InvalidTypeError(
                f"tags must be a list of texts, got {tags!r} of type {type(tags).__name__}; "
                'write tags=["baseline"]'
            )
        given["tags"] = check_tags(check_label("tag", tag) for tag in several)
    return given


def check_tags(tags: Iterable[str]) -> list[str]:
    """Each tag once, sorted; raises InvalidValueError if there are too many."""
    found = sorted(set(tags))
    if len(found) > MOST_TAGS:
        raise InvalidValueError(f"a run may have {MOST_TAGS} tags, got {len(found)}; remove some")
    return found


def check_label(field: str, text: object, *, may_be_empty: bool = False) -> str:
    """A label without spaces around it, in which what looks like a secret is replaced.

    Raises InvalidTypeError or InvalidValueError.
    """
    check_type(field, text, str)
    label = str(text).strip()
    check_text(field, label)
    allowed = "\n\t" if field == "notes" else ""
    wrong = next((one for one in label if not one.isprintable() and one not in allowed), "")
    if (label or may_be_empty) and len(label) <= MOST[field] and not wrong:
        return str(redacted(label))
    got = f"{len(label):,} characters" if len(label) > MOST[field] else repr(wrong or label)
    raise InvalidValueError(
        f"{field} must be {0 if may_be_empty else 1} to {MOST[field]:,} printable characters, got {got}"
    )

"""What people call a run: its name, group, tags and notes, as `ds.init` was given them or as changed later.

run.json has what the training gave. What is changed afterwards is in labels.json next to it, which has only
what was changed and is replaced whole under a lock, so that two people may change a run at the same time.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from distsummary.base.checked_json import read_json
from distsummary.base.checks import check_type
from distsummary.base.columns import cut
from distsummary.base.publish import publish
from distsummary.errors import InvalidValueError
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.run_records import LabelsRecord

MOST = {"name": 200, "group": 200, "tag": 100, "notes": 20_000}  # characters
MOST_TAGS = 100


class Labels(NamedTuple):
    """`name`: empty: the run is called as its directory. `tags`: each once, sorted."""

    name: str = ""
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""


def read_labels(run_dir: RunDir, manifest: Mapping[str, Any]) -> Labels:
    """The labels of a run; `manifest`: what its run.json says.

    Raises DamagedFileError, or OSError if labels.json cannot be read.
    """
    try:
        changed = read_json(
            run_dir.labels_path, LabelsRecord, remedy="remove it: run.json has what ds.init was given"
        )
    except FileNotFoundError:
        changed = {}
    # What an older version wrote into run.json has none of these.
    given = {name: manifest[name] for name in Labels._fields if manifest.get(name) is not None}
    found = given | changed
    return Labels(**{**found, "tags": _once(found["tags"])} if "tags" in found else found)


def change_labels(
    run_dir: RunDir,
    *,
    name: str | None = None,
    group: str | None = None,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    notes: str | None = None,
) -> Labels:
    """Change the labels of a run and return what they are now; None leaves one as it is.

    Args:
        name, group: up to 200 characters; an empty group: none. add, remove: tags of up to 100 characters, of
            which a run has up to 100; one to remove that is not there is no error. notes: up to 20,000
            characters.

    Raises:
        InvalidTypeError, InvalidValueError: a label is no text, too long, or empty.
        DamagedFileError: run.json or labels.json is damaged. RunDirError: it cannot be written, or another
        process holds the lock. In all these cases nothing is changed.
    """
    added, removed = ([_checked("tag", tag) for tag in tags] for tags in (add, remove))
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = _checked("name", name)
    if group is not None:
        changes["group"] = _checked("group", group, may_be_empty=True) or None
    if notes is not None:
        changes["notes"] = _checked("notes", notes, may_be_empty=True)
    with run_dir.locked("labels"):
        before = read_labels(run_dir, run_dir.read_manifest())
        if added or removed:
            changes["tags"] = _once([*(tag for tag in before.tags if tag not in removed), *added])
            if len(changes["tags"]) > MOST_TAGS:
                raise InvalidValueError(
                    f"a run may have {MOST_TAGS} tags, got {len(changes['tags'])}; remove some"
                )
        if not changes:
            return before
        path = run_dir.labels_path
        own = read_json(path, LabelsRecord) if path.exists() else {}
        publish(path, json.dumps(own | changes, indent=1).encode())
        return before._replace(**changes)


def _once(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(tags)))


def _checked(field: str, text: str, *, may_be_empty: bool = False) -> str:
    """A label without spaces around it."""
    check_type(field, text, str)
    text = text.strip()
    allowed = "\n\t" if field == "notes" else ""
    wrong = next((one for one in text if not one.isprintable() and one not in allowed), "")
    if (text or may_be_empty) and len(text) <= MOST[field] and not wrong:
        return text
    got = f"{len(text)} characters" if len(text) > MOST[field] else repr(wrong or text)
    raise InvalidValueError(
        f"{field} must be {0 if may_be_empty else 1} to {MOST[field]} printable characters, "
        f"got {cut(got, 60)}"
    )

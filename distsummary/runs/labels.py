"""What people call a run: its name, group, tags and notes, as `ds.init` was given them or as changed later.

run.json has what the training gave. What is changed afterwards is in labels.json next to it, which has only
what was changed and is replaced whole under a lock, so that two people may change a run at the same time.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from distsummary.base.checked_json import read_json
from distsummary.base.columns import printable
from distsummary.base.publish import publish
from distsummary.errors import InvalidValueError
from distsummary.rundir.labels import check_label, check_tags
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.run_records import LabelsRecord
from distsummary.runs.recorded_run import open_run


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
    return Labels(**{**found, "tags": tuple(sorted({*found["tags"]}))} if "tags" in found else found)


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
    added, removed = ([check_label("tag", tag) for tag in tags] for tags in (add, remove))
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = check_label("name", name)
    if group is not None:
        changes["group"] = check_label("group", group, may_be_empty=True) or None
    if notes is not None:
        changes["notes"] = check_label("notes", notes, may_be_empty=True)
    with run_dir.locked("labels"):
        before = read_labels(run_dir, run_dir.read_manifest())
        if added or removed:
            kept = (tag for tag in before.tags if tag not in removed)
            changes["tags"] = tuple(check_tags([*kept, *added]))
        if not changes:
            return before
        path = run_dir.labels_path
        own = read_json(path, LabelsRecord) if path.exists() else {}
        publish(path, json.dumps(own | changes, indent=1).encode())
        return before._replace(**changes)


def relabelled(
    path: str | os.PathLike[str],
    tags: Sequence[str],
    *,
    name: str | None = None,
    group: str | None = None,
    notes: str | None = None,
) -> Labels:
    """`change_labels` of a command: `tags` to add begin with "+", those to remove with "-".

    Raises also InvalidValueError for another one, and the errors of `open_run`.
    """
    for tag in tags:
        if tag[:1] not in ("+", "-"):
            raise InvalidValueError(f"a tag must begin with + (add it) or - (remove it), got {tag!r}")
    run_dir = RunDir(open_run(path).path)
    add, remove = ([tag[1:] for tag in tags if tag[0] == sign] for sign in "+-")
    return change_labels(run_dir, name=name, group=group, add=add, remove=remove, notes=notes)


def text_of(path: str | os.PathLike[str], labels: Labels) -> str:
    """What a run is called, a line for each label that it has."""
    rows = {"name": labels.name, "group": labels.group, "tags": ", ".join(labels.tags), "notes": labels.notes}
    lines = [f"  {name:<6} {printable(text)}" for name, text in rows.items() if text]
    return "\n".join(
        [f"{printable(os.fspath(path))}:{'' if lines else ' no name, group, tags or notes'}", *lines]
    )

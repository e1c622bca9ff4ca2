"""Runs that hold nothing which identifies the user or the machine: those of `Record(identity=False)`.

run.json says so for the whole run: `"identity": false`. Whatever is later written into it omits the same,
also by jobs that do not ask for it. Host and boot id become masks with the run id as key: they distinguish
the processes and hosts of this run and of no other; see `topology.masked`.
"""

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from distsummary.base.processes import mask_of_host, own_process
from distsummary.errors import DistSummaryError
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.topology import Topology, masked

KEY = "identity"  # in run.json
HIDDEN = "***"
_DIRECTORIES = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")  # of absolute paths within a text
_LEAST = 3  # letters of a name that is looked for in texts


def as_recorded(run_dir: RunDir, topology: Topology) -> Topology:
    """The topology as the run records it: masked if the run omits identities."""
    salt = salt_of(run_dir.read_manifest())
    return masked(topology, salt) if salt else topology


def without_identity(run_dir: RunDir, topology: Topology) -> Topology:
    """The masked topology, after run.json says that this run omits identities."""
    manifest = run_dir.update_manifest(
        lambda manifest: manifest.update({KEY: False}), is_done=lambda manifest: bool(salt_of(manifest))
    )
    return masked(topology, salt_of(manifest))


def salt_of(manifest: Mapping[str, Any]) -> str:
    """The key of the run's masks; empty for a run that records identities."""
    return str(manifest.get("run_id", "")) if manifest.get(KEY) is False else ""


def own_place(manifest: Manifest) -> Manifest:
    """This process and its host, as the run records them."""
    salt = salt_of(manifest)
    return own_process(salt) | {"host": mask_of_host(salt) if salt else platform.node()}


def host_in(directory: Path) -> str:
    """The name of this host for files in a directory of a run, or in any other directory."""
    for base in (directory, directory.parent):
        # It may be a run.json of another program.
        with suppress(DistSummaryError):
            if salt := salt_of(RunDir(base).read_manifest()):
                return mask_of_host(salt)
    return platform.node()


def without_places_in(value: Any) -> Any:  # Any: what JSON holds
    """`without_places` of each text in a structure of dicts, lists and tuples."""
    if isinstance(value, str):
        return without_places(value)
    if isinstance(value, Mapping):
        return {name: without_places_in(one) for name, one in value.items()}
    return [without_places_in(one) for one in value] if isinstance(value, (list, tuple)) else value


def without_places(text: str) -> str:
    """The text without the directories of absolute paths, without the names of this host and of its user."""
    home = os.path.expanduser("~")
    for place in (os.getcwd(), home):
        if len(place) > _LEAST:
            # These directories go as a whole: the pattern below takes a space for the end of a path.
            text = text.replace(place + os.sep, "/~/")
    text = _DIRECTORIES.sub("", text)
    for name in (platform.node(), os.path.basename(home)):
        if len(name) >= _LEAST:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    return text

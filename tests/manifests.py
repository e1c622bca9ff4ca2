"""The whole manifest of a run for assertions: run.json, and what each rank reports in its own file."""

from os import PathLike
from typing import Any

from distsummary.rundir.attempts import with_ranks
from distsummary.rundir.run_dir import RunDir


def whole_manifest(path: str | PathLike[str]) -> dict[str, Any]:
    """run.json, where each attempt has its `ranks`: rank -> the entry in its file."""
    run_dir = RunDir(path)
    manifest = run_dir.read_manifest()
    return manifest | {"attempts": [with_ranks(run_dir, entry) for entry in manifest["attempts"]]}

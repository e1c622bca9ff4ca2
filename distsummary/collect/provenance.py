"""Where a run comes from: its commit, command line and versions, with secrets removed."""

import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from distsummary.base.checks import as_unicode
from distsummary.base.processes import in_ray, no_fork
from distsummary.base.redaction import redacted

GIT_TIMEOUT_S = 5.0
MAX_ERROR = 300  # characters
PACKAGES = ("distsummary", "numpy", "protobuf", "ray", "torch", "mindspore")


def provenance(directory: Path | None = None) -> dict[str, Any]:
    """The commit of `directory` (default: the current one) and the installed versions.

    All values have JSON types. `git` is empty outside a repository or without git.
    """
    return {
        "git": git_state(directory or Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def command_line() -> list[str]:
    """The command line that the user typed: of this process or, in Ray's workers, of the job's driver."""
    if in_ray():
        # Ray is imported only where it is used.
        from distsummary.collect.remote.actor import driver_command

        return driver_command() or sys.argv
    return sys.argv


def git_state(directory: Path) -> dict[str, str | bool]:
    """The `commit`, and whether tracked files differ from it (`dirty`); empty if there is no commit."""
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return {}
    state: dict[str, str | bool] = {"commit": commit}
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return state if changes is None else state | {"dirty": bool(changes)}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        with no_fork():
            process = subprocess.Popen(
                ["git", "--no-optional-locks", "-C", str(directory), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
            )
    except (OSError, ValueError):
        return None  # no git
    with process:
        try:
            said, _ = process.communicate(timeout=GIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return None if process.returncode else said.strip()


def versions() -> dict[str, str]:
    """The installed versions of the packages that a run depends on."""
    return {
        package: version for package in PACKAGES if (version := _version_of(package, package in sys.modules))
    }


@cache
def _version_of(package: str, is_imported: bool) -> str:
    """The installed version of a package, empty if it is not there; read again once it is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def error_text(error: BaseException) -> str:
    """The type of an error and its message's first line, without secrets, of at most MAX_ERROR characters."""
    try:
        message = str(error).strip()[: 8 * MAX_ERROR]
    except Exception as cause:
        # The class of the error may be the user's, and its text may raise anything.
        message = f"its message raises {type(cause).__name__}"
    lines = message.splitlines() or [""]
    text = as_unicode(redacted(f"{type(error).__name__}: {lines[0]}".removesuffix(": ")))
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 3]}..."

"""Where a run comes from: its commit, command line and versions, with secrets removed."""

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from distsummary.topology import in_ray

GIT_TIMEOUT_S = 5.0
REDACTED = "***"
MAX_ERROR = 300  # characters
PACKAGES = ("distsummary", "numpy", "protobuf", "ray", "torch", "mindspore")

# Beside one of these words, a token is not a password but one of a vocabulary: pad_token, eos_token_id.
_HARMLESS = (
    *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "start", "end", "stop"),
    *("id", "ids", "index", "path", "num", "min", "max", "count", "len", "size"),
)
_NOT_AFTER = "".join(rf"(?<!(?<![a-z]){word}[-_])" for word in _HARMLESS)
_TOKEN_WORD = rf"{_NOT_AFTER}token(?![-_](?:{'|'.join(_HARMLESS)})(?![a-z]))"
# Matches whole words of an option's name: --token and --hf_token match, --tokenizer and --max-tokens do not.
_SECRET_WORD = (
    rf"(?<![a-z])(?:pass(?:word|wd|phrase)?|pwd|secrets?|{_TOKEN_WORD}|(?:api|access|private)[-_]?key"
    r"|credentials?|auth)(?![a-z])"
)
_SECRET = re.compile(_SECRET_WORD, re.IGNORECASE)
# In a repr: password='...' or 'password': '...'
_ASSIGNED = re.compile(
    rf"({_SECRET_WORD}\w*['\"]?\s*[:=]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,()\[\]{{}}]+)", re.IGNORECASE
)
_TOKEN = re.compile(r"(?:ghp|gho|ghs|github_pat|glpat|hf|sk|xox[abp]|AKIA)[-_A-Za-z0-9]{16,}")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def provenance(directory: Path | None = None, *, has_identity: bool = True) -> dict[str, Any]:
    """The commit of `directory` (default: the current one), the command line and the installed versions.

    All values have JSON types. `git` is empty outside a repository or without git. Without `has_identity`,
    there are only the versions.
    """
    if not has_identity:
        return {"python": platform.python_version(), "versions": versions()}
    return {
        "git": git_state(directory or Path.cwd()),
        "argv": redact(command_line()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def command_line() -> list[str]:
    """The command line that the user typed: of this process or, in Ray's workers, of the job's driver."""
    if in_ray():
        from distsummary.collect.actor import driver_command  # import Ray only where it is used

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
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (
        OSError,
        ValueError,
        subprocess.SubprocessError,
    ):  # no git, no repository, or a timeout
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """The installed versions of the packages that a run depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def redact(argv: Sequence[str]) -> list[str]:
    """The command line with secrets (option values, tokens, logins in URLs) replaced by ***."""
    clean = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        hides = is_secret(name)
        if hide_next and not argument.startswith("-"):
            clean.append(REDACTED)
        elif hides and equals:
            clean.append(f"{name}={REDACTED}")
        else:
            clean.append(redact_text(argument))
        hide_next = hides and not equals and argument.startswith("-")
    return clean


def is_secret(name: str) -> bool:
    """Whether the value of an option or setting with this name is a secret, such as a password."""
    return bool(_SECRET.search(name))


def redact_text(text: str) -> str:
    """The text, in which *** replaces everything that looks like a secret: tokens, logins in URLs."""
    return _URL_LOGIN.sub(REDACTED, _TOKEN.sub(REDACTED, text))


def redact_repr(text: str) -> str:
    """A repr, in which *** also replaces the values of attributes and keys with names such as password."""
    return _ASSIGNED.sub(rf"\g<1>{REDACTED}", redact_text(text))


def error_text(error: BaseException) -> str:
    """The type of an error and its message's first line, without secrets, of at most MAX_ERROR characters."""
    try:
        message = str(error).strip()[: 8 * MAX_ERROR]
    except Exception as cause:  # the class of the error is the user's
        message = f"its message raises {type(cause).__name__}"
    lines = message.splitlines() or [""]
    text = redact_repr(f"{type(error).__name__}: {lines[0]}".removesuffix(": "))
    text = text.encode("utf-8", "replace").decode()  # without halves of a surrogate pair
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 3]}..."

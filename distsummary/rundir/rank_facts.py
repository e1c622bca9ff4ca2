"""The facts.json of a rank: its settings, seeds and versions, and the names of the model's parameters.

It lies in the rank's directory and has the newest attempts:

    {"format": 1, "attempts": {"0": {"settings": {"seed torch": "42"}, "names": ["0.weight", "0.bias"],
     "groups": {"whole": [0, 1]}, "layouts": {"whole": 3735928559}}}}

The command.json of rank 0 has the command line of each attempt, for the eyes of its owner alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distsummary.base.checked_json import check_kind, read_json
from distsummary.base.publish import ensure_directory, replacing
from distsummary.errors import DamagedFileError
from distsummary.rundir.run_records import AttemptKey, FactsRecord

FACTS = "facts.json"
COMMAND = "command.json"  # in the directory of rank 0
FORMAT = 1
KEPT = 16  # attempts


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a rank reports of itself at its first step, to be compared with other ranks.

    Attributes:
        settings: name -> text; None: not known.
        names: those of the model's parameters, in its order.
        groups: group of bit sums -> the indices in `names` of its parameters; see `check_tags.bits_tags`.
        layouts: group of bit sums -> a digest of the names and shapes of its parameters.
    """

    settings: Mapping[str, str | None]
    names: Sequence[str] = ()
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    layouts: Mapping[str, int] = field(default_factory=dict)

    def names_of(self, group: str) -> list[str]:
        """The names of the parameters of a group of bit sums."""
        return [self.names[index] for index in self.groups.get(group, ()) if 0 <= index < len(self.names)]


def write_facts(directory: Path, attempt: int, facts: RankFacts) -> None:
    """Write the facts of an attempt; raises RunDirError if the file cannot be written."""
    write_attempt(directory / FACTS, attempt, asdict(facts))


def read_facts(directory: Path, attempt: int) -> RankFacts | None:
    """The facts of an attempt; None if there are none that can be read."""
    stored = read_attempts(directory / FACTS, FactsRecord).get(str(attempt))
    if stored is None:
        return None
    return RankFacts(stored["settings"], stored["names"], stored["groups"], stored["layouts"])


def write_command(directory: Path, attempt: int, argv: Sequence[str]) -> None:
    """Write the command line of an attempt where only the owner can read it; raises RunDirError."""
    write_attempt(directory / COMMAND, attempt, [*argv], is_private=True)


def read_command(directory: Path, attempt: int) -> list[str]:
    """The command line of an attempt; empty if there is none that can be read."""
    return [*read_attempts(directory / COMMAND, list[str]).get(str(attempt), ())]


def write_attempt(path: Path, attempt: int, data: Any, *, is_private: bool = False) -> None:
    """Write what the file of a rank says of an attempt, as JSON; of others, the newest stay.

    Raises RunDirError if the file cannot be written.
    """
    ensure_directory(path.parent)
    attempts = read_attempts(path) | {str(attempt): data}
    newest = sorted(attempts, key=int)[-KEPT:]
    kept = {number: attempts[number] for number in newest}
    encoded = json.dumps({"format": FORMAT, "attempts": kept}).encode()
    with replacing(path, is_durable=False, is_private=is_private) as temporary, open(temporary, "xb") as file:
        file.write(encoded)


def read_attempts(path: Path, kind: Any = Any) -> dict[str, Any]:
    """Attempt -> what the file holds of it, of the type `kind`; empty if no file can be read."""
    try:
        return _attempts(path, kind)
    except (OSError, DamagedFileError):
        return {}


def problem_of(path: Path) -> str:
    """How a file of a rank about its attempts is damaged; empty if it is not, or missing. Raises OSError."""
    try:
        _attempts(path, Any)
    except FileNotFoundError:
        return ""
    except DamagedFileError as error:
        return str(error)
    return ""


def _attempts(path: Path, kind: Any) -> dict[str, Any]:
    """As `read_attempts`; raises OSError, DamagedFileError."""
    found = read_json(path, dict[str, Any])
    attempts = found.get("attempts") if found.get("format") == FORMAT else {}
    return dict(check_kind(attempts, dict[AttemptKey, kind], name=str(path)))

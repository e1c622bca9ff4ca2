"""The parts.json of a rank: its parts in the deals of its newest attempts, as they were in force.

See `deal.Part`:

    {"format": 1, "attempts": {"0": [{"deal": 1, "since": 1, "total": 60, "shares": [{"values": "histogram",
     "parameters": ["0.weight"], "steps": {"every": 10}}]}]}}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from distsummary.base.many_files import read_each
from distsummary.rundir.deal import Part
from distsummary.rundir.rank_facts import read_attempts, write_attempt
from distsummary.rundir.run_records import PartRecord

PARTS = "parts.json"


def write_parts(directory: Path, attempt: int, parts: Sequence[Part]) -> None:
    """Write the parts of an attempt; raises RunDirError if the file cannot be written."""
    write_attempt(directory / PARTS, attempt, [part.as_json() for part in parts])


def read_parts(directory: Path) -> dict[int, list[Part]]:
    """Attempt -> the rank's parts in it, in their order; empty if there are none that can be read."""
    return {
        int(attempt): [Part.from_json(one) for one in stored]
        for attempt, stored in read_attempts(directory / PARTS, list[PartRecord]).items()
    }


def parts_of(directories: Mapping[int, Path], attempt: int) -> dict[int, list[Part]]:
    """Rank -> its parts in the deals of an attempt, of the ranks in these directories that have some."""
    found = zip(directories, read_each(read_parts, [*directories.values()]), strict=True)
    return {rank: parts[attempt] for rank, parts in found if parts.get(attempt)}

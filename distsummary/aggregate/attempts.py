"""Which attempts the event files of a run know: what counts when its manifest was removed."""

from pathlib import Path

from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS
from distsummary.format.wire import read_identity
from distsummary.reading.segments import segments
from distsummary.run_dir import RunDir


def first_free_attempt(run_dir: RunDir, role: str) -> int:
    """The attempt above all that ranks of a role, or a merge of them, recorded; 0 if none has."""
    directories = [run_dir.writer_dir(role, 0, 1), *run_dir.rank_dirs(role).values()]
    files = [
        path
        for directory in directories
        if directory.is_dir()
        for dialect in DIALECTS
        for path in segments(directory, dialect)
    ]
    return 1 + max((_attempt_of(path) for path in files), default=-1)


def _attempt_of(path: Path) -> int:
    """The attempt of a segment, told by its first sound frame; -1 if another writer wrote it."""
    for frame in read_frames(path):
        if frame.damage is None:
            try:
                ids = read_identity(frame.payload)
            except ValueError:
                return -1
            return ids.attempt if ids.run_id else -1
    return -1

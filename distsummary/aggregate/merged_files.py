"""The event files of a merged run: written to a staging directory, then replacing the older ones."""

import contextlib
import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from distsummary.aggregate.merge_lineage import Conflict
from distsummary.base.publish import TEMPORARY, rights_in, sync, temporary_name
from distsummary.errors import RunDirError, reason
from distsummary.events.files import Files
from distsummary.events.index import index_closed
from distsummary.events.reader import Damage, read_file
from distsummary.events.retention import remove_bulk
from distsummary.events.segment import Segment
from distsummary.events.segments import SegmentName, lineage_files, next_stamp, segments, source_of
from distsummary.events.spec import WriterSpec
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.encode import EventEncoder, Refusal
from distsummary.format.frames import frame
from distsummary.format.lineage import Lineage, encode_lineage
from distsummary.format.own_tags import RUN_TEXT
from distsummary.format.records import DIALECTS, HPARAMS, MINDSPORE, TENSORBOARD, Batch, EventIds

MERGED = "merged"  # takes the place of the rank in the names of merged files
_LINEAGE = "lineage"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_merged(path: Path) -> bool:
    """Whether an event file was written by a merge, according to its name."""
    return source_of(path.name) == MERGED


def other_segments(directory: Path) -> list[Path]:
    """The event files in a directory that were not written by a merge."""
    return [path for dialect in DIALECTS for path in segments(directory, dialect) if not is_merged(path)]


def refuse_foreign_files(target: Path) -> None:
    """Raise RunDirError if `target`, a directory for merged files, holds event files of another writer."""
    foreign = other_segments(target)
    if foreign:
        names = ", ".join(path.name for path in foreign[:3])
        raise RunDirError(
            f"{target} holds event files that no merge wrote ({names}). The merged run is written to the "
            "same directory, and viewers would mix the two: move those files elsewhere, then try again"
        )


def holds_steps(directory: Path) -> bool:
    """Whether the merged files of a directory hold anything that ranks recorded, except for lineage."""
    merged = [path for dialect in DIALECTS for path in segments(directory, dialect) if is_merged(path)]
    return any(
        # The merge itself writes the settings and the text of the run.
        value.plugin != HPARAMS and value.tag != RUN_TEXT
        for path in merged
        for event in read_file(path, "skip", skipped=[])
        for value in event.values
    )


class StagedWriter:
    """Writes the new merged files of a directory aside; `publish` puts them in the place of the older ones.

    Until `publish`, the files are in a staging directory and
    do not have names of event files. If a merge is killed, the next merge removes its staging directory. This
    is a context manager; the caller must hold the run's merge lock. After an OSError, nothing can be
    published.

    Args:
        spec: the directory (the run dir, or its directory for the role eval), the identity of the events,
            the time in the first record of each file, and the dialects.
        files: the file operations to use; None means the real ones. Tests pass a test double.

    Attributes:
        refused: the values that could not be written. last_seq: that of the newest event.
    """

    def __init__(self, spec: WriterSpec, files: Files | None = None) -> None:
        self.spec = spec
        self.refused: list[Refusal] = []
        self.last_seq = 0
        self._directory, self._files = Path(spec.directory), files or Files()
        self._encoder = EventEncoder(spec.run_id, spec.attempt, spec.formats)
        self._ids = EventIds(spec.run_id, spec.attempt, 0)
        self._segments: dict[str, Segment] = {}
        self._keep_bytes: int | None = None
        self._bulk = Counter[str]()  # dialect -> bytes of the events with bulk values
        for path in self._directory.iterdir():
            # The caller holds the merge lock, so any staging directory is that of a merge that was killed.
            is_staging = path.name.startswith(TEMPORARY) and path.is_dir() and not path.is_symlink()
            if is_staging and {inner.name for inner in path.iterdir()} <= {*DIALECTS, _LINEAGE}:
                shutil.rmtree(path)
        self._staging = temporary_name(self._directory)
        try:
            self._staging.mkdir(rights_in(self._directory))
        except OSError as error:
            raise RunDirError(f"{self._directory} cannot be written: {reason(error)}") from error

    def write(self, batch: Batch) -> None:
        """Append the events of a batch; what cannot be written goes to `refused`. Raises OSError."""
        encoded = self._encoder.encode(batch.first_seq, batch.events)
        self.refused += encoded.refused
        for dialect, framed in encoded.framed.items():
            if framed:
                if dialect not in self._segments:
                    self._begin(dialect, batch.first_step)
                self._segments[dialect].extend(framed)
                self._bulk[dialect] += sum([one.nbytes for one in framed if one.first_seq in encoded.bulk])
        self.last_seq = batch.last_seq

    def write_lineage(self, lineage: Lineage) -> None:
        """Write the lineage of the run; for an empty lineage no file is made."""
        payloads = encode_lineage(lineage, self._files.now(), self._ids)
        if payloads and MINDSPORE in self.spec.formats:
            segment = self._segments[_LINEAGE] = Segment(self._staging / _LINEAGE, self._files)
            segment.append(b"".join(frame(payload) for payload in payloads))

    def _begin(self, dialect: str, first_step: int) -> None:
        """Create the file of a dialect and write its first records."""
        segment = self._segments[dialect] = Segment(self._staging / dialect, self._files)
        now = self._files.now()
        begun = now if self.spec.begun is None else self.spec.begun
        if dialect == MINDSPORE:
            segment.append(frame(mindspore_format.encode_version(begun, self._ids)))
        else:
            # The session start makes a running TensorBoard forget what it has read from the older merged
            # files, which this one replaces.
            segment.append(
                frame(tensorboard_format.encode_version(begun, self._ids))
                + frame(tensorboard_format.encode_session_start(first_step, now, self._ids))
            )

    def publish(self) -> tuple[Path, ...]:
        """Make the new files durable and visible, then remove the older merged ones; returns the new ones.

        If nothing was written, nothing is removed.
        """
        if not self._segments:
            return ()
        for segment in self._segments.values():
            segment.sync()
        self.close()
        self._remove_old_bulk()
        older = [path for dialect in DIALECTS for path in segments(self._directory, dialect)]
        older = [path for path in (*older, *lineage_files(self._directory)) if is_merged(path)]
        stamp = next_stamp(self._directory, self._files.now())
        name = SegmentName(source=MERGED, host=self._files.host(), pid=self._files.pid())
        published = []
        # The older files go last: if the process dies in between, no step is lost.
        for kind in (MINDSPORE, TENSORBOARD, _LINEAGE):
            if kind in self._segments:
                final = name.lineage_name(stamp) if kind == _LINEAGE else name.file_name(kind, stamp)
                os.replace(self._segments[kind].path, self._directory / final)
                published.append(self._directory / final)
        sync(self._directory)
        for path in older:
            path.unlink(missing_ok=True)
        # Readers prefer MindSpore's file to TensorBoard's, so only that one needs an index.
        if MINDSPORE in self._segments:
            index_closed(self._directory / name.file_name(MINDSPORE, stamp))
        return tuple(published)

    def keep(self, keep_bytes: int) -> None:
        """Leave out the oldest bulk values beyond so many bytes, see `events.retention`."""
        self._keep_bytes = keep_bytes

    def _remove_old_bulk(self) -> None:
        total = sum(self._bulk.values())
        if self._keep_bytes is not None and total > self._keep_bytes:
            for dialect, nbytes in self._bulk.items():
                # The same share of both, which hold the same values.
                most = -(-nbytes * (total - self._keep_bytes) // total)
                remove_bulk(self._segments[dialect].path, dialect, self._files, most)

    def close(self) -> None:
        """Close the files; raises OSError."""
        for segment in self._segments.values():
            segment.close()

    def __enter__(self) -> "StagedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything that was not published; the error of a full disk says what to do."""
        written = 0
        for segment in self._segments.values():
            # A file that was published, or never made, is no longer here.
            with contextlib.suppress(OSError):
                written += segment.path.stat().st_size
        # Errors do not matter for files that are about to be removed.
        with contextlib.suppress(OSError):
            self.close()
        shutil.rmtree(self._staging, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise RunDirError(
                f"{self._directory} cannot take the merged run ({error.strerror}): it was full after "
                f"{written / 2**20:.1f} MiB of it; the merged run there, if any, is as it was. Free some "
                "space, for example checkpoints, exported tensors or other runs, but keep the directories of "
                "the ranks; then merge again"
            ) from error


def merge_facts(
    last_steps: Mapping[int, int],
    missing: Collection[int],
    conflicts: Collection[Conflict],
    damage: Collection[Damage],
) -> dict[str, Any]:
    """Facts about a merged run that event files cannot hold, for run.json."""
    return {
        "merged_at": time.time(),
        "ranks": sorted(last_steps),
        "missing_ranks": list(missing),
        "last_steps": {str(rank): step for rank, step in last_steps.items()},
        "conflicts": [conflict.as_json() for conflict in conflicts],
        "damage": [{"file": str(one.file), "offset": one.offset, "reason": one.reason} for one in damage],
    }

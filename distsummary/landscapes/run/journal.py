"""The journal of a landscape: every finished chunk, so that nothing is evaluated twice after a stop.

A file of frames (`events.frames`), only ever appended to. The first is the header, JSON:

    {"format": 3, "plan": {what the losses depend on: its hash}}

then {"choice": {the engine, and where it computes}}, and each later one a chunk: JSON, a line feed, and its
quantities, float64 little-endian (points, quantities). Another choice (memory was too small) voids the
chunks before it: all losses of a landscape are the same engine's. Each chunk names its choice by a hash, so
that those of a choice whose frame is damaged are not taken for another's. A torn end is cut when the
journal is opened; a damaged frame costs the chunk in it, or the chunks of the choice in it: they are
evaluated again. Format 2, whose chunks do not name their choice, is refused.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from distsummary.errors import DamagedFileError, LandscapeError, RunDirError
from distsummary.format.frames import Frame, frame, read_frames, whole_length
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.publish import refuse_unlike_files

FORMAT = 3
TRIES, LOOK_S = 3, 0.005  # who looks whether it is held, has it for some microseconds
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_log = logging.getLogger(__name__)


class Journal:
    """An open journal; one process at a time holds it.

    Args:
        path: made if absent.
        plan: what the losses depend on, name -> hash. A journal of another plan is refused.
        resume: False begins anew, whatever the file holds.

    Attributes:
        results: the finished chunks, with their quantities float64 (points, quantities).
        choice: the engine choice of the results, as its `to_dict` gave it; None until one is entered.
        hardware: what the results were computed on, as far as it was told.

    Raises:
        LandscapeError: another process holds the journal, or it is of another plan.
        DamagedFileError: the file is no journal.
        RunDirError: it cannot be opened; or the disk does not take what is entered: what was before stays.
    """

    def __init__(self, path: str | os.PathLike[str], plan: Mapping[str, str], *, resume: bool = True) -> None:
        self.path = Path(path)
        self.results: dict[Chunk, Array] = {}
        self.choice: dict[str, Any] | None = None
        self.hardware: list[str] = []
        self._on = ""  # this
        self._descriptor = -1
        try:
            self._hold()
            if not resume:
                os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, whole_length(self.path))
            self._read(plan)
            if not os.fstat(self._descriptor).st_size:
                self._begin(plan)
        except BaseException:
            self.close()
            raise

    def _hold(self) -> None:
        """Open and lock what lies at the path: its last holder may remove it between the two."""
        refuse_unlike_files(self.path)
        while True:
            try:
                self._descriptor = os.open(self.path, _FLAGS, 0o666)
            except OSError as error:
                raise RunDirError(
                    f"{self.path} cannot be opened: {error.strerror}; mend that, or choose another output"
                ) from error
            self._lock()
            if self._is_in_place():
                return
            self.close()

    def _lock(self) -> None:
        for _ in range(TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError as error:  # not every file system has locks
                raise RunDirError(
                    f"{self.path} cannot be locked: {error.strerror}; choose another output"
                ) from error
            else:
                return
        raise LandscapeError(
            f"{self.path} is held by another process that draws this landscape; wait for it or end it"
        )

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _read(self, plan: Mapping[str, str]) -> None:
        frames = read_frames(self.path, resync=True)
        header = next(frames, None)
        if header is None:
            return
        self._check_header(header, plan)
        for framed in frames:
            if framed.damage is None:
                self._take(framed.payload)

    def _check_header(self, header: Frame, plan: Mapping[str, str]) -> None:
        try:
            if header.damage:
                raise ValueError(f"its header is damaged: {header.damage}")
            known = json.loads(header.payload)
            if known["format"] != FORMAT:
                raise ValueError(f"its format is {known['format']}")
            found = dict(known["plan"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(
                f"{self.path} is not a landscape's journal ({error}); remove it, or use resume=False"
            ) from error
        changed = sorted(name for name in {*plan, *found} if plan.get(name) != found.get(name))
        if changed:
            raise LandscapeError(
                f"{self.path} is the journal of another landscape: {', '.join(changed)} differ(s); "
                "give the arguments that it was begun with, or resume=False to begin anew"
            )

    def _begin(self, plan: Mapping[str, str]) -> None:
        try:
            self._append({"format": FORMAT, "plan": dict(plan)})
        except BaseException:
            self.remove()
            raise

    def _take(self, payload: bytes) -> None:
        head, _, data = payload.partition(b"\n")
        try:
            entry = json.loads(head)
            if "choice" in entry:
                self._begin_with(dict(entry["choice"]))
                return
            if entry["of"] != _mark(self.choice):
                return
            fields = entry["chunk"]
            chunk = Chunk(**{**fields, "columns": tuple(fields["columns"])})
            self.results[chunk] = np.frombuffer(data, "<f8").reshape(len(chunk), -1)
            self._note_hardware(entry.get("on", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(
                f"{self.path} holds a record that is none ({error}); use resume=False to begin anew"
            ) from error

    def enter_choice(self, choice: Mapping[str, Any]) -> None:
        """Enter the engine of the chunks to come; those of another are void. An error changes nothing."""
        self._append({"choice": dict(choice)})
        self._begin_with(dict(choice))

    def _begin_with(self, choice: dict[str, Any]) -> None:
        self.choice, self.hardware, self._on = choice, [], ""
        self.results.clear()
        self._note_hardware(choice.get("hardware", ""))

    def _note_hardware(self, name: str) -> None:
        if name and name not in self.hardware:
            self.hardware.append(name)

    def enter_hardware(self, name: str) -> None:
        """Enter where the chunks to come are computed; a warning where those before are another's."""
        if self.choice is None:
            return
        before = " and ".join(self.hardware)
        if not self.results and before != name:
            self.enter_choice(self.choice | {"hardware": name})
        elif before and before != name:
            self._on = name
            self._note_hardware(name)
            _log.warning(
                "%s was begun on %s and goes on with %s: losses may differ in the last bits; "
                "resume=False begins anew",
                self.path,
                before,
                name,
            )

    def enter(self, chunk: Chunk, measured: Array, *, worker: str = "", seconds: float = 0.0) -> None:
        """Enter a finished chunk: quantities float64 (points, quantities), by whom and in what time."""
        values = np.ascontiguousarray(measured, "<f8")
        entry = {
            "chunk": asdict(chunk), "of": _mark(self.choice), "worker": worker, "seconds": round(seconds, 6)
        } | ({"on": self._on} if self._on else {})  # fmt: skip
        self._append(entry, values.tobytes())
        self.results[chunk] = values

    def _append(self, entry: Mapping[str, Any], data: bytes = b"") -> None:
        framed = frame(json.dumps(entry).encode() + b"\n" + data)
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, framed) < len(framed):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the next write would say so
        except OSError as error:
            os.ftruncate(self._descriptor, end)
            raise RunDirError(
                f"{self.path} cannot be written: {error.strerror or error}; make room for it, or mend what "
                f"is wrong, and the same call goes on from the {sum(map(len, self.results))} points finished"
            ) from error

    def remove(self) -> None:
        """Close and remove it: its landscape is saved."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Give it up for others to go on with; a second call does nothing."""
        if self._descriptor >= 0:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child that was forked keeps the file open
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; one without a single point is of no use to anybody."""
        if self._descriptor >= 0 and not self.results:
            self.remove()
        self.close()


def _mark(choice: Mapping[str, Any] | None) -> str:
    """What chunks name their choice by."""
    return hashlib.blake2b(json.dumps(choice, sort_keys=True).encode(), digest_size=8).hexdigest()

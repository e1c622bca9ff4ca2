"""Exports tensors as .npy files next to the events."""

import hashlib
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from distsummary.base.health import Health, Removed
from distsummary.base.publish import ensure_directory, replacing, rights_in
from distsummary.collect.background import Background
from distsummary.collect.values.checked_values import OnlyExported
from distsummary.errors import RunDirError, reason
from distsummary.events.writer import EventWriter
from distsummary.format.records import Event, Value
from distsummary.rundir.run_dir import export_dir

MAX_NAME = 200  # bytes; file systems allow 255
# No quoted tag contains this, so a shortened tag equals no other.
_CUT = "%~"


class Exports:
    """Exports the tensors of one record or collector to a directory of its own, `export_<seconds>/tensor/`.

    Args:
        directory: the directory of the event files.
        stamp: `<seconds>` since the epoch; if that directory exists, the next free number is used.
        files: the background thread that writes the files.
        keep_bytes: so much of them stays, with those of earlier attempts; the oldest are removed, which
            `health` counts. None: all.
    """

    def __init__(
        self,
        directory: Path,
        stamp: int,
        files: Background,
        keep_bytes: int | None = None,
        health: Health | None = None,
    ) -> None:
        self._directory, self._stamp, self._files = directory, stamp, files
        self._keep_bytes, self._health = keep_bytes, Health() if health is None else health
        self._exported: Path | None = None
        self._kept: deque[tuple[Path, int]] | None = None  # the files and their bytes, oldest first
        self._kept_bytes = 0

    def export(self, step: int, values: list[Value]) -> None:
        """Queue the tensors among the values of a step for writing; raises like `Background.submit`."""
        for value in values:
            if value.plugin == "tensor":
                job = partial(self._export, value, step)
                self._files.submit(f"export of {value.tag}", job, nbytes=value.data.nbytes)

    def _export(self, value: Value, step: int) -> None:
        # Find a directory to which no other record exports.
        stamp = self._stamp
        while self._exported is None:
            path = export_dir(self._directory, stamp)
            ensure_directory(path.parent)
            try:
                path.mkdir(rights_in(path.parent))
            except FileExistsError:
                stamp += 1
            except OSError as error:
                raise RunDirError(f"the directory {path} cannot be made: {reason(error)}") from error
            else:
                self._exported = path
        path = export_npy(self._exported, value.tag, step, np.asarray(value.data.result()))
        if self._keep_bytes is not None:
            self._remove_old(path, self._keep_bytes)

    def _remove_old(self, newest: Path, keep_bytes: int) -> None:
        if self._kept is None:
            found = [
                (one, one.stat()) for one in self._directory.glob("export_*/tensor/*.npy") if one != newest
            ]
            found.sort(key=lambda one: one[1].st_mtime_ns)
            self._kept = deque((path, status.st_size) for path, status in found)
            self._kept_bytes = sum(size for _, size in self._kept)
        self._kept.append((newest, newest.stat().st_size))
        self._kept_bytes += self._kept[-1][1]
        while len(self._kept) > 1 and self._kept_bytes > keep_bytes:
            path, size = self._kept.popleft()
            self._kept_bytes -= size
            path.unlink(missing_ok=True)
            step = int(path.stem.rpartition("_")[2])
            self._health.removed = self._health.removed.plus(Removed(1, size, step))


def write_values(writer: EventWriter, exports: Exports | None, step: int, values: list[Value]) -> None:
    """Write values (except OnlyExported tensors) as one event; with `exports`, also export all tensors."""
    written = [value for value in values if not isinstance(value.data, OnlyExported)]
    if written:
        writer.write(Event(step, time.time(), written))
    if exports is not None:
        exports.export(step, values)


def export_npy(directory: Path, tag: str, step: int, array: NDArray[Any]) -> Path:
    """Write `<tag>_<step>.npy` into `directory`, whole or not at all; the array keeps its dtype and shape.

    The tag is percent-quoted, so that any text becomes one file name; a long name is shortened and made
    unique by the SHA-256 of the tag. Reading the file needs no pickle.

    Raises RunDirError when the file cannot be written, ValueError for an array of objects.
    """
    path = directory / f"{file_name(tag)}_{step}.npy"
    ensure_directory(directory)
    with replacing(path) as temporary, open(temporary, "xb") as file:
        np.save(file, array, allow_pickle=False)
    return path


def file_name(tag: str) -> str:
    """A tag as the beginning of a file name: at most MAX_NAME ASCII characters, different for each tag."""
    name = quote(tag, safe="", errors="surrogatepass")
    # quote() keeps dots, but a leading dot would hide the file.
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > MAX_NAME:
        digest = hashlib.sha256(tag.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[: MAX_NAME - len(_CUT) - len(digest)]}{_CUT}{digest}"
    return name

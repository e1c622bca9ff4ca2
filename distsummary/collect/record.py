"""SummaryRecord: values collected by name and written as one event for each `record()` call."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from distsummary.checks import check_choice, check_int, check_type
from distsummary.collect.background import Background
from distsummary.collect.checked import checked_value
from distsummary.collect.export import export_value
from distsummary.collect.opening import open_writer
from distsummary.collect.options import (
    check_export_options,
    check_file_affix,
    check_formats,
    check_max_file_size,
    check_summary_dir,
)
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError
from distsummary.events.records import DIALECTS, Event, Health, Value
from distsummary.run_dir import export_dir

logger = logging.getLogger(__name__)


class EventWriter(Protocol):
    """What events are written to: an AsyncWriter, or a test's double of one."""

    def write(self, event: Event) -> None:
        """Take an event; it is written in the background."""

    def flush(self) -> None:
        """Return when every event taken so far is in the files."""

    def close(self) -> None:
        """Flush, then never again; a second call does nothing."""

    def health(self) -> Health:
        """Counters so far."""


class SummaryRecord:
    """Records values into a directory of its own or that it shares with other records.

    Example:
        >>> with SummaryRecord("runs/mine") as record:
        ...     record.add_value("scalar", "loss", 0.5)
        ...     record.record(step=1)

    Args:
        log_dir: made if absent; the files lie in it directly.
        file_prefix, file_suffix: of the names of the event files.
        num_process, network: accepted for MindSpore's sake; without meaning here.
        max_file_size: budget of each file in bytes, None for none: a file takes nothing more once an event
            does not fit.
        raise_exception: raise a failure of the background as WriteError on the next call.
        export_options: {"tensor_format": "npy"} also writes tensors as `export_<seconds>/tensor/*.npy`.
        formats: of "mindspore" and "tensorboard".
        writer: where the events go instead of files in `log_dir`; it is closed with the record.

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        file_prefix: str = "events",
        file_suffix: str = "_MS",
        num_process: object = 32,
        network: object = None,
        max_file_size: int | None = None,
        raise_exception: bool = False,
        export_options: dict[str, str] | None = None,
        *,
        formats: Sequence[str] = DIALECTS,
        writer: EventWriter | None = None,
    ) -> None:
        prefix = check_file_affix("file_prefix", file_prefix)
        suffix = check_file_affix("file_suffix", file_suffix)
        limit = check_max_file_size(max_file_size, negative_is_unlimited=True)
        check_type("raise_exception", raise_exception, bool)
        exports = check_export_options(export_options)
        dialects = check_formats(formats)
        self._directory = check_summary_dir(log_dir).base
        self._pool: list[Value] = []
        self._mode = "train"
        self._is_closed = False
        self._own_health = Health()
        self._files = Background(self._own_health, raise_exception=raise_exception) if exports else None
        self._export_dir = export_dir(self._directory, int(time.time()))
        self._writer: EventWriter = (
            open_writer(
                self._directory,
                formats=dialects,
                max_file_size=limit,
                prefix=prefix,
                suffix=suffix,
                raise_exception=raise_exception,
            )
            if writer is None
            else writer
        )

    @property
    def log_dir(self) -> str:
        """The directory of the event files (MindSpore: the path of its one file, which exists later)."""
        return str(self._directory)

    def set_mode(self, mode: str) -> None:
        """Say which phase is recorded, "train" or "eval"; raises InvalidValueError for any other."""
        check_choice("mode", mode, ("train", "eval"))
        self._mode = mode

    def add_value(self, plugin: str, name: str | None, value: Any) -> None:
        """Collect a value for the next `record()`; of two of one plugin and name the last counts.

        Raises ClosedError after close, InvalidTypeError or InvalidValueError as `checked_value`.
        """
        if self._is_closed:
            raise ClosedError(f"the record of {self._directory} is closed; open a new one")
        new = checked_value(plugin, name, value)
        self._pool = [old for old in self._pool if (old.plugin, old.tag) != (new.plugin, new.tag)]
        self._pool.append(new)

    def record(
        self, step: int, train_network: object = None, plugin_filter: Callable[[str], bool] | None = None
    ) -> bool:
        """Write everything collected as the event of a step and start anew; False when closed.

        Args:
            step: any integer.
            train_network: accepted for MindSpore's sake.
            plugin_filter: called with each value's plugin; values it says False to are discarded.

        Raises InvalidTypeError for bad arguments, WriteError for an earlier failure if that was asked for.
        """
        check_int("step", step)
        if plugin_filter is not None and not callable(plugin_filter):
            raise InvalidTypeError(f"plugin_filter must be callable or None, got {plugin_filter!r}")
        if self._is_closed:
            logger.error("the record of %s is closed; step %d is not recorded", self._directory, step)
            return False
        pool, self._pool = self._pool, []
        values = [value for value in pool if plugin_filter is None or plugin_filter(value.plugin)]
        if values:
            self._writer.write(Event(step, time.time(), values))
        for value in values:
            if self._files is not None and value.plugin == "tensor":
                export = partial(export_value, self._export_dir, value, step)
                self._files.submit(f"export of {value.tag}", export, nbytes=value.data.nbytes)
        return True

    def flush(self) -> None:
        """Return when everything recorded is in the files; after close it only logs that it is closed."""
        if self._is_closed:
            logger.error("the record of %s is closed; there is nothing to flush", self._directory)
            return
        self._writer.flush()
        if self._files is not None:
            self._files.flush()

    def health(self) -> Health:
        """What was written, dropped and refused so far."""
        return self._writer.health().plus(self._own_health)

    def close(self) -> None:
        """Flush and close the files; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._files is not None:
                self._files.close()
        finally:
            self._writer.close()

    def __enter__(self) -> Self:
        if self._is_closed:
            raise InvalidValueError(f"the record of {self._directory} is closed; open a new one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""SummaryRecord: values collected by name and written as one event for each `record()` call."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.base.columns import quoted
from distsummary.base.failures import Failures
from distsummary.base.guard import guarded, guarded_log
from distsummary.base.health import Health, absences
from distsummary.base.interrupts import interrupts_after
from distsummary.collect.background import Background
from distsummary.collect.file_export import Exports, write_values
from distsummary.collect.older_order import check_network, is_older_record, without_num_process
from distsummary.collect.options import (
    TREE,
    check_export_options,
    check_file_affix,
    check_formats,
    check_max_file_size,
    check_summary_dir,
)
from distsummary.collect.plan import regular_steps
from distsummary.collect.record_options import Record, writer_spec
from distsummary.collect.remote.open_writer import open_writer
from distsummary.collect.values import operators
from distsummary.collect.values.checked_values import checked_value
from distsummary.collect.values.graph_source import ModelGraph
from distsummary.errors import ClosedError, DistSummaryError, InvalidTypeError, InvalidValueError, UsageError
from distsummary.events.segments import other_writer
from distsummary.events.spec import WAIT
from distsummary.events.writer import EventWriter
from distsummary.format.compatibility import AS_MINDSPORE, OURS
from distsummary.format.records import DIALECTS, WRITTEN, Value
from distsummary.format.scalar_rows import MAX_PACKERS, row_struct
from distsummary.rundir import topology as topologies
from distsummary.training.values import resolve
from distsummary.training.values import scalars as values_of

logger = guarded_log(__name__)

MIN_STEP, MAX_STEP = -(2**63), 2**63 - 1  # int64 in the files


class SummaryRecord:
    """Records values into a directory; several records may share a directory.

    Example:
        >>> with SummaryRecord("runs/mine") as record:
        ...     record.add_value("scalar", "loss", 0.5)
        ...     record.record(step=1)

    Its attributes are the parts that `record` hands a step to, and what is known of the step before it is
    written.

    Args:
        log_dir: the directory that directly holds the files; created if absent. Of several ranks each needs
            one of its own, such as `runs/mine0`; `distsummary adopt runs/mine` makes one run of them.
        file_prefix, file_suffix: for the names of the event files.
        network: a torch model, whose graph is recorded by the first `record()` after it was called, or when
            the record is closed. For a model of another framework nothing is drawn.
        num_process: accepted for compatibility with MindSpore; it has no effect. Arguments by
            position in the order of older versions, without num_process, are taken too, with a warning.
        max_file_size: limit of each file in bytes, or None. After the first event that does not fit, the file
            takes no more events.
        raise_exception: raise a failure in the background as WriteError on the next call.
        export_options: {"tensor_format": "npy"} also writes tensors as `export_<seconds>/tensor/*.npy`,
            including those that event files cannot hold (see `checked_values.checked_copy`).
        formats: some of "mindspore" and "tensorboard".
        rotate_bytes, rotate_s: begin new files before the current files would exceed `rotate_bytes`, or when
            they are `rotate_s` seconds old.
        delivery: what `flush` guarantees if it returns True: "written": all events survive the death of any
            process; "synced": they also survive a power cut (without `flush`, after about a second);
            "queued": as "written", but events that cannot be written at once are dropped and counted.
        overload: what happens when more is recorded than the disk takes; see `ds.Record`.
        mindspore_compat: compute histograms and scale images as MindSpore does, bit for bit; images must then
            have its shape, (N, C, H, W) with one or three channels.
        collectors: who writes the files under Ray; see SummaryCollector.
        writer: internal, an `EventWriter` that receives the events instead of files in `log_dir`; closed with
            the record.

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

    @without_num_process(4, is_older_record)
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
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
        delivery: str = WRITTEN,
        overload: str = WAIT,
        mindspore_compat: bool = False,
        collectors: str | None = None,
        writer: Any = None,
    ) -> None:
        check_network("network", network)
        prefix = check_file_affix("file_prefix", file_prefix)
        suffix = check_file_affix("file_suffix", file_suffix)
        check_type("mindspore_compat", mindspore_compat, bool)
        chosen = check_formats(formats)
        options = Record(
            export_npy=check_export_options(export_options),
            collectors=collectors,
            rotate_bytes=rotate_bytes,
            rotate_s=rotate_s,
            delivery=delivery,
            overload=overload,
            raise_exception=raise_exception,
        )
        self._compatibility = AS_MINDSPORE if mindspore_compat else OURS
        size = check_max_file_size(max_file_size, negative_is_unlimited=True)
        spec = writer_spec(options, size, compatibility=self._compatibility)
        self._directory = check_summary_dir(log_dir, "log_dir").base
        self._scalars: dict[str, float] = {}  # the scalars for the next record()
        self._known: set[str] = set()  # names of scalars that have been checked
        self._pool: dict[tuple[str, str], Value] = {}
        self._packers: dict[tuple[str, ...], tuple[tuple[str, ...], Callable[..., bytes]]] = {}
        self._mode = "train"
        self._is_closed = self._is_over = False
        self._own_health = Health()
        self._dropped = 0  # values that it had dropped itself at the last `flush`
        self._files = (
            Background(self._own_health, raise_exception=raise_exception) if options.export_npy else None
        )
        self._exports = (
            None if self._files is None else Exports(self._directory, int(time.time()), self._files)
        )
        self._event_file: Callable[[], Path] | None = None
        if writer is None:
            place = topologies.place()
            spec = replace(
                spec,
                directory=self._directory,
                rank=place.rank,
                formats=chosen,
                prefix=prefix,
                suffix=suffix,
            )
            writer, path = open_writer(spec, collectors, ranks=place.local_world_size)
            if other := other_writer(self._directory, str(place.rank), place.world_size):
                logger.warning(
                    "rank=%d %s also holds files of rank %s, and readers take both for one rank: give each "
                    "rank a directory of its own, such as %s%d, and join them by: distsummary adopt %s",
                    place.rank, log_dir, other, log_dir, place.rank, quoted(log_dir),
                )  # fmt: skip
            self._event_file = partial(path, chosen[0])
        self._writer: EventWriter = writer
        self._failures = failures = Failures(self._own_health, logger)
        self._own_guard = Failures(self._own_health, logger, raise_exception=raise_exception).guard
        self._graph = ModelGraph(regular_steps(1), failures, TREE)
        self._drawn: set[int] = set()  # the models whose graph is, or was, observed
        self._last_step = 0
        self._draw(network)
        self._tapped = operators.TapListener(self._copy, lambda: failures)
        operators.listen(self._tapped)

    def _copy(self, plugin: str, name: str | None, value: object) -> Value:
        exports = self._exports is not None
        return checked_value(plugin, name, value, exports=exports, compatibility=self._compatibility)

    @guarded(DistSummaryError)
    def _snapshot(self, plugin: str, name: str | None, value: object) -> Value:
        return self._copy(plugin, name, value)

    @property
    def log_dir(self) -> str:
        """The path of the event file (the name is MindSpore's); the file exists once an event is written.

        If both formats are written, it is the file in the MindSpore format; after a rotation, the newest
        file. Until the file exists, the path may still change, if another writer takes that name first. If
        the argument `writer` was given, or until a collector of Ray is up, this is the directory instead.
        """
        return str(self._directory if self._event_file is None else self._event_file())

    @guarded(UsageError)
    def set_mode(self, mode: str) -> None:
        """Say which phase is recorded, "train" or "eval"; raises InvalidValueError for any other.

        What operators (`ds.summary`, ScalarSummary ...) tap during "eval" is not recorded.
        """
        check_choice("mode", mode, ("train", "eval"))
        self._mode = mode
        if mode == "eval":
            self._tapped.pause()
        else:
            self._tapped.resume()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars as the event of a step, at once and independently of values collected by `add_value`.

        A call takes half a microsecond; `add_value` and `record` take several. Use `scalars` for values that
        are recorded at every step.

        Args:
            step: an integer of at most 64 bits.
            values: name -> number. A tensor of one element is allowed, but waits for its device.

        Raises ClosedError after close, InvalidTypeError or InvalidValueError for bad arguments.
        """
        # The usual case comes first: names that are known, with numbers that `pack` accepts.
        try:
            tags, pack = self._packers[(*values,)]
            row = pack(time.time(), step, *values.values())
        except Exception:
            # New names come here, and bad values, for which the checks raise.
            packed = self._packed(step, values)
            if packed is None:
                self._own_health.drop("scalar", len(values))
                return
            tags, row = packed
        if self._put(tags, row) is None:
            self._own_health.drop("scalar", len(tags))

    @guarded(UsageError)
    def _packed(self, step: int, values: Mapping[str, float]) -> tuple[tuple[str, ...], bytes]:
        """The names and the packed numbers of a step; raises the errors of `scalars`."""
        self._check_open()
        step = check_int("step", step, low=MIN_STEP, high=MAX_STEP)
        numbers = {tag: resolve(value) for tag, value in values_of(values).items()}
        if not numbers:
            raise InvalidValueError("values must hold at least one scalar, got none; omit the call")
        # Names that differ at each call must not fill the memory.
        if len(self._packers) >= MAX_PACKERS:
            self._packers.clear()
        tags = tuple(numbers)
        tags, pack = self._packers.setdefault(tags, (tags, row_struct(len(tags)).pack))
        return tags, pack(time.time(), step, *numbers.values())

    @guarded(UsageError)
    def _put(self, tags: tuple[str, ...], row: bytes) -> bool:
        self._writer.write_row(tags, row)
        return True

    def add_value(self, plugin: str, name: str | None, value: Any) -> None:
        """Collect a value for the next `record()`; it replaces a value of the same plugin and name.

        Raises ClosedError after close, InvalidTypeError or InvalidValueError like `checked_value`.
        """
        self._check_open()
        # In the usual case the name was checked at its first use.
        if type(value) is float and name in self._known and plugin == "scalar" and not self._pool:
            self._scalars[name] = value
            return
        new = self._snapshot(plugin, name, value)
        if new is None:
            self._own_health.drop(str(plugin).lower())
            return
        # The new value replaces an earlier one of its name, in whichever of the two places that is.
        self._pool.pop((new.plugin, new.tag), None)
        if new.plugin == "scalar" and isinstance(new.data, float):
            self._scalars[new.tag] = new.data
            self._known.add(new.tag)
            return
        if new.plugin == "scalar":
            self._scalars.pop(new.tag, None)
        self._pool[new.plugin, new.tag] = new

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the record of {self._directory} is closed; open a new one")

    def record(
        self, step: int, train_network: object = None, plugin_filter: Callable[[str], bool] | None = None
    ) -> bool:
        """Write all collected values as the event of a step and forget them; returns False after close.

        These are the values of `add_value` and, except in the mode "eval", what operators (`ds.summary`,
        ScalarSummary ...) have tapped since the last call. Tapped numbers that are still on a device follow
        as a further event of the step, at a later call.

        Args:
            step: an integer of at most 64 bits.
            train_network: a torch model, whose graph is recorded once: by the first `record()` after it was
                called from now on, or when the record is closed.
            plugin_filter: called with the plugin of each value; if it returns False, the value is discarded.

        Raises InvalidTypeError for bad arguments, WriteError for an earlier failure (`raise_exception`).
        """
        step = check_int("step", step, low=MIN_STEP, high=MAX_STEP)
        if train_network is not None:
            check_network("train_network", train_network)
        if plugin_filter is not None and not callable(plugin_filter):
            raise InvalidTypeError(f"plugin_filter must be callable or None, got {plugin_filter!r}")
        if self._is_closed:
            logger.error("the record of %s is closed; step %d is not recorded", self._directory, step)
            return False
        # A model's graph is known after its next call, so a later `record` writes it.
        if graph := self._failures.call("graph", self._graph.take):
            self._write(step, graph)
        self._failures.call("graph", self._draw, train_network)
        self._failures.call("graph", self._graph.check_compilations)
        self._last_step = step
        numbers, pool = self._scalars, self._pool
        self._scalars, self._pool = {}, {}
        if self._mode == "train":
            tapped = self._failures.call("operators", self._tapped.take, step) or operators.Taken({}, [], [])
            self._write_late(tapped.earlier)
            # what was given goes before what was tapped
            given = {*pool, *(("scalar", name) for name in numbers)}
            numbers |= {name: n for name, n in tapped.numbers.items() if ("scalar", name) not in given}
            received = {(value.plugin, value.tag): value for value in tapped.values}
            pool |= {key: value for key, value in received.items() if key not in given}
        # Scalars alone take the quick way.
        if numbers and not pool and plugin_filter is None:
            self.scalars(step, numbers)
            return True
        values = [*(Value("scalar", tag, number) for tag, number in numbers.items()), *pool.values()]
        return self._write(step, [v for v in values if plugin_filter is None or plugin_filter(v.plugin)])

    def _write(self, step: int, values: list[Value]) -> bool:
        """Write values as the event of a step; returns False if they could not be, and counts them."""
        is_written = self._written(step, values) is not None
        if not is_written:
            self._failures.drop(Counter(value.plugin for value in values))
        return is_written

    @guarded(UsageError)
    def _written(self, step: int, values: list[Value]) -> bool:
        write_values(self._writer, self._exports, step, values)
        return True

    def _draw(self, network: object) -> None:
        """Begin to observe a model that was not named before; its graph takes the place of an earlier one."""
        if network is not None and id(network) not in self._drawn:
            self._drawn.add(id(network))
            self._graph.watch(network)

    def _write_late(self, earlier: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Write tapped numbers of earlier steps, which have arrived from a device."""
        for step, numbers in earlier:
            if numbers:
                self.scalars(step, numbers)

    def flush(self) -> bool:
        """Wait until everything recorded since the last call is in the files, as `delivery` promises.

        Returns False if something is not: the disk takes nothing now (a full disk) or needs more than 30 s
        (the rest is then not safe: it is kept in memory and written as soon as possible), or values were
        dropped. The reason is logged and counted in `health`; with `raise_exception` it is raised as
        WriteError instead. After close, it logs an error and returns False.
        """
        if self._is_closed:
            logger.error("the record of %s is closed; there is nothing to flush", self._directory)
            return False
        return self._flush() or False

    @guarded(UsageError)
    def _flush(self) -> bool:
        self._write_late(self._tapped.take_late(waits=True))
        try:
            is_written = self._writer.flush()
        finally:
            if self._files is not None:
                self._files.flush()
        before, self._dropped = self._dropped, sum(self._own_health.dropped.values())
        return is_written and self._dropped == before

    def health(self) -> Health:
        """What was written, dropped and refused so far."""
        written = self._own_guard.call("health", self._writer.health) or Health()
        return written.plus(self._own_health).plus(absences())

    @guarded(UsageError, again=True)
    def close(self) -> None:
        """Flush and close the files; a second call does nothing."""
        if self._is_over:
            return
        if not self._is_closed:
            operators.stop_listening(self._tapped)
            late = self._failures.call("operators", self._tapped.take_late, waits=True)
            self._write_late(late or ())
            if graph := self._graph.rest():
                self._write(self._last_step, graph)
            self._is_closed = True
            # Without packers, `scalars` checks whether the record is closed.
            self._packers.clear()
        # Ctrl-C ends the wait for the disk; KeyboardInterrupt is raised once the files are closed.
        with interrupts_after(lambda: self._writer.end_within(0.0, "Ctrl-C ended the wait")):
            try:
                if self._files is not None:
                    self._files.close()
            finally:
                self._writer.close()
        self._is_over = True

    def __enter__(self) -> Self:
        if self._is_closed:
            raise InvalidValueError(f"the record of {self._directory} is closed; open a new one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The output of the ranks where the driver prints it: each line begins with its rank, as in `[rank 2]`."""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_PRINTER = "ray_print_logs"  # Ray's name of what prints the lines of other processes
_RANK = re.compile(r"rank \d+")  # the repr of a rank's actor; Ray's own prefix is then (rank 2 pid=123)
_LAST = "distsummary: the last line of this rank"  # is not printed
_OURS = "distsummary: Rank"  # begins a line of the aggregator on slow, stuck or sick ranks
_COLOR = re.compile(r"\x1b\[[0-9;]*m(?= \[repeated |$)")  # that Ray adds to the end of a repeated line
DRAIN_S = 5.0  # how long the driver waits for lines that are under way
Batch = Mapping[str, Any]  # lines of one process, as Ray's log monitor sends them


class RankOutput:
    """Prints the lines of ranks; `is_on` unless Ray prints them itself.

    Ray has no public way to change its prefixes. If this version of Ray has not the parts used here, if its
    prefixes are turned off, or if it sends no output to the driver, nothing is changed.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended = 0  # streams whose last line has come
        self._printer: Any = None  # Ray's, which prints all other lines
        try:
            from ray._private import worker
            from ray._private.ray_logging import stderr_deduplicator, stdout_deduplicator
            from ray.experimental.tqdm_ray import RAY_TQDM_MAGIC

            self._magic: str = RAY_TQDM_MAGIC
            self._repeated = (stdout_deduplicator, stderr_deduplicator)
            self._print_others = worker.print_worker_logs
            self._dispatcher = worker.global_worker_stdstream_dispatcher
            self._lock = self._dispatcher._lock
            printer = dict(self._dispatcher.handlers).get(_PRINTER)
            if not getattr(printer, "keywords", {}).get("ignore_prefix"):
                self._printer = printer
        except (ImportError, AttributeError):
            pass

    @property
    def is_on(self) -> bool:
        """Whether lines of ranks are printed here."""
        return self._printer is not None

    def __enter__(self) -> "RankOutput":
        self._replace(self._printer, self._print)
        return self

    def __exit__(self, *unused: object) -> None:
        self._replace(self._print, self._printer)
        if self.is_on:
            for is_error, repeated in enumerate(self._repeated):  # lines that Ray holds back for 5 s
                self._print_batches(repeated.flush(), is_error=bool(is_error))

    def drain(self, ranks: int) -> None:
        """Wait at most DRAIN_S until the last lines of as many ranks have come; they must `say_last`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= 2 * ranks, timeout=DRAIN_S if self.is_on else 0)

    def _replace(self, old: Any, new: Any) -> None:
        if self.is_on:
            with self._lock:  # a line that arrives meanwhile must find one of the two
                self._dispatcher.handlers = [
                    (name, new if handler == old else handler) for name, handler in self._dispatcher.handlers
                ]

    def _print(self, batch: Batch) -> None:
        lines = [line for line in batch["lines"] if line != _LAST]
        if any(self._magic in line for line in lines):
            self._printer(batch)
            return
        is_error = bool(batch["is_err"])
        stream = sys.stderr if is_error else sys.stdout
        if not _RANK.fullmatch(batch.get("actor_name") or ""):
            for line in lines:
                if line.startswith(_OURS):  # Ray would take those of two runs for one that is repeated
                    print(line, file=stream, flush=True)
            lines = [line for line in lines if not line.startswith(_OURS)]
        self._print_batches(
            self._repeated[is_error].deduplicate({**batch, "lines": lines}), is_error=is_error
        )
        if ended := batch["lines"].count(_LAST):
            with self._changed:
                self._ended += ended
                self._changed.notify_all()

    def _print_batches(self, batches: Iterable[Batch], *, is_error: bool) -> None:
        stream = sys.stderr if is_error else sys.stdout
        for batch in batches:
            name = batch.get("actor_name") or ""
            if not _RANK.fullmatch(name):
                if batch["lines"]:
                    self._print_others(batch, stream)
                continue
            for line in batch["lines"]:
                print(f"[{name}] {line if stream.isatty() else _COLOR.sub('', line)}", file=stream)
        stream.flush()


def say_last() -> None:
    """Write the last line of a rank to stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        print(_LAST, file=stream, flush=True)


@contextmanager
def plain_prefixes() -> Iterator[None]:
    """Let Ray print its own prefixes without colors in the block, if the output is no terminal."""
    name = "RAY_COLOR_PREFIX"
    if name in os.environ or (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        os.environ.pop(name, None)

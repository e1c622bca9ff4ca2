"""Opens the writer of a training thread: through the rank's collector actor on Ray, or in this process."""

from collections.abc import Callable

from distsummary import topology as topologies
from distsummary.coordination import Listener
from distsummary.errors import InvalidValueError
from distsummary.format.records import Batch
from distsummary.guard import check
from distsummary.writing.async_writer import AsyncWriter
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter, Writer

COLLECTORS = ("auto", "rank", "process")


@check()
def refuse_unconnected(collectors: str) -> None:
    """Raise InvalidValueError for a collector on Ray in a process that is not connected to it."""
    if collectors == "rank" and not topologies.in_ray():
        raise InvalidValueError(
            'collectors must be "auto" or "process" here, got "rank": this process is not connected to Ray'
        )


def open_writer(
    spec: WriterSpec,
    collectors: str,
    listener: Listener | None = None,
    on_written: Callable[[Batch], None] | None = None,
) -> AsyncWriter:
    """Opens the writer that a rank's training thread uses.

    collectors: one of COLLECTORS. "rank": a Ray actor of this rank, on the same node, writes the files;
        "process": this process does; "auto": this process does until that takes much of a processor, then,
        if this process is connected to Ray, the actor.
    listener: hears what has been written; not with "process", nor without Ray.
    on_written: takes each batch that was written, or passed to the actor; must not raise.

    Raises RunDirError if the directory cannot be made or written, InvalidValueError for "rank" without Ray.
    """
    refuse_unconnected(collectors)
    is_in_ray = topologies.in_ray()
    if collectors == "process" or not is_in_ray:
        writer: Writer = RankWriter(spec)
    else:
        from distsummary.collect.actor_writer import RemoteWriter  # import Ray only where it is used

        writer = RemoteWriter(spec, listener, is_lazy=collectors == "auto")
    return AsyncWriter(writer if on_written is None else PassingOn(writer, on_written), spec)


class PassingOn:
    """A Writer that passes on, in this process, what the inner one has accepted."""

    def __init__(self, inner: Writer, on_written: Callable[[Batch], None]) -> None:
        self._inner, self._on_written = inner, on_written
        self.start, self.flush, self.close = inner.start, inner.flush, inner.close
        self.health, self.hurry, self.pending = inner.health, inner.hurry, inner.pending
        self.progress = inner.progress

    def write(self, batch: Batch) -> None:
        """As the inner one."""
        self._inner.write(batch)
        self._on_written(batch)

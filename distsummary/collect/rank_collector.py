"""The collector of one rank: batches in, files and acknowledgements out; and the way from a rank to it."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from distsummary import topology as topologies
from distsummary.checks import check_choice
from distsummary.coordination import Registration
from distsummary.errors import StaleAttemptError
from distsummary.events.async_writer import AsyncWriter
from distsummary.events.records import Batch, Health
from distsummary.events.segment import DIALECTS
from distsummary.events.writer import RankWriter, Writer
from distsummary.run_dir import RunDir
from distsummary.topology import Topology

COLLECTORS = ("auto", "rank", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSpec:
    """Everything that a RankWriter is opened with, small enough to cross a process boundary."""

    directory: str
    run_id: str
    attempt: int = 0
    rank: int = 0
    dialects: tuple[str, ...] = DIALECTS
    prefix: str = "events"
    suffix: str = "_MS"
    max_file_size: int | None = None
    mindspore_compat: bool = False

    def open(self) -> RankWriter:
        """The writer; raises RunDirError when its directory cannot be written."""
        return RankWriter(
            self.directory,
            run_id=self.run_id,
            attempt=self.attempt,
            rank=self.rank,
            dialects=self.dialects,
            prefix=self.prefix,
            suffix=self.suffix,
            max_file_size=self.max_file_size,
            mindspore_compat=self.mindspore_compat,
        )


class RankCollector:
    """Writes one rank's batches; `session` changes with every start, so that no batch skips a restart.

    An acknowledged batch is in the files: it survives the death of any process.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._writer = spec.open()
        self.session = uuid.uuid4().hex

    def hello(self) -> tuple[str, Health]:
        """The session, and the counters with the last seq in the files."""
        return self.session, self._writer.health()

    def write(self, session: str, batch: Batch) -> Health:
        """Write and acknowledge; raises StaleAttemptError for a batch sent to an earlier session."""
        if session != self.session:
            raise StaleAttemptError(
                f"batch from seq {batch.first_seq} was sent to an earlier session; say hello again"
            )
        self._writer.write(batch)
        return self._writer.health()

    def close(self) -> Health:
        """Make the files durable and close them."""
        self._writer.close()
        return self._writer.health()


def open_writer(
    directory: str | Path,
    *,
    formats: tuple[str, ...] = DIALECTS,
    max_file_size: int | None = None,
    prefix: str = "events",
    suffix: str = "_MS",
    raise_exception: bool = False,
) -> AsyncWriter:
    """A writer of a directory that is no run of ours: a run id of its own, files written by this process."""
    spec = WriterSpec(
        directory=str(directory),
        run_id=uuid.uuid4().hex[:16],
        dialects=formats,
        prefix=prefix,
        suffix=suffix,
        max_file_size=max_file_size,
    )
    return AsyncWriter(spec.open(), run_id=spec.run_id, raise_exception=raise_exception)


def open_rank_writer(
    run_dir: RunDir,
    topology: Topology,
    registration: Registration,
    *,
    formats: tuple[str, ...] = DIALECTS,
    collectors: str = "auto",
    max_file_size: int | None = None,
    mindspore_compat: bool = False,
    raise_exception: bool = False,
) -> AsyncWriter:
    """The way from a rank's training thread to its files.

    Args:
        collectors: "rank": a Ray actor of this rank on its node writes; "process": this process does; "auto":
            the actor when this process is connected to Ray.

    Raises:
        RunDirError: the rank's directory cannot be made or written.
    """
    check_choice("collectors", collectors, COLLECTORS)
    spec = WriterSpec(
        directory=str(run_dir.writer_dir(topology.role, topology.rank, topology.world_size)),
        run_id=registration.run_id,
        attempt=registration.attempt,
        rank=topology.rank,
        dialects=formats,
        max_file_size=max_file_size,
        mindspore_compat=mindspore_compat,
    )
    return AsyncWriter(
        _writer(spec, collectors),
        run_id=spec.run_id,
        attempt=spec.attempt,
        rank=spec.rank,
        raise_exception=raise_exception,
    )


def _writer(spec: WriterSpec, collectors: str) -> Writer:
    if collectors == "process" or (collectors == "auto" and not topologies.in_ray()):
        return spec.open()
    from distsummary.collect.actor import RemoteWriter  # Ray is imported only where it is used

    return RemoteWriter(spec)

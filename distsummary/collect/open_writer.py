"""The way from a training thread to its files: through the rank's collector actor, or from this process."""

import uuid
from pathlib import Path

from distsummary import topology as topologies
from distsummary.checks import check_choice
from distsummary.collect.rank_collector import WriterSpec
from distsummary.coordination import Registration
from distsummary.errors import InvalidValueError
from distsummary.format.records import DIALECTS, WRITTEN
from distsummary.run_dir import RunDir
from distsummary.topology import Topology
from distsummary.writing.async_writer import AsyncWriter
from distsummary.writing.event_files import Limits
from distsummary.writing.writer import NO_LIMITS, RankWriter, Writer

COLLECTORS = ("auto", "rank", "process")


def open_writer(
    directory: str | Path,
    *,
    formats: tuple[str, ...] = DIALECTS,
    limits: Limits = NO_LIMITS,
    delivery: str = WRITTEN,
    prefix: str = "events",
    suffix: str = "_MS",
    raise_exception: bool = False,
) -> tuple[AsyncWriter, RankWriter]:
    """A writer of a directory that is no run of ours, and the one behind it that knows its files.

    It has a run id of its own, and this process writes the files.
    """
    spec = WriterSpec(
        directory=str(directory),
        run_id=uuid.uuid4().hex[:16],
        dialects=formats,
        prefix=prefix,
        suffix=suffix,
        limits=limits,
        delivery=delivery,
    )
    files = spec.open()
    writer = AsyncWriter(files, run_id=spec.run_id, delivery=delivery, raise_exception=raise_exception)
    return writer, files


def open_rank_writer(
    run_dir: RunDir,
    topology: Topology,
    registration: Registration,
    *,
    formats: tuple[str, ...] = DIALECTS,
    collectors: str = "auto",
    limits: Limits = NO_LIMITS,
    delivery: str = WRITTEN,
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
        limits=limits,
        delivery=delivery,
        mindspore_compat=mindspore_compat,
    )
    return AsyncWriter(
        _writer(spec, collectors),
        run_id=spec.run_id,
        attempt=spec.attempt,
        rank=spec.rank,
        delivery=delivery,
        raise_exception=raise_exception,
    )


def _writer(spec: WriterSpec, collectors: str) -> Writer:
    if collectors == "rank" and not topologies.in_ray():
        raise InvalidValueError(
            'collectors must be "auto" or "process" here, got "rank": this process is not connected to Ray'
        )
    if collectors == "process" or (collectors == "auto" and not topologies.in_ray()):
        return spec.open()
    from distsummary.collect.actor import RemoteWriter  # Ray is imported only where it is used

    return RemoteWriter(spec)

"""The recommended door: a Run whose collector, rank, attempt and files are found for you."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from distsummary import topology as topologies
from distsummary.collect.collector import SummaryCollector
from distsummary.coordination import Coordinator
from distsummary.frameworks.base import framework_of
from distsummary.run_dir import LocalCoordinator, RunDir
from distsummary.training.callbacks import Callback
from distsummary.training.run import Run


def init(
    run_dir: str | PathLike[str],
    *,
    watch: Any = None,
    optimizer: Any = None,
    loss_fn: Any = None,
    callbacks: Sequence[Callback] = (),
    role: str = "train",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mapping[str, tuple[int, int]] | None = None,
    **collector_options: Any,
) -> Run:
    """Join or start the run in `run_dir` and return the Run that records this rank.

    Example:
        >>> import distsummary as ds
        >>> run = ds.init("runs/a", watch=model)
        >>> for x, y in run.steps(loader):
        ...     loss = train_step(x, y)
        ...     run.log(loss=loss)
        >>> run.close()

    Args:
        run_dir: the directory of the whole run, the same for all ranks.
        watch: the model, whose parameters get histograms; also tells the mesh of a distributed one.
        optimizer: tells the learning rate and stands in the lineage. loss_fn: stands in the lineage.
        callbacks: further callbacks, called before the collector.
        role: "train" or "eval"; an eval job on the run dir of a training supersedes nothing.
        rank, world_size: by default found from Ray Train, torch.distributed or the environment.
        mesh: axis name -> (coordinate of this rank, size); by default taken from `watch`.
        collector_options: arguments of SummaryCollector, such as collect_freq=10 or formats=("tensorboard",).

    Raises:
        RunDirError: the directory cannot be written. WorldMismatchError: ranks disagree on the world size.
        InvalidTypeError, InvalidValueError: an argument is wrong.
    """
    directory = RunDir(run_dir).create()
    if mesh is None and watch is not None:
        mesh = framework_of(watch).mesh(watch)
    topology = topologies.detect(role=role, rank=rank, world_size=world_size, mesh=mesh)
    collector = SummaryCollector(
        str(directory.base),
        topology=topology,
        coordinator=coordinator(directory),
        **collector_options,
    )
    return Run(
        callbacks=[*callbacks, collector],
        network=watch,
        optimizer=optimizer,
        loss_fn=loss_fn,
        topology=topology,
    )


def coordinator(run_dir: RunDir) -> Coordinator:
    """The run's aggregator when this process is connected to Ray, else the run dir itself."""
    if not topologies.in_ray():
        return LocalCoordinator(run_dir)
    from distsummary.aggregate.actor import AggregatorClient  # Ray is imported only where it is used

    return AggregatorClient(run_dir)

"""RunSettings: what a collector records and how, checked and typed, whichever door took the arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from distsummary.base.checks import check_int, check_type
from distsummary.checkpoints.landscape_spec import check_collect_landscape
from distsummary.collect.config import Config, FlatValue
from distsummary.collect.options import (
    Collected,
    check_checksums,
    check_formats,
    check_graph,
    refuse_unfit,
    refuse_unmeasured,
    selection,
)
from distsummary.collect.record_options import Record, writer_spec
from distsummary.collect.remote.open_writer import refuse_unconnected
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.errors import InvalidValueError
from distsummary.events.spec import WriterSpec
from distsummary.format.compatibility import Compatibility
from distsummary.format.records import DIALECTS, MINDSPORE
from distsummary.rundir.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a collector records and how.

    Attributes:
        collected: the kinds of values that it adds to those of the loop.
        record: the other options of recording.
        collect_freq: steps between the values.
        norms, system_metrics: whether they are recorded. checksums: see `ds.init`.
        config: the settings of the training. custom: more entries of the lineage, which win over the config.
        writer: the settings that all writers share; directory, run id, attempt and rank come later.
        diagnose: which alerts are reported.
        labels: the run's name, group, tags and notes, as far as given. define: see `Run.define`.
    """

    collected: Collected
    record: Record = field(default_factory=Record)
    collect_freq: int = 10
    norms: bool = False
    checksums: bool | int = False
    system_metrics: bool = False
    config: Config = field(default_factory=Config)
    custom: Mapping[str, FlatValue] = field(default_factory=dict)
    writer: WriterSpec = field(default_factory=lambda: WriterSpec(directory=""))
    diagnose: Diagnose = field(default_factory=Diagnose)
    labels: Mapping[str, object] = field(default_factory=dict)
    define: Mapping[str, object] = field(default_factory=dict)

    @property
    def compatibility(self) -> Compatibility:
        """In what the record follows MindSpore."""
        return self.writer.compatibility

    def formats_of_ranks(self, world_size: int) -> tuple[str, ...]:
        """The files that each of so many ranks writes: of a single rank, those of the run itself."""
        own, of_ranks = self.record.formats, self.record.rank_formats
        if world_size == 1:
            return check_formats(own or DIALECTS)
        return check_formats(of_ranks or own or (MINDSPORE,))

    def refuse_unfit(self, network: object, topology: Topology) -> None:
        """Raise InvalidValueError or InvalidTypeError for an option that cannot work with this model."""
        refuse_unconnected(self.record.collectors)
        if self.norms:
            refuse_unmeasured(network)
        if network is None and not isinstance(self.checksums, bool):
            raise InvalidValueError(
                f"checksums={self.checksums} sums up the parameters of the watched model, got watch=None; "
                "pass the model: ds.init(..., watch=model), or leave checksums out"
            )
        refuse_unfit(self.collected, network, topology)


def settings_of(
    record: Record | None,
    diagnose: Diagnose | None,
    *,
    histograms: str | Literal[False],
    gradients: str | Literal[False],
    tensors: str | Literal[False],
    graph: str | Literal[False],
    norms: bool,
    checksums: bool | int,
    collect_freq: int,
    system_metrics: bool,
    config: Config,
    labels: Mapping[str, object],
    define: Mapping[str, object],
) -> RunSettings:
    """The settings of a run that `ds.init` opens, which has the arguments.

    Raises InvalidTypeError or InvalidValueError for bad ones.
    """
    check_type("record", record, Record, optional=True)
    check_type("diagnose", diagnose, Diagnose, optional=True)
    check_type("norms", norms, bool)
    check_type("system_metrics", system_metrics, bool)
    collect_freq = check_int("collect_freq", collect_freq, low=1)
    record = record or Record()
    most, landscape = record.max_histograms, record.collect_landscape
    return RunSettings(
        collected=Collected(
            metric=record.metric,
            graph=check_graph(graph),
            train_lineage=record.train_lineage,
            eval_lineage=record.eval_lineage,
            input_data=record.images,
            dataset_graph=record.dataset_graph,
            histogram=selection("histograms", histograms, most),
            gradient=selection("gradients", gradients, most),
            tensor=selection("tensors", tensors),
            landscape=None if landscape is None else check_collect_landscape(landscape),
        ),
        record=record,
        collect_freq=collect_freq,
        norms=norms,
        checksums=check_checksums(checksums),
        system_metrics=system_metrics,
        config=config,
        custom=config.flat,
        writer=writer_spec(record),
        diagnose=diagnose or Diagnose(),
        labels=labels,
        define=define,
    )

"""RunSettings: what a collector records and how, checked and typed, whichever door took the arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from distsummary.base.checks import check_int, check_type
from distsummary.base.guard import check
from distsummary.checkpoints.landscape_spec import check_collect_landscape
from distsummary.collect.compare.rank_checks import check_checksums
from distsummary.collect.config import Config, FlatValue
from distsummary.collect.options import Collected, check_formats, check_limits, refuse_unfit, selection
from distsummary.collect.plan import DEALS
from distsummary.collect.record_options import Record
from distsummary.collect.remote.open_writer import refuse_unconnected
from distsummary.collect.values.graph_source import check_graph
from distsummary.collect.values.norm_source import refuse_unmeasured
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
        collect_freq: steps between them. tensor_freq: the same for whole parameters; None: spread.
        deal, collectors, identity, private: see `Record`.
        norms: their precision; None: they are not recorded. checksums: see `ds.init`.
        system_metrics: whether they are recorded.
        config: the settings of the training. custom: more entries of the lineage, which win over the config.
        writer: the settings that all writers share; directory, run id, attempt and rank come later.
        formats, rank_formats: see `Record`; None: the default.
        exports_npy: whether tensors are also written as .npy files.
        diagnose: which alerts are reported.
    """

    collected: Collected
    collect_freq: int = 10
    tensor_freq: int | None = None
    deal: str = DEALS[0]
    norms: str | None = None
    checksums: bool | int = False
    system_metrics: bool = False
    config: Config = field(default_factory=Config)
    custom: Mapping[str, FlatValue] = field(default_factory=dict)
    writer: WriterSpec = field(default_factory=lambda: WriterSpec(directory=""))
    formats: tuple[str, ...] | None = None
    rank_formats: tuple[str, ...] | None = None
    collectors: str | None = None
    exports_npy: bool = False
    identity: bool = True
    private: bool = False
    diagnose: Diagnose = field(default_factory=Diagnose)

    @property
    def compatibility(self) -> Compatibility:
        """In what the record follows MindSpore."""
        return self.writer.compatibility

    def formats_of_ranks(self, world_size: int) -> tuple[str, ...]:
        """The files that each of so many ranks writes: of a single rank, those of the run itself."""
        if world_size == 1:
            return self.formats or DIALECTS
        return self.rank_formats or self.formats or (MINDSPORE,)

    @check()
    def refuse_unfit(self, network: object, topology: Topology) -> None:
        """Raise InvalidValueError or InvalidTypeError for an option that cannot work with this model."""
        refuse_unconnected(self.collectors)
        if self.norms is not None:
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
) -> RunSettings:
    """The settings of a run that `ds.init` opens, which has the arguments.

    Raises InvalidTypeError or InvalidValueError for bad ones.
    """
    check_type("record", record, Record, optional=True)
    check_type("diagnose", diagnose, Diagnose, optional=True)
    check_type("norms", norms, bool)
    check_type("system_metrics", system_metrics, bool)
    check_int("collect_freq", collect_freq, low=1)
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
        collect_freq=collect_freq,
        tensor_freq=record.tensor_freq,
        deal=record.deal,
        norms=record.norm_precision if norms else None,
        checksums=check_checksums(checksums),
        system_metrics=system_metrics,
        config=config,
        custom=config.flat,
        writer=WriterSpec(
            directory="",
            limits=check_limits(None, record.rotate_bytes, record.rotate_s),
            delivery=record.delivery,
            overload=record.overload,
            raise_exception=record.raise_exception,
        ),
        formats=None if record.formats is None else check_formats(record.formats),
        rank_formats=None if record.rank_formats is None else check_formats(record.rank_formats),
        collectors=record.collectors,
        exports_npy=record.export_npy,
        identity=record.identity,
        private=record.private,
        diagnose=diagnose or Diagnose(),
    )

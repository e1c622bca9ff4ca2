"""Record: what `ds.init` records beyond what the loop gives and the model shows, and how it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distsummary.base.checks import check_choice, check_type, set_ints
from distsummary.checkpoints.landscape_spec import check_collect_landscape
from distsummary.collect.options import check_formats, check_limits
from distsummary.collect.plan import DEALS
from distsummary.collect.remote.open_writer import check_collectors
from distsummary.events.spec import DROP, WAIT, WriterSpec
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import DELIVERIES, WRITTEN
from distsummary.rundir.run_dir import SHIP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Options of recording: `ds.init("runs/a", record=ds.Record(images=True))`.

    What is recorded:

    Args:
        images: whether the first pictures of the training batches are recorded, as `input_data/auto`, at
            step 1 and every `collect_freq` steps.
        metric: whether the numbers are recorded that no one logged: `learning_rate/auto`, the times of the
            steps `zz_perf/...`.
        train_lineage, eval_lineage, dataset_graph: whether these parts of the lineage are recorded: network,
            loss function, optimizer and data set; metrics of evaluations; loader, sampler and data set.
        max_histograms: at most so many of the parameters that `histograms` selects get one, and of those that
            `gradients` selects, >= 1; None: all.
        tensor_freq: steps between the records of whole parameters, >= 1; None: about 20 records, spread over
            the training.
        collect_landscape: which checkpoints are kept for the landscape of the training, see
            docs/landscape.md; None: none. If the disk is still busy with older ones, a new checkpoint blocks
            the training for at most 5 s and is then dropped and counted.
        deal: who records a parameter that is equal on all ranks: "parameters": one rank, always the same;
            "steps": the ranks take turns; "all": every rank.
        private: only the owner may read the run: its directory gets the rights 0700, and what is made in it
            0600. It holds for the whole run, from the first attempt that asks for it.

        formats: the files of a run of one rank, some of "mindspore" and "tensorboard"; None: both.
        rank_formats: the files that each of several ranks writes; None: as `formats`, or, if that is None
            too, only "mindspore". The merged run has both.
        export_npy: whether tensors are also written as .npy files.
        collectors: who writes the files under Ray: "rank": an actor of each rank, on its node; "node": one
            actor for all ranks of a node; "process": the rank's own process. None: what the environment
            variable DISTSUMMARY_COLLECTORS names, else "rank", and "node" from 8 ranks a node on. Without
            Ray, a rank's own process writes them. See docs/reliability.md.
        rotate_bytes, rotate_s: begin new event files before the current files would exceed `rotate_bytes`
            (>= 4096), or when they are `rotate_s` seconds old; None: never.
        keep_bytes: a rank's event files, and those of the merged run, keep so many bytes of events with bulk
            values (histograms, tensors, images, texts, audio, PR curves), and so do exported .npy files; the
            oldest are removed, and `health()` and `status` say so. >= 16 MiB; None: all. Scalars, norms,
            lineage, the graph and checkpoints stay. See docs/recording.md.
        delivery: "written": an acknowledged event survives the death of any process; "synced": within a
            second it also survives a power cut; "queued": events that the collector cannot take at once are
            dropped and counted.
        overload: what happens when a rank gives more values than its writer can write. "wait": the loop is
            slowed down, scalars and lineage are never dropped while the writer makes progress. "drop": the
            values of whole steps are dropped and counted.
        ship_bytes: where hosts share no directory, each sends at most so many bytes of checkpoints and
            exported tensors to the home of the run, >= 0; the others stay on it, and `status` names them.
        raise_exception: raise WriteError, at the next step, for values that could not be recorded.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    images: bool = False
    metric: bool = True
    train_lineage: bool = True
    eval_lineage: bool = True
    dataset_graph: bool = True
    max_histograms: int | None = None
    tensor_freq: int | None = None
    collect_landscape: dict[str, Any] | None = None
    deal: str = DEALS[0]
    private: bool = False
    formats: Sequence[str] | None = None
    rank_formats: Sequence[str] | None = None
    export_npy: bool = False
    collectors: str | None = None
    rotate_bytes: int | None = None
    rotate_s: float | None = None
    keep_bytes: int | None = None
    delivery: str = WRITTEN
    overload: str = WAIT
    ship_bytes: int = SHIP_BYTES
    raise_exception: bool = False

    def __post_init__(self) -> None:
        for field in (
            *("images", "metric", "train_lineage", "eval_lineage", "dataset_graph"),
            *("private", "export_npy", "raise_exception"),
        ):
            check_type(field, getattr(self, field), bool)
        most = {"low": 1, "optional": True}
        set_ints(self, max_histograms=most, tensor_freq=most)
        set_ints(self, ship_bytes={"low": 0})
        if self.collect_landscape is not None:
            check_collect_landscape(self.collect_landscape)
        check_choice("deal", self.deal, DEALS)
        for field in ("formats", "rank_formats"):
            if getattr(self, field) is not None:
                check_formats(getattr(self, field), field)
        check_collectors(self.collectors)
        limits = check_limits(None, self.rotate_bytes, self.rotate_s, self.keep_bytes)
        object.__setattr__(self, "rotate_bytes", limits.rotate_bytes)
        object.__setattr__(self, "rotate_s", limits.rotate_s)
        object.__setattr__(self, "keep_bytes", limits.keep_bytes)
        check_choice("delivery", self.delivery, DELIVERIES)
        check_choice("overload", self.overload, (WAIT, DROP))


def writer_spec(
    record: Record, max_file_size: int | None = None, *, compatibility: Compatibility = OURS
) -> WriterSpec:
    """How `record` has values written; directory, run id, attempt and rank come later."""
    return WriterSpec(
        directory="",
        limits=check_limits(max_file_size, record.rotate_bytes, record.rotate_s, record.keep_bytes),
        delivery=record.delivery,
        overload=record.overload,
        compatibility=compatibility,
        raise_exception=record.raise_exception,
    )

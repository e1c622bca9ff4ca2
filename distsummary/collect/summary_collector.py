"""SummaryCollector: MindSpore's door to recording, which translates its arguments into RunSettings."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from stat import S_IWUSR
from typing import Any, Literal

import distsummary
from distsummary.base.checks import check_int, check_type
from distsummary.base.guard import guarded_log
from distsummary.base.terminal import announced
from distsummary.collect.collector import CollectorCallback
from distsummary.collect.config import read_config
from distsummary.collect.older_order import is_older_collector, without_num_process
from distsummary.collect.options import (
    check_checksums,
    check_custom_lineage,
    check_export_options,
    check_max_file_size,
    check_specified,
    check_summary_dir,
)
from distsummary.collect.plan import DEALS
from distsummary.collect.record_options import Record, writer_spec
from distsummary.collect.run_settings import RunSettings
from distsummary.collect.session import Session
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.events.segments import segments
from distsummary.events.spec import WAIT
from distsummary.format.compatibility import AS_MINDSPORE, OURS
from distsummary.format.records import MINDSPORE, WRITTEN
from distsummary.rundir.admission import ATTEMPT, Admission
from distsummary.rundir.coordination import Coordinator
from distsummary.rundir.numbered import is_numbered
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)


class SummaryCollector(CollectorCallback):
    """Records one rank of a training: scalars, histograms, images, lineage and, on request, its trajectory.

    At every step, it records the values that the loop logged, under their names. At the first step and every
    `collect_freq` steps, it records the loss as `loss/auto` and the learning rate as `learning_rate/auto`
    (unless they were logged), histograms of parameters as `<name>/auto`, and the first images of the batch as
    `input_data/auto`. If `tensor_regular` selects any, it records whole parameters at about 20 steps spread
    over the training (or every `collect_tensor_freq` steps). It records the lineage at the first step and
    completes it at the end. The metrics of an evaluation become scalars `eval/<name>`.

    Hooks raise only when a training or evaluation begins, for bad arguments or files that cannot be opened.
    With `raise_exception`, they also raise for values that could not be recorded. Other failures are counted
    in `health()` and logged once.

    Args:
        summary_dir: the run dir, the same for all ranks; created if absent. If it holds a training already,
            this one is its next attempt. Ranks that are given `PREFIX + str(rank)` record a run each, of
            which `distsummary adopt PREFIX` makes one.
        collect_freq: steps between records, >= 1. collect_tensor_freq: the same for whole parameters.
        num_process: accepted for compatibility with MindSpore; it has no effect. Arguments by position in the
            order of older versions, which do not have it, are taken too, with a warning.
        collect_specified_data: MindSpore's keys (`collect_metric` ... `histogram_regular`,
            `collect_landscape`), and `tensor_regular`, a pattern for parameters to record whole.
            `collect_metric=False` leaves out all numbers that no one logged: `loss/auto`,
            `learning_rate/auto` and the times of the steps, `zz_perf/...`.
        keep_default_action: False collects only what `collect_specified_data` names.
        custom_lineage_data: a dict of values of any kind, recorded like `config`, but not in the manifest;
            for a name that `config` has too, its value is recorded in the lineage.
        max_file_size: limit of each event file in bytes; values that do not fit are dropped and counted.
        export_options: {"tensor_format": "npy"} also exports the recorded tensors as .npy files.
        histograms, gradients: as in `ds.init`, in place of the keys `histogram_regular` and
            `gradient_regular`. None: as these say; by default, the first five parameters get histograms.
        graph: as in `ds.init`; None: the tree of modules, unless `collect_graph` is False.
        norms, checksums, config, system_metrics: as in `ds.init`; norms are those of the loop's `network`,
            and a loop other than Run must step torch's optimizers.
        collect_landscape: the same as the key `collect_landscape` of `collect_specified_data`; off by
            default.
        formats, rank_formats, deal, collectors, rotate_bytes, rotate_s, delivery, overload, raise_exception,
            private: see `ds.Record`.
        diagnose: options of diagnosis, see `ds.Diagnose`.
        mindspore_compat: do as MindSpore does: its way to scale images and to compute histograms, and an
            epoch's last step, if due, recorded twice; a value logged as `loss` is also recorded as
            `loss/auto`.
        topology: this rank's place among the ranks; by default from the loop or the environment.
        coordinator: internal: the `Coordinator` that joins all ranks to one run; by default, several ranks
            have an aggregator as with `ds.init`, and a single rank is judged in its own process.

    Raises:
        InvalidTypeError, InvalidValueError: a bad argument.
        NotADirectoryPathError, RunDirError: the directory cannot be made or written.
    """

    _merges_at_exit = False  # whether the last rank waits for the merged run when its process ends

    @without_num_process(3, is_older_collector)
    def __init__(
        self,
        summary_dir: str | os.PathLike[str],
        collect_freq: int = 10,
        num_process: object = 32,
        collect_specified_data: dict[str, Any] | None = None,
        keep_default_action: bool = True,
        custom_lineage_data: dict[str, Any] | None = None,
        collect_tensor_freq: int | None = None,
        max_file_size: int | None = None,
        export_options: dict[str, str] | None = None,
        *,
        histograms: str | Literal[False] | None = None,
        gradients: str | Literal[False] | None = None,
        graph: str | Literal[False] | None = None,
        norms: bool = False,
        checksums: bool | int = False,
        system_metrics: bool = False,
        config: object = None,
        collect_landscape: dict[str, Any] | None = None,
        formats: Sequence[str] | None = None,
        rank_formats: Sequence[str] | None = None,
        deal: str = DEALS[0],
        collectors: str | None = None,
        rotate_bytes: int | None = None,
        rotate_s: float | None = None,
        delivery: str = WRITTEN,
        overload: str = WAIT,
        raise_exception: bool = False,
        private: bool = False,
        diagnose: Diagnose | None = None,
        mindspore_compat: bool = False,
        topology: Topology | None = None,
        coordinator: Any = None,
    ) -> None:
        collect_freq = check_int("collect_freq", collect_freq, low=1)
        collect_tensor_freq = check_int("collect_tensor_freq", collect_tensor_freq, low=1, optional=True)
        flags = {"mindspore_compat": mindspore_compat, "norms": norms, "system_metrics": system_metrics}
        for field, flag in flags.items():
            check_type(field, flag, bool)
        check_type("topology", topology, Topology, optional=True)
        check_type("diagnose", diagnose, Diagnose, optional=True)
        record = Record(
            tensor_freq=collect_tensor_freq,
            deal=deal,
            private=private,
            formats=formats,
            rank_formats=rank_formats,
            export_npy=check_export_options(export_options),
            collectors=collectors,
            rotate_bytes=rotate_bytes,
            rotate_s=rotate_s,
            delivery=delivery,
            overload=overload,
            raise_exception=raise_exception,
        )
        compatibility = AS_MINDSPORE if mindspore_compat else OURS
        collected = check_specified(
            collect_specified_data,
            keep_default_action,
            histograms=histograms,
            gradients=gradients,
            graph=graph,
            landscape=collect_landscape,
            compatibility=compatibility,
        )
        is_quiet = topology is not None and topology.rank > 0
        read = read_config(config, is_quiet=is_quiet)
        size = check_max_file_size(max_file_size, negative_is_unlimited=False)
        settings = RunSettings(
            collected=collected,
            record=record,
            collect_freq=collect_freq,
            norms=norms,
            checksums=check_checksums(checksums),
            system_metrics=system_metrics,
            config=read,
            custom=read.flat | check_custom_lineage(custom_lineage_data, is_quiet=is_quiet),
            writer=writer_spec(record, size, compatibility=compatibility),
            diagnose=diagnose or Diagnose(),
        )
        if type(self) is SummaryCollector and "mindspore" in sys.modules and "torch" not in sys.modules:
            logger.warning(
                "MindSpore's Model refuses this collector, which is for torch and loops of your own; write: "
                "from distsummary.mindspore import SummaryCollector"
            )
        self._given = coordinator
        super().__init__(
            check_summary_dir(summary_dir), settings, topology=topology, coordinate=self._find_coordinator
        )

    def _place_of(self, topology: Topology) -> Topology:
        """The only rank of its run if each rank has a directory of its own, as scripts of MindSpore do."""
        if self._given is None and is_numbered(self.run_dir, topology):
            return replace(topology, rank=0, world_size=1)
        return topology

    def _admit(self, topology: Topology, *, resumes: bool) -> Admission:
        found: Admission = distsummary.admitted(
            self.run_dir.base,
            topology,
            _run_dir_of,
            on_existing=ATTEMPT,
            resumes=resumes,
            door="a SummaryCollector",
            is_private=self._settings.record.private,
            aggregate=self._given is None,
        )
        return found

    def _find_coordinator(self, topology: Topology) -> Coordinator:
        if self._given is not None:
            given: Coordinator = self._given
            return given
        found: Coordinator = distsummary.coordinator(
            self.run_dir,
            topology,
            aggregate=topology.world_size > 1,
            waits_at_exit=self._merges_at_exit,
        )
        return found

    def _publish_attempt(self, session: Session) -> None:
        """Print what the directory holds already; `ds.init` asks the user, by `on_existing`."""
        base = self.run_dir.home
        if session.topology.rank != 0 or self._given is not None:
            return
        if self.run_dir.is_away:
            announced(f"distsummary: recording {base} on another node of the cluster, the run's home")
        if session.attempt > 0:
            announced(
                f"distsummary: {base} holds a training already; this one is attempt {session.attempt}, which "
                "viewers show instead from its first step on; for a run of its own, name another summary_dir"
            )
        # MindSpore makes its files read-only, and this package does not.
        elif any(not path.stat().st_mode & S_IWUSR for path in segments(self.run_dir.base, MINDSPORE)):
            announced(
                f"distsummary: {base} holds a training that MindSpore recorded, and viewers show both as "
                "one; name another summary_dir"
            )


def _run_dir_of(path: str | os.PathLike[str], topology: Topology) -> RunDir:
    """The run dir on the host that is the home of the run."""
    return check_summary_dir(path)

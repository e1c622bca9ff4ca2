"""Evaluations: those of a process that does not train, kept until it trains or ends."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.base.health import Health
from distsummary.base.publish import publish
from distsummary.collect.config import differing, listed
from distsummary.collect.session import BY_EVALUATION, Past, Session, find_past
from distsummary.events.files import Files
from distsummary.events.reader import read_last_step, read_lineage
from distsummary.events.segments import SegmentName, lineage_files, next_stamp
from distsummary.format.frames import frame
from distsummary.format.lineage import encode_lineage, updated_lineage
from distsummary.format.own_tags import EVALUATION_TAGS
from distsummary.format.records import Value
from distsummary.rundir.attempts import newest_attempt
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams
from distsummary.training.values import scalar

logger = guarded_log(__name__)


def metric_values(params: CallbackParams, failures: Failures) -> list[Value]:
    """The metrics of an evaluation as scalars `eval/<name>`; those that are no numbers are counted."""
    metrics = params.get("metrics")
    values = []
    for name, metric in metrics.items() if isinstance(metrics, Mapping) else ():
        value = failures.call("metric", scalar, f"metric {name!r}", metric)
        if value is not None:
            values.append(Value("scalar", EVALUATION_TAGS + name, value))
    return values


class Evaluations:
    """What a process evaluates outside of a training.

    If it trains later, the training's session records the evaluations; otherwise `close` does.

    Args:
        evaluator: this rank's place among the ranks.
    """

    def __init__(self, evaluator: Topology) -> None:
        self.evaluator = evaluator
        self._pid = 0
        self._kept: list[tuple[int, Sequence[Value], Sequence[Value]]] = []  # step, values, lineage

    def own(self) -> None:
        """From now on, this process records them: a process forked later does not."""
        self._pid = os.getpid()

    def keep(self, step: int, values: Sequence[Value], lineage: Sequence[Value] = ()) -> None:
        """Keep the values of a step (0: none is known) and lineage."""
        self._kept.append((step, values, lineage))

    def record(self, session: Session, last_step: int = 0) -> None:
        """Record what was kept; `last_step` is the step where none is known."""
        for step, values, lineage in self._kept:
            session.record(step or last_step, {}, values, giver=BY_EVALUATION)
            session.report(step or last_step, [*lineage])
        self._kept.clear()

    def close(
        self,
        run_dir: RunDir,
        config: Mapping[str, Any],
        open_session: Callable[[Topology, Past | None], Session],
        failures: Failures,
    ) -> Health | None:
        """Add them to the last training's files; without a training, join the run as role eval.

        `config` is that of this process. Returns what was written; None in a forked process.
        """
        if self._pid != os.getpid():
            return None
        evaluator = self.evaluator
        past = find_past(run_dir, evaluator)
        training = newest_attempt(run_dir.read_manifest())
        if past is None:
            if training is None and evaluator.rank == 0:
                logger.warning(
                    "%s holds no training: the evaluation is recorded in %s; name the directory of the "
                    'training, and pass role="eval"',
                    run_dir.base,
                    run_dir.base / "eval",
                )
            session = open_session(dataclasses.replace(evaluator, role="eval"), None)
            lineage = [value for _, _, values in self._kept for value in values]
            self.record(session)
            health = session.close()
            # A run that holds nothing but this evaluation has its lineage where MindInsight looks for runs.
            if lineage and training is None and evaluator.world_size == 1:
                failures.call("lineage", _write_lineage, run_dir, lineage)
            return health
        # A script that both trains and evaluates passes the config that its training has recorded. `own`
        # holds all names of this config: those that only the training's has are no difference.
        own = differing({}, config)
        names = [name for name in differing((training or {}).get("config", {}), config) if name in own]
        if names and evaluator.rank == 0:
            failures.count(
                "the config of a run that only evaluates is not recorded; it differs from that of the "
                f"training in {listed(names)}: record these by run.text"
            )
        # Only one writer at a time may append events.
        with RunDir(past.rank_dir).locked("evaluation"):
            session = open_session(dataclasses.replace(evaluator, role="train"), past)
            self.record(session, read_last_step(past.rank_dir))
            return session.close()


def _write_lineage(run_dir: RunDir, values: Sequence[Value]) -> None:
    """Add lineage to that of the run dir itself: there MindInsight looks for a run, and not below it.

    Its events name no attempt, as those of MindSpore: the run dir itself holds none yet.
    """
    files, older = Files(), lineage_files(run_dir.base)
    lineage, now = read_lineage(run_dir.base), files.now()
    for value in values:
        lineage = updated_lineage(lineage, value)
    name = SegmentName(host=files.host(), pid=files.pid())
    path = run_dir.base / name.lineage_name(next_stamp(run_dir.base, now))
    publish(path, b"".join(map(frame, encode_lineage(lineage, now))))
    # The older files go only when the new one is in place, so that a reader always finds lineage.
    for other in older:
        other.unlink()

"""LoneRank: judges a training of one rank in its own process, as the aggregator judges those of several."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from distsummary.aggregate.judging import Judging
from distsummary.aggregate.rank_columns import RankColumns, RecordedScalars, TagNumbers
from distsummary.aggregate.stuck_ranks import StuckRanks
from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log
from distsummary.diagnosis.ends import attempt_verdicts
from distsummary.diagnosis.reporting import Alerts
from distsummary.events.rank_stream import RankStream
from distsummary.rundir.attempts import Registration
from distsummary.rundir.coordination import Coordinator
from distsummary.rundir.deal import Deal, Heartbeat
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import AttemptState, read_run
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)

STOP_S = 5.0  # the end waits so long for a judgement that hangs, as on a disk that does
EVENTS = 1 << 15  # that are judged at a time, to hold few of them in memory


class LoneRank:
    """A Coordinator that wraps another one, and judges with each heartbeat what its rank has recorded.

    It reads the files of the rank, in the thread of the heartbeats and, at the end, in that of the end.

    Args:
        inner: joins the rank to its run. run_dir: the run.
    """

    def __init__(self, inner: Coordinator, run_dir: RunDir) -> None:
        self._inner, self._run_dir = inner, run_dir
        self._alerts = Alerts(run_dir)
        self._stuck = StuckRanks(run_dir, self._alerts)
        self._judging = Judging(Meshes({0: run_dir.base}), self._alerts.report)
        self._stream: RankStream | None = None  # None before the rank has joined
        self._tags = TagNumbers()
        self._attempt = -1
        self._state: AttemptState | None = None
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # of the judges

    # --- calls of the rank

    def register(self, topology: Topology) -> Registration:
        """Join the run; it is judged from the first heartbeat on."""
        registration = self._inner.register(topology)
        self._attempt = registration.attempt
        directory = self._run_dir.writer_dir("train", 0, 1)
        self._stream = RankStream(directory, (registration.run_id, registration.attempt), bulk=False)
        return registration

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        """As the inner one; judges what was recorded since the heartbeat before."""
        deals = self._inner.beat(topology, attempt, heartbeat)
        with self._guarded(), self._lock:
            # First the look: the start of the training is reported before anything that was found in it.
            self._look()
            self._judge()
        return deals

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run, and report how it ended."""
        is_free = self._lock.acquire(timeout=STOP_S)
        if is_free:
            with self._guarded():
                self._look()
        try:
            self._inner.finish(topology, attempt, health)
        finally:
            if is_free:
                with self._guarded():
                    self._judge()
                    self._look(is_over=True)
                self._lock.release()
            self._alerts.close()

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """As the inner one."""
        self._inner.evaluated(topology, attempt)

    def note(self, topology: Topology, attempt: int, fields: Mapping[str, object]) -> None:
        """As the inner one."""
        self._inner.note(topology, attempt, fields)

    # --- judging

    def _judge(self) -> None:
        """Judge what was written, and whether the loop stands still."""
        while self._stream is not None:
            pieces = [piece for _, piece in self._stream.read(EVENTS)]
            part = RankColumns.of(0, 0, pieces, self._tags)
            if part is not None and part.values.size:
                ranks = np.zeros(part.values.size, np.int64)
                rows = RecordedScalars([*self._tags], part.which, ranks, part.value_steps, part.values)
                self._judging.add(rows, self._attempt)
            if self._stream.is_at_end:
                break
        if self._state is not None:
            self._stuck.look(self._state)

    def _look(self, *, is_over: bool = False) -> None:
        """Look at the state of the rank, and report it."""
        attempts = [one for one in read_run(self._run_dir).attempts if one.role == "train"]
        self._state = next((one for one in attempts if one.attempt == self._attempt), None)
        for verdict in attempt_verdicts(self._state, is_over=is_over) if self._state else ():
            self._alerts.report(self._attempt, verdict)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log what is raised, once: judging ends no training, and the next round may succeed."""
        try:
            yield
        except Exception as error:
            # Mostly an error of the disk.
            reason = error_line(error)
            if reason not in self._warned:
                self._warned.add(reason)
                logger.warning("%s: not judged now: %s", self._run_dir.base, reason)

"""LoneRank: judges a training of one rank in its own process, as the aggregator judges those of several."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from distsummary.aggregate.judging import Judging
from distsummary.aggregate.rank_columns import TagNumbers
from distsummary.aggregate.statistics import RecordedScalars
from distsummary.aggregate.stuck_ranks import StuckRanks
from distsummary.base.failures import error_line
from distsummary.diagnosis.ends import attempt_verdicts
from distsummary.diagnosis.growth import GROWING_TAGS
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.sick import LOSSES
from distsummary.format.encode import finish_value
from distsummary.format.own_tags import DATA_WAIT_MS, LAG, NONFINITE_TAGS, STEP_MS
from distsummary.format.records import Batch, Scalars, Value
from distsummary.format.scalar_rows import row_dtype, row_struct
from distsummary.rundir.attempts import Registration
from distsummary.rundir.coordination import Coordinator
from distsummary.rundir.deal import Deal, Heartbeat
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import AttemptState, read_run
from distsummary.rundir.topology import Topology

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STOP_S = 5.0  # the end waits so long for a judgement that hangs, as on a disk that does
MOST_ENTRIES = 1 << 15  # that wait for a heartbeat; beyond it, the oldest are not judged
MOST_SETS = 1 << 10  # sets of tags whose sieves are kept
JUDGED = frozenset((*NONFINITE_TAGS.values(), *(tag + LAG for tag in NONFINITE_TAGS.values()), *GROWING_TAGS))
TIMES = DATA_WAIT_MS, STEP_MS  # judged at every step


class LoneRank:
    """A Coordinator that wraps another one, and judges with each heartbeat what its rank has recorded.

    What the writer has written passes by as packed rows, of which few have to be judged; see `_Sieve`. The
    thread of the writer keeps these, and that of the heartbeats judges them.

    Its attributes are what one thread hands to the other, and the judges with their state.

    Args:
        inner: joins the rank to its run. run_dir: the run.
    """

    def __init__(self, inner: Coordinator, run_dir: RunDir) -> None:
        self._inner, self._run_dir = inner, run_dir
        self._alerts = Alerts(run_dir)
        self._stuck = StuckRanks(run_dir, self._alerts)
        self._judging = Judging(Meshes({0: run_dir.base}), self._alerts.report)
        self._sieves: dict[tuple[str, ...], _Sieve] = {}
        self._tags = TagNumbers()
        # Tags, steps and values (N,) of the rows; steps (N,) and TIMES (2, N).
        self._rows: deque[tuple[Ints, Ints, Floats]] = deque(maxlen=MOST_ENTRIES)
        self._times: deque[tuple[Ints, Floats]] = deque(maxlen=MOST_ENTRIES)
        self._attempt = -1
        self._state: AttemptState | None = None
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # of the judges

    # --- calls of the rank

    def register(self, topology: Topology) -> Registration:
        """Join the run; it is judged from the first heartbeat on."""
        registration = self._inner.register(topology)
        self._attempt = registration.attempt
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

    @property
    def on_written(self) -> Callable[[Batch], None]:
        """Takes each batch that was written, in the thread of the writer."""
        return self._receive

    def _receive(self, batch: Batch) -> None:
        with self._guarded():
            for scalars in _scalars_in(batch):
                self._keep(scalars)

    def _keep(self, scalars: Scalars) -> None:
        """Keep the rows that have to be judged, and of the others the columns that are."""
        tags = scalars.tags
        table = np.frombuffer(scalars.rows, row_dtype(len(tags)))
        sieve = self._sieves.get(tags)
        if sieve is None:
            sieve = self._sieves[tags] = _Sieve(tags)
            # A training that records ever different sets of tags must not fill the memory.
            if len(self._sieves) > MOST_SETS:
                del self._sieves[next(iter(self._sieves))]
        # Both times of each step are judged together, so they stay in one table.
        if sieve.times:
            self._times.append((table["step"].astype(np.int64), table["numbers"][:, sieve.times].T))
        # Whole rows are kept only where a tag becomes finite, NaN or infinite for the first time.
        wanted = sieve.rows(table["numbers"])
        if wanted:
            self._keep_columns(tags, table["step"][wanted], table["numbers"][wanted])
        # Of the other rows, only the columns that are judged at every step are kept.
        if sieve.judged:
            rest = np.delete(table, wanted) if wanted else table
            names = [tags[place] for place in sieve.judged]
            self._keep_columns(names, rest["step"], rest["numbers"][:, sieve.judged])

    def _keep_columns(self, tags: Sequence[str], steps: Ints, numbers: Floats) -> None:
        """Keep `numbers` (N, k) of k tags at N steps."""
        which = np.array([self._tags[tag] for tag in tags], np.int64)
        self._rows.append(
            (np.tile(which, len(steps)), np.repeat(steps.astype(np.int64), len(tags)), numbers.ravel())
        )

    # --- judging

    def _judge(self) -> None:
        """Judge what was written, and whether the loop stands still."""
        # The writer's thread appends meanwhile: take what is there now.
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if rows:
            which, steps, values = map(np.concatenate, zip(*rows, strict=True))
            ranks = np.zeros(len(steps), np.int64)
            self._judging.add(RecordedScalars([*self._tags], which, ranks, steps, values), self._attempt)
        if times := [self._times.popleft() for _ in range(len(self._times))]:
            steps, values = (np.concatenate(parts, axis=-1) for parts in zip(*times, strict=True))
            which, ranks = np.repeat(np.arange(len(TIMES)), len(steps)), np.zeros(values.size, np.int64)
            self._judging.add(
                RecordedScalars(TIMES, which, ranks, np.tile(steps, len(TIMES)), values.ravel()),
                self._attempt,
            )
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


class _Sieve:
    """Finds the rows of a set of k tags that have to be judged.

    These are the first in which a tag is finite, and, of those after it, the first in which it is NaN and the
    first in which it is infinite.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.judged = [place for place, tag in enumerate(tags) if tag in JUDGED]
        self.times = [tags.index(tag) for tag in TIMES] if {*TIMES} <= {*tags} else []
        # By tag: it has been finite, or it is a loss, which need not have been.
        self._is_known = np.array([tag in LOSSES for tag in tags], np.bool_)
        self._is_done = np.zeros((2, len(tags)), np.bool_)  # it has been NaN; it has been infinite

    def rows(self, numbers: Floats) -> list[int]:
        """The rows of `numbers` (N, k), as places in it."""
        # The files hold float32: a number that is too large for it counts as infinite here too.
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
        is_finite = np.isfinite(numbers)
        if self._is_known.all() and is_finite.all():
            return []
        # By tag, the row in which it is finite for the first time: -1 if it was before, N if it is not yet.
        begun = np.where(
            self._is_known, -1, np.where(is_finite.any(axis=0), is_finite.argmax(axis=0), len(numbers))
        )
        found = set(begun[(begun >= 0) & (begun < len(numbers))].tolist())
        self._is_known |= begun < len(numbers)
        is_nan = np.isnan(numbers)
        # Of each tag, the row of the first NaN after that one, and the row of the first infinity.
        for is_done, is_bad in zip(self._is_done, (is_nan, ~is_finite & ~is_nan), strict=True):
            for column in np.flatnonzero(is_bad.any(axis=0) & ~is_done).tolist():
                later = np.flatnonzero(is_bad[begun[column] + 1 :, column])
                if later.size:
                    found.add(int(later[0]) + int(begun[column]) + 1)
                    is_done[column] = True
        return sorted(found)


def _scalars_in(batch: Batch) -> Iterator[Scalars]:
    """The scalars of a batch in recording order; packed ones are referenced, not copied.

    A scalar that is not a number is left out, as it is from the files.
    """
    for item in batch.events:
        if isinstance(item, Scalars):
            yield item
            continue
        scalars = (value for value in item.values if value.plugin == "scalar" and value.shard is None)
        numbers = {value.tag: number for value in scalars if (number := _number(value)) is not None}
        if numbers:
            row = row_struct(len(numbers)).pack(item.wall_time, item.step, *numbers.values())
            yield Scalars(tuple(numbers), row)


def _number(value: Value) -> float | None:
    """The number of a scalar; None if the files refuse it."""
    if type(value.data) is float:
        return value.data
    try:
        return float(finish_value(value).data)
    except Exception:
        # An array of another library may raise anything.
        return None

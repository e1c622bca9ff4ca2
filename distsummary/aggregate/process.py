"""A run's aggregator without Ray: a child process of rank 0 that follows the files of the ranks."""

import atexit
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distsummary.aggregate.registrar import first_free_attempt
from distsummary.base.at_exit import DaemonThread
from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.base.processes import is_alive, no_fork
from distsummary.rundir.attempts import (
    Registration,
    find_attempt,
    merged_states,
    newest_attempt,
    note_evaluation,
    with_ranks,
)
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Deal, Heartbeat
from distsummary.rundir.rank_manifest import ranks_of
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology

logger = guarded_log(__name__)

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # pauses before the aggregator is started again
AGAIN_S = 10.0  # the first interval between starts by heartbeats; each is twice the one before
MISSING_S = 30.0  # when one rank of each node looks whether rank 0 has begun in the same directory
START_S = 1.0  # how long rank 0 waits at its end for the start of an aggregator that had died
MERGE_WAIT_S = 10.0  # how long the last rank's `finish` waits for the merged run
POLL_S = 0.1
# Without `-P`, files in the working directory would hide modules of the standard library. The package is that
# of this process, whatever its sys.path; what it imports is found as usual, then next to it.
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import distsummary; sys.path.append(sys.path.pop(0)); "
    "del sys.argv[1]; from distsummary.aggregate.follow import main; main()"
)


class AggregatorProcess:
    """The aggregator as a child process, kept by a thread: it is started again when it dies, a few times.

    No one waits for the start. The child has a session of its own, so that Ctrl-C in the terminal does not
    end it before the ranks have left the run; it ends by itself when the run is over. Its stderr is that of
    this process.

    Args:
        run_dir: the run that it follows.
        command: the child, which ends with exit code 0 when the run is over; None: the aggregator.
        backoff_s: the pauses before it is started again.
    """

    def __init__(
        self, run_dir: RunDir, *, command: Sequence[str] | None = None, backoff_s: Sequence[float] = BACKOFF_S
    ) -> None:
        self._base, self._backoff_s = run_dir.base, backoff_s
        package = str(Path(__file__).parents[2])
        self._command = command or [sys.executable, "-P", "-c", _CODE, package, str(run_dir.base)]
        self.has_failed = False  # it is not started again, having died often or since this process ends
        self._is_hurried, self._runs = threading.Event(), threading.Event()
        self._thread = DaemonThread(self._keep, "distsummary-aggregator")
        self._thread.start()
        # Without a thread that waits for it, the child is left alone: it ends with the run.
        if self._thread.is_deferred:
            self._thread.is_deferred, self.has_failed = False, True
            self._start()

    @property
    def is_kept(self) -> bool:
        """Whether it runs or will be started again; False once it has ended by itself or has failed."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """Wait no longer between its death and its next start: this process is about to end."""
        self._is_hurried.set()
        if self.is_kept:
            self._runs.wait(START_S)

    def join(self) -> None:
        """Wait until it is not kept any more."""
        self._thread.join()

    def _keep(self) -> None:
        # After the last try there is no pause: if it fails, the aggregator is given up.
        for pause_s in (*self._backoff_s, 0.0):
            how = self._run()
            if not how:
                return
            if pause_s:
                logger.warning(
                    "the aggregator of %s %s; it is started again in %g s", self._base, how, pause_s
                )
                self._is_hurried.wait(pause_s)
        self.has_failed = True
        logger.warning(
            "the aggregator of %s %s and is not started again; after the training, run: distsummary merge %s",
            self._base, how, quoted(self._base),
        )  # fmt: skip

    def _run(self) -> str:
        """Run the child to its end; returns how it failed, empty if the run is over and merged."""
        try:
            child = self._start()
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        self._runs.set()
        code = child.wait()
        self._runs.clear()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}" if code else ""

    def _start(self) -> "subprocess.Popen[bytes]":
        with no_fork():
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )


class ProcessCoordinator(LocalCoordinator):
    """A LocalCoordinator of a run whose rank 0 has started the aggregator as a child process.

    The ranks do not talk to the aggregator, which reads their files. Only the last rank that leaves waits for
    the merged run, at most MERGE_WAIT_S; the aggregator outlives the ranks if it takes longer.

    Args:
        run_dir: the run.
        waits_at_exit: whether it waits when its process ends, and not when it leaves the run.
        start: starts an aggregator of the run.
        clock: the time in seconds.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        waits_at_exit: bool = False,
        start: Callable[[RunDir], AggregatorProcess] = AggregatorProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(run_dir, lambda role: first_free_attempt(run_dir, role))
        self._waits_at_exit, self._start_process, self._clock = waits_at_exit, start, clock
        self._process: AggregatorProcess | None = None
        self._start_at_s, self._pause_s = 0.0, AGAIN_S  # when a heartbeat may start the next aggregator
        self._look_at_s = float("inf")  # when to look whether rank 0 has begun

    def register(self, topology: Topology) -> Registration:
        """Join the run; rank 0 starts the aggregator."""
        registration = super().register(topology)
        self._start(topology)
        # On each other node, one rank looks later whether rank 0 records in this directory.
        if topology.rank > 0 and topology.local_rank == 0:
            self._look_at_s = self._clock() + MISSING_S
        return registration

    def beat(self, topology: Topology, attempt: int, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        """As of LocalCoordinator; says once if rank 0, which starts the aggregator, has not begun here.

        Ranks that were stopped, or whose heartbeats found no room on the disk, counted as lost, and the
        aggregator may have ended. While rank 0 continues, it starts the next one, at ever longer intervals.
        """
        if self._clock() > self._start_at_s:
            self._start(topology)
        if self._clock() > self._look_at_s:
            self._look_at_s = float("inf")
            entry = find_attempt(self.run_dir.read_manifest(), topology.role, attempt)
            if not ranks_of(self.run_dir, entry, [0]):
                logger.warning(
                    "%s on %s: rank 0, whose aggregator merges the run, has not begun to record here within "
                    "%g s. Either it does not record, or the directory is not on a disk that all nodes share "
                    "(look for it on the other nodes). This rank's files stay in %s",
                    self.run_dir.base, topology.host, MISSING_S,
                    self.run_dir.writer_dir(topology.role, topology.rank, topology.world_size),
                )  # fmt: skip
        return super().beat(topology, attempt, heartbeat)

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Leave the run; the last rank waits for the merged run."""
        # If the aggregator has ended meanwhile, rank 0 starts another one: the run has to be merged.
        self._start(topology)
        if self._process is not None:
            self._process.hurry()
        if self._finish(topology, attempt, health):
            self._await_merge(topology.role, attempt)

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note an evaluation that was added to a training's files; the last rank waits for the merged run."""
        if note_evaluation(self.run_dir, topology, attempt):
            self._start(topology)
            self._await_merge("train", attempt)

    def _start(self, topology: Topology) -> None:
        if topology.rank > 0 or topology.world_size == 1:
            return
        if self._process is None or not (self._process.is_kept or self._process.has_failed):
            self._process = self._start_process(self.run_dir)
            self._start_at_s = self._clock() + self._pause_s
            self._pause_s *= 2

    def _await_merge(self, role: str, attempt: int) -> None:
        if self._waits_at_exit:
            atexit.register(self._await_merge_now, role, attempt)
        else:
            self._await_merge_now(role, attempt)

    def _await_merge_now(self, role: str, attempt: int) -> None:
        entry = find_attempt(self.run_dir.read_manifest(), role, attempt)
        # Others still evaluate, and the last of them waits for the merge.
        if entry.get("evaluated") and len(entry["evaluated"]) < entry["world_size"]:
            return
        ended = merged_states(with_ranks(self.run_dir, entry))
        deadline = time.monotonic() + MERGE_WAIT_S
        while self._is_awaited(role, attempt, ended) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _is_awaited(self, role: str, attempt: int, ended: Mapping[str, int]) -> bool:
        """Whether a living aggregator has yet to merge an attempt that all its ranks have left."""
        manifest = self.run_dir.read_manifest()
        entry = find_attempt(manifest, role, attempt)
        is_merged = entry.get("merged") == ended and not entry.get("evaluated")
        if is_merged or "running" in ended or entry is not newest_attempt(manifest, role):
            return False
        place = manifest.get("aggregator", {})
        # On another host it cannot be known whether it lives; until it has written its place, it starts.
        is_dead = bool(place) and is_alive(place) is False
        return not is_dead if self._process is None else self._process.is_kept

"""RankGauges: how far a rank is and what its steps take, as metrics of Ray, which Prometheus collects."""

from ray.util.metrics import Gauge

from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir

TAGS = ("run", "rank")
STEP = "distsummary_step"
OWN_MS, WAITING_MS = "distsummary_own_ms", "distsummary_waiting_ms"


class RankGauges:
    """Three gauges of one rank, of its own process: they end when it does.

    Each has the tags `run` (the run dir) and `rank`. Ray puts "ray_" before the names.
    """

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        self._tags = {"run": str(run_dir.base), "rank": str(rank)}
        self._step = Gauge(STEP, "The newest step of a rank.", TAGS)
        self._own = Gauge(OWN_MS, "Milliseconds a step that a rank works by itself, mean of 30 s.", TAGS)
        self._waiting = Gauge(WAITING_MS, "Milliseconds a step that a rank waits, mean of 30 s.", TAGS)

    def set(self, heartbeat: Heartbeat) -> None:
        """Show what a heartbeat reports; times that were not measured stay as they were."""
        self._step.set(heartbeat.step, self._tags)
        self._own.set(heartbeat.own_ms, self._tags)
        self._waiting.set(heartbeat.wait_ms, self._tags)

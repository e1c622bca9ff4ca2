"""SlowHosts: finds the rank whose machine is slower, or whose batches are longer, all the time.

Over a few steps, other work on a host slows ranks by as much; over hundreds, it slows those that share it
alike. So a rank that waits much longer for a processor than its peers, or computes longer in each phase, has
a slower machine.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.slow import COMPUTE, PHASES, Slow

Floats = NDArray[np.float64]

# It must be so in WINDOWS windows of WINDOW steps in a row, and cost COST of the wall clock.
WINDOW, WINDOWS, COST = 100, 2, 0.1
# A rank waits for a processor STARVED times as long as its peers, or computes SLOWER times as long in several
# of the phases that take at least SIZEABLE of what they compute: if in all, the optimizer among them, its
# processor is slower. Batches that are longer take longer in forward and backward, not in the optimizer.
STARVED, SLOWER, SIZEABLE = 2.5, 1.15, 0.08
TINY_MS = 1e-6
HOST = "host"
_OPTIMIZER = PHASES.index("optimizer")
_COMPUTE = [PHASES.index(phase) for phase in COMPUTE]


class SlowHosts:
    """Judges the steps of ranks that are each other's peers, window by window."""

    def __init__(self) -> None:
        self._open: dict[int, Slow] = {}  # rank -> what was reported of it
        self._found: dict[int, tuple[Slow, int]] = {}  # in the newest windows in a row, and in how many
        self._last = 0  # the last step of the window before
        self.starved: set[int] = set()  # ranks that were reported since they wait for a processor
        self._begin_window()

    def _begin_window(self) -> None:
        self._steps: list[int] = []
        self._computed: Floats = np.zeros(0)
        self._queued: Floats = np.zeros(0)
        self._wall_ms = 0.0

    def add(
        self,
        step: int,
        ranks: NDArray[np.int64],
        computed: Floats,
        queued: Floats,
        wall_ms: float,
        *,
        slow: Collection[int],
    ) -> list[Slow]:
        """Judge a step at which all peers are there; returns what begins or ends with it.

        Args:
            step: larger than in the calls before. ranks: all peers (W,).
            computed: the CPU milliseconds of the ranks in each of PHASES (W, P).
            queued: how long they waited for a processor (W,). wall_ms: how long the step took.
            slow: the ranks that are slow in one phase, which says more.
        """
        if len(self._queued) != len(ranks):
            self._begin_window()
            self._computed, self._queued = np.zeros(computed.shape), np.zeros(len(ranks))
        self._steps.append(step)
        self._computed += computed
        self._queued += queued
        self._wall_ms += wall_ms
        if len(self._steps) < WINDOW:
            return []
        changed: list[Slow] = []
        for index, rank in enumerate(ranks.tolist()):
            now = None if rank in slow else self._look(index, rank)
            before = self._found.pop(rank, None)
            if now is not None:
                count = before[1] + 1 if before is not None and before[0].phase == now.phase else 1
                self._found[rank] = (before[0] if before is not None and count > 1 else now), count
                if count >= WINDOWS and rank not in self._open:
                    begun = self._found[rank][0]
                    self._open[rank] = Slow(
                        rank=rank, phase=now.phase, since=begun.since, reported=step, excess=now.excess,
                        own_ms=now.own_ms, peers_ms=now.peers_ms, peers_step_ms=now.peers_step_ms,
                        when=now.when,
                    )  # fmt: skip
                    self.starved |= {rank} if now.excess == 0.0 else set()
                    changed.append(self._open[rank])
            elif (over := self._open.pop(rank, None)) is not None:
                self.starved.discard(rank)
                changed.append(over.over(self._last))
        self._last = step
        self._begin_window()
        return changed

    def _look(self, index: int, rank: int) -> Slow | None:
        """What this window says of a rank."""
        count, wall_ms = len(self._steps), self._wall_ms
        queued, peers_queued = self._queued[index], float(np.median(np.delete(self._queued, index)))
        computed = self._computed[index, _COMPUTE]
        peers = np.median(np.delete(self._computed[:, _COMPUTE], index, axis=0), axis=0)

        def found(phase: str, own_ms: float, peers_ms: float, excess: float, when: str) -> Slow:
            return Slow(
                rank=rank, phase=phase, since=self._steps[0], reported=self._steps[-1], excess=excess,
                own_ms=own_ms / count, peers_ms=peers_ms / count, peers_step_ms=float(peers.sum()) / count,
                when=when,
            )  # fmt: skip

        if queued >= STARVED * peers_queued and queued - peers_queued >= COST * wall_ms:
            text = (
                f"it waited {queued / count:.3g} ms a step for a processor, its peers "
                f"{peers_queued / count:.3g} ms; other programs run on its processors, or it may use fewer"
            )
            return found(HOST, queued, peers_queued, 0.0, text)
        more = float(computed.sum() - peers.sum())
        is_sizeable = np.maximum(computed, peers) >= SIZEABLE * peers.sum()
        is_longer = is_sizeable & (computed >= SLOWER * peers)
        if is_longer.sum() < 2 or more < max(COST * wall_ms, (SLOWER - 1) * peers.sum()):
            return None
        # Of the phases that are longer, those that cost most.
        most = sorted(np.flatnonzero(is_longer), key=lambda one: peers[one] - computed[one])[:2]
        longer = [COMPUTE[one] for one in most]
        numbers = f"{computed.sum() / count:.3g} ms a step, its peers {peers.sum() / count:.3g} ms"
        if is_longer.sum() == is_sizeable.sum() and is_longer[COMPUTE.index("optimizer")]:
            factor = float((computed[is_longer] / np.maximum(peers[is_longer], TINY_MS)).min())
            text = f"it computed {factor:.2f} times as long in each phase: {numbers}; its processor is slower"
            return found(HOST, computed.sum(), peers.sum(), factor - 1, text)
        factor = float(computed.sum() / peers.sum())
        text = (
            f"it computed {factor:.2f} times as long, above all in {' and '.join(longer)}: {numbers}; its "
            "batches are longer, or its processor is slower"
        )
        return found(longer[0], computed.sum(), peers.sum(), factor - 1, text)

"""States of runs as `read_run` returns them, for the tests of what is shown."""

from pathlib import Path

from distsummary.rundir.states import AttemptState, Failure, RankState, RunState
from distsummary.runs.status import Merged, Status

BEGAN = 1_800_000_000.0


def rank_state(rank: int, state: str = "running", **fields) -> RankState:
    fields = {"step": 120, "phase": "training", "step_s": 0.0123, "last_seen_s": 2.0, **fields}
    return RankState(
        role=fields.pop("role", "train"), attempt=fields.pop("attempt", 0), rank=rank, state=state,
        host=fields.pop("host", f"node-{rank // 8}"), pid=fields.pop("pid", 1000 + rank), **fields,
    )  # fmt: skip


def attempt_state(ranks, state: str = "running", **fields) -> AttemptState:
    fields = {"role": "train", "attempt": 0, "missing": (), "failure": None, "started": BEGAN, **fields}
    world_size = fields.pop("world_size", len(ranks) + len(fields["missing"]))
    return AttemptState(state=state, ranks=tuple(ranks), world_size=world_size, **fields)


def status_of(*attempts: AttemptState, merged: Merged | None = None, **fields) -> Status:
    newest = attempts[-1] if attempts else None
    run = RunState(
        path=Path("/runs/mine"),
        run_id="00000000000000ab",
        state=newest.state if newest else "unknown",
        attempts=attempts,
        newest=newest,
    )
    return Status(run=run, now=BEGAN + 3120.0, merged=merged, **fields)


def lost(rank: int, **fields) -> RankState:
    fields = {"last_seen_s": 95.0, "reason": "its process is gone from node-0", **fields}
    return rank_state(rank, "lost", lost_since=BEGAN + 3120 - fields["last_seen_s"], **fields)


def failure(rank: int, error: str) -> Failure:
    return Failure(rank, error, BEGAN + 5)

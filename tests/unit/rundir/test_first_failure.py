"""Which rank an attempt's failure names: the one that began it, not one that lost the connection to it."""

from pathlib import Path

import pytest

from distsummary.base.publish import file_system_time
from distsummary.rundir.attempts import note_deaths
from distsummary.rundir.consequences import follows_from_another
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import AttemptState, read_run
from distsummary.rundir.topology import Topology

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
STOPPED = "stopped: it still ran 10 s after the first failure"


NO_DATA, GONE = "OSError: no data", f"its process is gone from {Topology().host}"


def await_tick(place: Path) -> None:
    """Until the file system's clock shows another time: it orders the ends of the ranks."""
    before = file_system_time(place)
    while file_system_time(place) <= before:
        pass


def attempt(
    place: Path, *, reported: dict[int, str], deaths: dict[int, str], gone: int = -1, state: str = "lost"
) -> AttemptState:
    """Four ranks: those that reported an error or "", in this order, then deaths; `gone` has no process."""
    coordinator = LocalCoordinator(RunDir(place).create())
    topologies = {
        rank: Topology(
            rank=rank, world_size=4, incarnation="one", is_incarnation_unique=True,
            pid_start="0" if rank == gone else Topology().pid_start,
        )
        for rank in range(4)
    }  # fmt: skip
    for topology in topologies.values():
        coordinator.register(topology)
    for rank, error in reported.items():
        health: dict[str, int | str] = {"error": error} if error else {}
        if error:
            health["interrupted" if error.startswith("KeyboardInterrupt") else "failed"] = 1
        coordinator.finish(topologies[rank], 0, health)
        await_tick(place)
    if deaths:
        note_deaths(coordinator.run_dir, "train", 0, deaths, state=state)
    found = read_run(place).newest
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("reported", "deaths", "gone", "expected", "state"),
    [
        ({0: PEER, 2: NO_DATA, 1: PEER, 3: PEER}, {}, -1, (2, NO_DATA), "failed"),
        ({2: NO_DATA, 1: "OSError: no disk", 0: "", 3: ""}, {}, -1, (2, NO_DATA), "failed"),
        ({0: PEER, 3: PEER, 1: PEER}, {2: "killed by signal 9"}, -1, (2, "killed by signal 9"), "failed"),
        ({0: PEER, 3: PEER, 1: PEER}, {}, 2, (2, GONE), "failed"),
        ({0: "", 3: "", 1: ""}, {2: "exit code 3"}, -1, (2, "exit code 3"), "lost"),
        ({2: NO_DATA}, {0: STOPPED, 1: STOPPED, 3: STOPPED}, -1, (2, NO_DATA), "failed"),
        ({0: PEER, 1: PEER, 2: PEER, 3: PEER}, {}, -1, (0, PEER), "failed"),
        ({0: PEER, 1: "KeyboardInterrupt", 2: PEER, 3: PEER}, {}, -1, None, "interrupted"),
        ({0: "", 1: "", 2: "", 3: ""}, {}, -1, None, "finished"),
        ({0: "", 1: "", 2: ""}, {2: "killed", 3: "killed"}, -1, (3, "killed"), "lost"),  # its own word holds
    ],
)  # fmt: skip
def test_the_failure_of_an_attempt_is_the_cause(tmp_path, reported, deaths, gone, expected, state):
    found = attempt(tmp_path, reported=reported, deaths=deaths, gone=gone)
    assert (found.failure and found.failure[:2], found.state) == (expected, state)


def test_ranks_that_were_asked_to_end_are_interrupted_and_the_first_reason_is_kept(tmp_path: Path) -> None:
    found = attempt(
        tmp_path, reported={0: ""}, deaths={1: "Ctrl-C", 2: "Ctrl-C", 3: "Ctrl-C"}, state="interrupted"
    )
    assert (found.state, found.failure) == ("interrupted", None)
    note_deaths(RunDir(tmp_path), "train", 0, {1: "later", 3: "later"})
    ranks = read_run(tmp_path).attempts[0].ranks
    assert [(rank.state, rank.reason) for rank in ranks] == [
        ("finished", ""),
        *[("interrupted", "Ctrl-C")] * 3,
    ]


@pytest.mark.parametrize(
    "error",
    [
        PEER,
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by store->get('0'), but store->get('0') got error: Connection reset by peer",
        "DistBackendError: NCCL error: remote process exited or there was a network error, ncclRemoteError",
        "DistNetworkError: failed to recv, got 0 bytes",
        "DistStoreError: wait timeout after 300000ms, keys: /default_pg",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
        "ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
def test_errors_of_a_lost_peer_are_known(error: str) -> None:
    assert follows_from_another(error)


@pytest.mark.parametrize(
    "error",
    [
        NO_DATA,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: the store has no key 'loss'",
        "killed by signal 9 (SIGKILL), or ended by code that is not Python's: it left no last word",
        "NonFiniteError: loss is NaN at step 3",
    ],
)
def test_other_errors_are_causes(error: str) -> None:
    assert not follows_from_another(error)

"""The states of ranks, attempts and runs, as a reader concludes them from the files of a run."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from distsummary.base import publish
from distsummary.base.processes import own_process
from distsummary.errors import DamagedFileError
from distsummary.rundir import topology
from distsummary.rundir.attempts import note_deaths
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat, LongStep
from distsummary.rundir.rank_manifest import RANK_MANIFEST
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import LOST_S, AttemptState, RunState, is_over, living, read_run
from distsummary.rundir.topology import Topology
from tests.programs import run_python

WORLD = 4


@pytest.fixture
def run(nasty_tmp_path: Path) -> RunDir:
    return RunDir(nasty_tmp_path / "run").create()


@pytest.fixture(scope="module")
def gone() -> dict[str, Any]:
    """The fields of a process that has ended."""
    script = (
        "import json; from distsummary.base.processes import own_process; print(json.dumps(own_process()))"
    )
    found: dict[str, Any] = json.loads(run_python("-c", script).stdout)
    return found


FAR = {"host": "far", "pid_space": "another boot", "pid": 7}  # a process that cannot be asked for


def rank(number: int = 0, world_size: int = WORLD, incarnation: str = "start-1", **fields: Any) -> Topology:
    fields.setdefault("session", f"{incarnation} of rank {number}")
    return Topology(
        rank=number, world_size=world_size, incarnation=incarnation, is_incarnation_unique=True, **fields
    )


def join(run: RunDir, *numbers: int, **fields: Any) -> LocalCoordinator:
    coordinator = LocalCoordinator(run)
    for number in numbers:
        coordinator.register(rank(number, **fields))
    return coordinator


def leave(run: RunDir, number: int, attempt: int = 0, fields: Any = None, **health: int | str) -> None:
    LocalCoordinator(run).finish(rank(number, **(fields or {})), attempt, health)


def newest(run: RunDir | RunState, **options: Any) -> AttemptState:
    found = (run if isinstance(run, RunState) else read_run(run, **options)).newest
    assert found is not None
    return found


def states(run: RunDir, **options: Any) -> list[str]:
    """Of the run, then of the newest attempt's ranks."""
    found = read_run(run, **options)
    return [found.state, *(one.state for one in newest(found).ranks)]


def test_ranks_run_then_finish(run: RunDir) -> None:
    join(run, *range(WORLD))
    assert states(run) == ["running"] * 5
    assert living(run, "train", 0) == {0, 1, 2, 3}
    assert not is_over(newest(run))
    for number in range(WORLD):
        leave(run, number, events=3)
    assert states(run) == ["finished"] * 5
    assert living(run, "train", 0) == set()
    assert living(run, "train", 7) == set()
    assert is_over(newest(run))
    assert newest(run).ranks[2].health == {"events": 3}
    assert newest(run).failure is None


def test_a_heartbeat_reports_step_phase_and_pace(run: RunDir) -> None:
    coordinator = join(run, 1, host="n1", pid=42, pid_space="")
    assert newest(run).ranks[0].step is None
    coordinator.beat(rank(1), 0, Heartbeat(120, "training", 0.25, 1000, own_ms=9.5, wait_ms=2.0))
    [one] = newest(run).ranks
    assert (one.own_ms, one.wait_ms) == (9.5, 2.0)
    assert (one.rank, one.host, one.pid, one.step, one.phase, one.step_s) == (
        1, "n1", 42, 120, "training", 0.25,
    )  # fmt: skip
    assert one.last_seen_s < LOST_S
    coordinator.finish(rank(1), 0, {"step": 130})
    coordinator.beat(rank(1), 0, Heartbeat(121, "training", 0.25, 1000))  # a late one changes nothing
    [one] = newest(run).ranks
    assert (one.state, one.step, one.phase) == ("finished", 130, "training")


def test_a_rank_that_is_not_received_is_lost_and_comes_back_with_its_next_heartbeat(run: RunDir) -> None:
    coordinator = join(run, 0, 1, **FAR)
    file = run.writer_dir("train", 1, WORLD) / RANK_MANIFEST
    now = (run.writer_dir("train", 0, WORLD) / RANK_MANIFEST).stat().st_mtime
    os.utime(file, (now - LOST_S - 5, now - LOST_S - 5))
    assert states(run, now=now) == ["running", "running", "lost"]  # the run continues with the others
    lost = newest(run, now=now).ranks[1]
    assert (lost.reason, round(lost.last_seen_s)) == ("its heartbeats stopped", 35)
    assert lost.lost_since == pytest.approx(now - LOST_S - 5)
    assert newest(run, now=now).ranks[0].lost_since is None
    assert states(run, now=now - 6) == ["running", "running", "running"]
    assert states(run, now=now + LOST_S + 1) == ["lost", "lost", "lost"]
    assert newest(run, now=now + LOST_S + 1).failure is None  # no one knows which one died first
    coordinator.beat(rank(1, **FAR), 0, Heartbeat(1, "training", 0.1))
    assert states(run) == ["running", "running", "running"]


def test_ranks_whose_host_sends_nothing_are_not_reached(run: RunDir) -> None:
    coordinator = join(run, 0, 1)
    for number in (0, 1):
        coordinator.beat(rank(number), 0, Heartbeat(step=1))
    file = run.writer_dir("train", 1, WORLD) / RANK_MANIFEST
    entry = json.loads(file.read_text())
    entry["attempts"][-1] |= FAR
    file.write_text(json.dumps(entry))
    now = time.time()

    def silent(name: Path, seconds: float) -> AttemptState:
        os.utime(name, (now - seconds, now - seconds))
        return newest(run, now=now)

    run.mark_sent("far", [])
    [beacon] = run.base.glob(".host-*")
    # a rank that is stopped, on a host that sends; then the host sends nothing either
    assert silent(file, 15).ranks[1].unreached_since is None
    found = silent(beacon, 12).ranks[1]
    assert (found.state, found.reason[:30]) == ("running", "host far is not reached since ")
    assert found.unreached_since == pytest.approx(now - 12)
    found = silent(file, LOST_S + 5).ranks[1]
    assert (found.state, found.reason[:30]) == ("lost", "host far is not reached since ")


def test_the_clocks_of_the_ranks_do_not_count(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 0.0)
        join(run, 0, **FAR)
        assert states(run) == ["running", "running"]
    assert newest(run).started > 1e9


def test_a_rank_whose_process_is_gone_from_this_machine_is_lost_at_once(run: RunDir, gone: dict[str, Any]):
    join(run, 0)
    coordinator = join(run, 1, **gone)
    assert states(run) == ["running", "running", "lost"]
    assert newest(run).ranks[1].reason == f"its process is gone from {Topology().host}"
    # The kernel ends a process that runs out of memory without a word.
    for number, held_gib in ((0, 0.3), (1, 2.7)):
        beat = Heartbeat(8, memory_gib=held_gib, seen=[LongStep(7, "rest", "train.py:3 in main")])
        coordinator.beat(rank(number, **(gone if number else {})), 0, beat)
    leave(run, 0)
    assert newest(run).ranks[1].reason == (
        f"its process is gone from {Topology().host}; it held 2.7 GiB of memory, its peers 0.3 GiB; look "
        "for out of memory in dmesg"
    )
    assert states(run) == ["lost", "finished", "lost"]
    assert [one.seen for one in newest(run).ranks] == [((7, "rest", "train.py:3 in main"),)] * 2
    assert is_over(newest(run))


@pytest.mark.parametrize(
    ("error", "is_later", "state"),
    [
        ("Terminated: SIGTERM", True, "lost"),  # as torchrun ends the others when one has died
        ("Terminated: SIGTERM", False, "interrupted"),  # one did not end in time, and was killed
        ("KeyboardInterrupt", True, "interrupted"),
    ],
)
def test_ranks_that_were_ended_because_another_had_died_were_not_interrupted(
    run: RunDir, gone: dict[str, Any], error: str, is_later: bool, state: str
) -> None:
    join(run, 0)
    join(run, 1, **gone)
    leave(run, 0, interrupted=1, error=error)
    file = run.writer_dir("train", int(is_later), WORLD) / RANK_MANIFEST
    os.utime(file, (file.stat().st_mtime - 1,) * 2)  # the one that was last seen before the other
    assert states(run) == [state, "interrupted", "lost"]
    assert newest(run).failure is not None
    if state == "lost":
        join(run, 0, 1, incarnation="start-2")
        old = read_run(run).attempts[0]
        assert old.state == "superseded"
        assert old.failure.rank == 1


def test_a_noted_death_is_kept_with_its_first_reason(run: RunDir) -> None:
    join(run, *range(WORLD))
    note_deaths(run, "train", 0, {2: "signal 9 (SIGKILL), out of memory; token=abc"})
    note_deaths(run, "train", 0, {2: "exit code 1"})
    assert states(run) == ["running", "running", "running", "lost", "running"]
    assert newest(run).ranks[2].reason == "signal 9 (SIGKILL), out of memory; token=***"
    leave(run, 0, failed=1, error="RuntimeError: connection closed by peer")
    found = newest(run)
    assert found.state == "failed"
    assert found.failure[:2] == (2, "signal 9 (SIGKILL), out of memory; token=***")


def test_the_word_of_a_rank_holds_against_a_noted_death(run: RunDir) -> None:
    join(run, 0, 1)
    leave(run, 0, interrupted=1, error="SystemExit: 143")
    note_deaths(run, "train", 0, {0: "signal 15 (SIGTERM)"})
    one = newest(run).ranks[0]
    assert (one.state, one.error, one.reason) == ("interrupted", "SystemExit: 143", "signal 15 (SIGTERM)")


def test_events_that_are_missing_make_a_rank_incomplete_and_the_run_finished(run: RunDir) -> None:
    join(run, 0, world_size=1)
    leave(run, 0, fields={"world_size": 1}, missing="the disk was full")
    assert states(run) == ["finished", "incomplete"]
    assert newest(run).ranks[0].reason == "the disk was full"


def test_a_later_start_supersedes_those_that_reported_no_end(run: RunDir, gone: dict[str, Any]) -> None:
    join(run, 0, 1, 3)
    join(run, 2, **gone)
    leave(run, 0, failed=1, error="ValueError: no")
    leave(run, 1)
    note_deaths(run, "train", 0, {2: "node n2 died"})
    join(run, *range(WORLD), incarnation="start-2")
    found = read_run(run)
    old, new = found.attempts
    assert [one.state for one in old.ranks] == ["failed", "finished", "superseded", "superseded"]
    assert [one.reason for one in old.ranks] == ["", "", "node n2 died", "it recorded no end"]
    assert (old.state, new.state, found.state) == ("failed", "running", "running")
    assert found.newest is new


def test_a_faster_rank_that_trains_again_supersedes_no_one_but_itself(run: RunDir) -> None:
    join(run, 0, 1)
    join(run, 0, session="its next training")
    first, second = read_run(run).attempts
    assert [one.state for one in first.ranks] == ["superseded", "running"]
    assert [one.state for one in second.ranks] == ["running"]


def test_the_rank_of_a_run_of_one_that_starts_again(run: RunDir) -> None:
    for start in "12":
        join(run, 0, world_size=1, incarnation=start)
    assert [attempt.state for attempt in read_run(run).attempts] == ["superseded", "running"]
    assert read_run(run, now=time.time() + 3600).attempts[0].state == "superseded"


def test_ranks_that_never_registered_are_missing_and_decide_nothing(run: RunDir) -> None:
    join(run, 0)
    assert (newest(run).missing, newest(run).state) == ((1, 2, 3), "running")
    leave(run, 0)
    assert (newest(run).missing, states(run)) == ((1, 2, 3), ["finished", "finished"])


def test_an_evaluation_next_to_a_training_decides_nothing(run: RunDir) -> None:
    evaluation = rank(0, role="eval", incarnation="eval-1", world_size=1)
    LocalCoordinator(run).register(evaluation)
    assert read_run(run).state == "running"  # there is nothing else
    join(run, 0)
    LocalCoordinator(run).finish(evaluation, 0, {"failed": 1, "error": "ValueError: no"})
    found = read_run(run)
    assert [(one.role, one.state) for one in found.attempts] == [("eval", "failed"), ("train", "running")]
    assert found.state == "running"


def test_a_run_without_attempts_is_unknown(run: RunDir) -> None:
    found = read_run(run)
    assert (found.state, found.attempts, found.newest) == ("unknown", (), None)
    assert list(run.base.iterdir()) == []


def test_an_attempt_whose_first_rank_has_not_reported_of_itself_yet_is_beginning(run, gone):
    join(run, 0)
    (run.writer_dir("train", 0, WORLD) / RANK_MANIFEST).unlink()
    assert (newest(run).state, newest(run).ranks) == ("running", ())
    assert not is_over(newest(run))
    assert read_run(run, now=newest(run).started + LOST_S + 1).state == "unknown"
    run.update_manifest(lambda manifest: manifest["attempts"][0]["first"].update(gone))
    assert read_run(run).state == "unknown"


def test_a_damaged_file_is_unknown_and_says_so(run: RunDir) -> None:
    join(run, 0, 1)
    file = run.writer_dir("train", 1, WORLD) / RANK_MANIFEST
    file.write_bytes(b'{"format": 1')
    broken = newest(run).ranks[1]
    assert broken.state == "unknown"
    assert f"{file} is not JSON" in broken.reason
    assert "fsck --repair" in broken.reason
    assert newest(run).state == "running"


def test_a_run_of_another_version_is_named_with_the_remedy(run: RunDir) -> None:
    run.manifest_path.write_text('{"format": 1, "run_id": "a", "created": 0, "attempts": []}')
    with pytest.raises(DamagedFileError, match=r"has format 1.* distsummary fsck --repair"):
        read_run(run)


def test_a_directory_that_cannot_be_written_is_read_by_this_machines_clock(run, monkeypatch):
    join(run, 0)

    def refuse(directory: Path) -> Path:
        return Path("/proc/distsummary")  # takes no new entry

    monkeypatch.setattr(publish, "temporary_name", refuse)
    assert states(run) == ["running", "running"]


def test_a_world_of_another_size_has_files_of_its_own(run: RunDir) -> None:
    join(run, 0, world_size=1, incarnation="small")
    leave(run, 0, fields={"world_size": 1, "incarnation": "small"})
    join(run, *range(WORLD), incarnation="large")
    join(run, 0, 1, world_size=2, incarnation="smaller")
    found = read_run(run)
    assert [one.state for one in found.attempts] == ["finished", "superseded", "running"]
    assert [len(one.ranks) for one in found.attempts] == [1, 4, 2]
    assert newest(found).missing == ()


@pytest.mark.parametrize("gone", [{"driver": {"pid_start": "1"}}, {"parent": -1}])
def test_a_rank_that_no_launch_awaits_any_more_has_failed(tmp_path, monkeypatch, gone):
    launch: dict[str, Any] = {}
    monkeypatch.setattr(topology, "_launch", launch)
    topology.note_driver(own_process() | gone.pop("driver", {}))
    launch.update(gone)
    with ds.init(tmp_path / "run", quiet=True) as run:
        run.log(loss=1.0)
    found = read_run(tmp_path / "run")
    assert found.state == "failed"
    assert found.attempts[0].ranks[0].error.startswith("driver lost: ")

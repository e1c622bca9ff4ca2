"""Ranks join and leave the attempts of a run, and messages of superseded attempts are refused."""

import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from distsummary.aggregate.registrar import Registrar
from distsummary.base.processes import pid_start_of
from distsummary.cli.fsck import fsck
from distsummary.errors import (
    InvalidValueError,
    MissingRunDirError,
    RunDirError,
    StaleAttemptError,
    WorldMismatchError,
)
from distsummary.rundir import rank_manifest
from distsummary.rundir.admission import (
    ATTEMPT,
    AUTO,
    ERROR,
    NEW,
    admit,
    is_finished,
    refuse_in_use,
    refuse_taken,
)
from distsummary.rundir.attempts import (
    LOOKED_AT,
    choose_attempt,
    find_attempt,
    note_deaths,
    open_attempts,
    rank_states,
    with_ranks,
)
from distsummary.rundir.coordination import LocalCoordinator, states_of_all_that_left
from distsummary.rundir.deal import Deal, Heartbeat
from distsummary.rundir.rank_manifest import RankEntries
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.timeouts import JOIN_WINDOW_S
from distsummary.rundir.topology import Topology


@pytest.fixture
def run(nasty_tmp_path: Path) -> RunDir:
    return RunDir(nasty_tmp_path / "run").create()


def reported(run: RunDir, attempt: int = 0) -> dict[str, Any]:
    """What the ranks of an attempt report in their files."""
    ranks: dict[str, Any] = with_ranks(run, find_attempt(run.read_manifest(), "train", attempt))["ranks"]
    return ranks


def rank(number: int = 0, world_size: int = 2, incarnation: str = "start-1", **fields: Any) -> Topology:
    fields.setdefault("session", f"{incarnation} of rank {number}")
    return Topology(rank=number, world_size=world_size, incarnation=incarnation, **fields)


def test_the_ranks_of_an_incarnation_share_an_attempt_and_a_restart_gets_the_next(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    first = coordinator.register(rank(0))
    second = coordinator.register(rank(1))
    again = coordinator.register(rank(0, incarnation="start-2"))
    assert (first.attempt, second.attempt, again.attempt) == (0, 0, 1)
    assert first.run_id == second.run_id == again.run_id
    assert re.fullmatch(r"[0-9a-f]{16}", first.run_id)


def test_joining_and_leaving_take_no_random_numbers_of_the_training(run: RunDir) -> None:
    before = random.getstate()
    coordinator = LocalCoordinator(run)
    ranks = [rank(number, world_size=8) for number in range(8)]
    for topology in ranks:
        coordinator.register(topology)
    for topology in ranks:
        coordinator.finish(topology, 0, {})
    assert random.getstate() == before


PORT, RESTART = "127.0.0.1:29500+0", "start-1+1"


def entry(*states: str, incarnation: str = PORT, world_size: int = 4, started: float = 0.0) -> dict[str, Any]:
    """An attempt whose ranks 0, 1 ... are finished, lost ... or running, that is alive, dead or far."""
    running = ("alive", "dead", "far")
    return {
        "incarnation": incarnation,
        "world_size": world_size,
        "started": started,
        "ranks": {
            str(number): {
                "state": "running" if state in running else state,
                "alive": {"alive": True, "dead": False}.get(state),
                "session": f"session of rank {number}",
            }
            for number, state in enumerate(states)
        },
    }


def joins(attempts: list[dict[str, Any]], number: int, *, now: float = 1.0, **fields: Any) -> int | None:
    """Which of the attempts a rank of 4 is of, None for a new one."""
    arguments = {"world_size": 4, "incarnation": PORT} | fields
    chosen = choose_attempt(
        attempts, rank(number, **arguments), now=now, alive=lambda reported: reported["alive"]
    )
    return None if chosen is None else [id(attempt) for attempt in attempts].index(id(chosen))


@pytest.mark.parametrize(
    ("states", "number", "is_joined"),
    [
        ((), 0, False),
        (("alive", "alive"), 2, True),
        (("far", "alive"), 2, True),
        (("finished", "alive"), 2, True),
        (("finished", "finished"), 2, True),  # ranks that do not wait for each other
        (("alive", "alive"), 1, False),  # the rank is there already, so this is another start
        (("dead", "far", "alive"), 3, False),
        (("finished", "failed"), 2, False),
        (("finished", "lost"), 2, False),
    ],
)
@pytest.mark.parametrize("incarnation", [PORT, ""])
def test_an_attempt_of_a_name_that_others_use_too_is_joined_while_it_can_be_of_the_same_start(
    states: tuple[str, ...], number: int, is_joined: bool, incarnation: str
) -> None:
    attempts = [entry(*states, incarnation=incarnation)] if states else []
    assert joins(attempts, number, incarnation=incarnation) == (0 if is_joined else None)


def test_ranks_that_finished_are_joined_for_a_minute_only() -> None:
    attempts = [entry("finished", started=1000.0)]
    assert joins(attempts, 1, now=1000.0 + JOIN_WINDOW_S - 1) == 0
    assert joins(attempts, 1, now=1000.0 + JOIN_WINDOW_S) is None


@pytest.mark.parametrize(
    ("states", "disagree"),
    [
        (("alive",), True), (("alive", "far"), True), (("far",), False), (("dead", "alive"), False),
        (("finished",), False),
    ],
)  # fmt: skip
def test_another_world_size_is_another_job_unless_that_one_is_known_to_live(states, disagree):
    assert joins([entry(*states, world_size=2)], 3) == (0 if disagree else None)
    assert joins([entry(*states, world_size=2, incarnation="")], 3, incarnation="") is None


def test_only_the_newest_attempt_of_a_name_that_others_use_too_is_joined() -> None:
    attempts = [entry("alive"), entry("alive"), entry("alive", incarnation="10.0.0.2:29500+0")]
    assert joins(attempts, 1) == 1
    attempts[1]["ranks"]["1"] = attempts[1]["ranks"]["0"]
    assert joins(attempts, 1) is None


def test_the_attempts_of_a_name_that_no_other_start_has_are_joined_in_turn() -> None:
    attempts = [entry("finished", "lost"), entry("dead")]
    of_launch = {"incarnation": PORT, "is_incarnation_unique": True, "now": 1e9}
    assert joins(attempts, 2, **of_launch) == 0
    assert joins(attempts, 1, **of_launch) == 1
    assert joins(attempts, 0, **of_launch) is None
    assert joins(attempts, 3, **of_launch, world_size=5) == 0  # where the ranks will be said to disagree


def test_a_session_that_asks_again_gets_its_attempt_again() -> None:
    attempts = [entry("alive"), entry("alive", "dead")]
    assert joins(attempts, 0, session="session of rank 0") == 1
    attempts[1]["ranks"]["0"]["state"] = "finished"
    assert joins(attempts[1:], 0, session="session of rank 0") is None


def test_attempts_of_a_removed_manifest_are_counted_on(run: RunDir) -> None:
    coordinator = LocalCoordinator(run, {"train": 3, "eval": 0}.__getitem__)
    assert coordinator.register(rank(0)).attempt == 3
    assert coordinator.register(rank(0, incarnation="start-2")).attempt == 4
    assert coordinator.register(rank(0, role="eval")).attempt == 0


def test_a_process_that_trains_again_is_a_new_attempt_and_slower_ranks_may_still_finish(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))
    coordinator.register(rank(1))
    coordinator.finish(rank(0), 0, {})
    assert coordinator.register(rank(0)).attempt == 1
    coordinator.finish(rank(1), 0, {})
    assert coordinator.register(rank(1)).attempt == 1


def test_a_rank_that_failed_makes_its_attempt_complete_and_starts_again(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0, world_size=1))
    coordinator.finish(rank(0, world_size=1), 0, {"failed": 1, "error": "ValueError: no"})
    manifest = run.read_manifest()
    known = reported(run)["0"]
    assert (known["state"], known["error"]) == ("failed", "ValueError: no")
    assert manifest["state"] == "failed"
    assert coordinator.register(rank(0, world_size=1)).attempt == 1
    assert run.read_manifest()["state"] == "running"
    coordinator.finish(rank(0, world_size=1), 1, {})
    assert run.read_manifest()["state"] == "finished"


def test_the_first_failure_of_several_ranks_decides_the_state(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    for number in range(4):
        coordinator.register(rank(number, world_size=4))
    states = []
    for number, health in [
        (3, {"interrupted": 1, "error": "KeyboardInterrupt"}),
        (2, {"failed": 1, "error": "ValueError: the culprit"}),
        (1, {"failed": 1, "error": "RuntimeError: the peer is gone", "missing": "the disk was full"}),
        (0, {}),
    ]:
        coordinator.finish(rank(number, world_size=4), 0, health)
        states.append(run.read_manifest()["state"])
    assert states == ["interrupted", "failed", "failed", "failed"]
    attempt = with_ranks(run, find_attempt(run.read_manifest(), "train", 0))
    assert rank_states(attempt) == {"0": "finished", "1": "failed", "2": "failed", "3": "interrupted"}


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_training_that_was_stopped_gets_a_next_attempt_in_its_own_directory(run: RunDir, state: str):
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0, world_size=1))
    coordinator.finish(rank(0, world_size=1), 0, {state: 1})
    again = rank(0, world_size=1, incarnation="another")
    assert admit(run, again, on_existing=AUTO, door="this test").run_dir.base == run.base
    assert coordinator.register(again).attempt == 1


@pytest.mark.parametrize("health", [{}, {"failed": 1, "error": "ValueError: no metric"}])
def test_an_eval_job_does_not_change_the_state_of_a_training(run: RunDir, health: dict[str, Any]) -> None:
    coordinator = LocalCoordinator(run)
    evaluation = rank(0, world_size=1, role="eval", incarnation="eval-1")
    coordinator.register(evaluation)
    coordinator.finish(evaluation, 0, health)
    assert run.read_manifest()["state"] == ("failed" if health else "finished")  # nothing else is there
    coordinator.register(rank(0, world_size=1))
    for attempt, state in [(1, "running"), (2, "failed")]:
        evaluation = rank(0, world_size=1, role="eval", incarnation=f"eval-{attempt + 1}")
        coordinator.register(evaluation)
        assert run.read_manifest()["state"] == state
        coordinator.finish(evaluation, attempt, health)
        assert run.read_manifest()["state"] == state
        if attempt == 1:
            coordinator.finish(rank(0, world_size=1), 0, {"failed": 1})


def test_a_rank_whose_events_are_missing_is_incomplete_but_trained(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0, world_size=1))
    coordinator.finish(rank(0, world_size=1), 0, {"missing": "the disk was full"})
    manifest = run.read_manifest()
    known = reported(run)["0"]
    assert (known["state"], known["health"]) == ("incomplete", {"missing": "the disk was full"})
    assert manifest["state"] == "finished"
    again = rank(0, world_size=1, incarnation="another")
    assert admit(run, again, on_existing=AUTO, door="this test").run_dir.base == Path(f"{run.base}-2")


@pytest.mark.parametrize(("end", "moved"), [({}, (AUTO, NEW)), ({"failed": 1}, (NEW,)), (None, (NEW,))])
def test_on_existing_decides_where_another_training_records(run, end, moved):
    coordinator, dead = LocalCoordinator(run), {"pid": 2**22 - 1, "pid_start": "1"}
    coordinator.register(unique(0, 1, **({} if end is not None else dead)))
    if end is not None:
        coordinator.finish(unique(0, 1), 0, end)
    others = {name: unique(0, 1, incarnation=name) for name in ("another job", RESTART)}
    for on_existing in (AUTO, NEW, ATTEMPT):
        for name, topology in others.items():
            found = admit(run, topology, on_existing=on_existing, door="this test").run_dir.base
            assert (found != run.base) is (on_existing in moved and name != RESTART)
    for resumes in (False, True):
        message = r'holds a training \(attempt 0\).*on_existing="new".*initial_step='
        refused = nullcontext() if resumes else pytest.raises(RunDirError, match=message)
        with refused:
            admit(run, others["another job"], on_existing=ERROR, resumes=resumes, door="this test")
    assert admit(run, others[RESTART], on_existing=ERROR, door="this test").run_dir.base == run.base
    assert len(run.read_manifest()["attempts"]) == 1  # visible at the first step only


def test_a_message_of_a_superseded_attempt_is_refused(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))
    coordinator.register(rank(0, incarnation="start-2"))
    with pytest.raises(StaleAttemptError, match="attempt 0 of role train was superseded by attempt 1"):
        coordinator.finish(rank(0), 0, {})
    assert reported(run)["0"]["state"] == "running"


def test_ranks_that_disagree_on_the_world_size_are_named_with_what_they_said(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    for number in (0, 2, 10):
        coordinator.register(rank(number, world_size=16))
    message = "rank 3 says world_size 8 (by environment), but rank(s) 0, 2, 10 said 16"
    with pytest.raises(WorldMismatchError, match=re.escape(message)):
        coordinator.register(rank(3, world_size=8, source="environment"))
    assert "3" not in reported(run)
    assert not run.writer_dir("train", 3, 16).exists()


def test_a_rank_that_never_joined_cannot_finish(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))
    with pytest.raises(InvalidValueError, match="rank 1 never joined attempt 0"):
        coordinator.finish(rank(1), 0, {})
    with pytest.raises(StaleAttemptError, match="attempt 7 of role train is not in the manifest"):
        coordinator.finish(rank(0), 7, {})


def test_the_run_is_finished_when_its_last_rank_is(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))
    coordinator.finish(rank(0), 0, {"events": 7})
    assert run.read_manifest()["state"] == "running"  # rank 1 of 2 has not even come
    coordinator.register(rank(1))
    coordinator.finish(rank(1), 0, {})
    manifest = run.read_manifest()
    assert manifest["state"] == "finished"
    assert reported(run)["0"]["health"] == {"events": 7}


def test_a_role_is_open_until_its_newest_attempt_was_merged_with_the_final_states_of_its_ranks(run: RunDir):
    def is_any_open() -> bool:
        return bool(open_attempts(run, run.read_manifest()))

    def merged(states: dict[str, int]) -> None:
        run.update_manifest(lambda manifest: manifest["attempts"][-1].update(merged=states))

    coordinator = LocalCoordinator(run)
    assert not is_any_open()
    for number in range(2):
        coordinator.register(rank(number))
    assert is_any_open()
    coordinator.finish(rank(0), 0, {})
    merged({"finished": 1, "running": 1})  # the aggregator gave rank 1 up
    assert not is_any_open()
    coordinator.finish(rank(1), 0, {})  # and it came back
    assert is_any_open()
    merged({"finished": 2})
    assert not is_any_open()
    coordinator.evaluated(rank(0), 0)
    assert is_any_open()
    coordinator.register(rank(0, incarnation="start-2"))
    assert is_any_open()


def test_a_rank_reports_of_itself_in_its_own_file(run: RunDir) -> None:
    LocalCoordinator(run).register(rank(1, mesh={"dp": (1, 2)}, host="nöde", pid=42))
    assert "ranks" not in run.read_manifest()["attempts"][0]
    written = json.loads((run.writer_dir("train", 1, 2) / "manifest.json").read_bytes())
    [known] = written["attempts"]
    assert (known["host"], known["pid"], known["mesh"], known["state"]) == (
        "nöde", 42, {"dp": [1, 2]}, "running",
    )  # fmt: skip


def refused(attempt: dict[str, Any], number: int = 0, **fields: Any) -> str:
    """Why a rank of 4 must not begin to train from step 0 after this attempt; empty if it may."""
    topology = rank(number, **({"world_size": 4, "incarnation": "other", "pid": -1} | fields))
    for known in attempt["ranks"].values():
        known |= {"pid": 42, "pid_space": "s", "pid_start": "1", "host": "h"}
    newest, alive = attempt | {"role": "train", "attempt": 5}, lambda reported: reported["alive"]
    try:
        refuse_taken([newest], topology, RunDir("/r"), now=1.0, alive=alive)
    except RunDirError as error:
        return str(error)
    is_new = topology.role == "train" and choose_attempt([newest], topology, now=1.0, alive=alive) is None
    return "finished" if is_new and is_finished(newest, {"state": ""}, topology, alive=alive) else ""


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (("finished",) * 4, "finished"),
        (("finished",) * 3, ""),  # a rank never came
        (("finished", "finished", "finished", "failed"), ""),
        (("finished", "lost", "finished", "finished"), ""),
        (("finished", "dead", "finished", "finished"), ""),
        (("finished", "far", "finished", "finished"), ""),
        (
            ("far", "alive"),
            "the run /r is in use: rank 1 of attempt 5 runs as process 42 on h, and another job starts "
            "rank 0 as process -1 on ",
        ),
    ],
)
def test_a_run_that_is_finished_or_in_use_is_refused(states: tuple[str, ...], message: str) -> None:
    assert refused(entry(*states)).startswith(message)
    assert bool(refused(entry(*states))) == bool(message)


def test_actors_that_each_take_themselves_for_the_only_rank_are_reported_what_to_pass() -> None:
    advice = "; if both are ranks of one training, pass ds.init(..., rank=, world_size=); else wait for"
    assert advice in refused(entry("alive"), world_size=1)
    assert "; wait for its end" in refused(entry("alive", "alive"))


def test_the_ranks_of_a_job_do_not_refuse_each_other() -> None:
    slower = entry("finished", "alive", "alive", "alive")
    assert refused(slower, 0, incarnation=PORT) == "finished"  # it trains again, whoever is slower
    assert not refused(entry("finished", "alive", "dead", "alive"), 0, incarnation=PORT)
    assert not refused(entry("alive", "alive"), 2, incarnation=PORT)
    assert not refused(entry("alive", "alive"), 0, incarnation=PORT.replace("+0", "+1"))  # a restart
    twice = (
        "rank 0 of the run /r is claimed twice: by process 42 on h, which joined attempt 5 first, "
        "and by process -1 on "
    )
    assert refused(entry("alive", "alive"), 0, incarnation=PORT).startswith(twice)
    own = {"pid": 42, "pid_space": "s", "pid_start": "1"}
    assert not refused(entry("alive"), 0, **own)
    assert not refused(entry("finished", "alive"), 0, role="eval")
    replaced = entry("alive", "alive")
    replaced["ranks"]["0"]["source"] = replaced["ranks"]["1"]["source"] = "ray.train"
    assert not refused(replaced, 0, source="ray.train")


# --- files of many ranks

RANKS = 64


def unique(number: int, world_size: int, **fields: Any) -> Topology:
    return rank(number, world_size, is_incarnation_unique=True, **fields)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories whose rank's file was read."""
    found: list[Path] = []
    read_entries = rank_manifest.read_entries

    def read(directory: Path) -> RankEntries | None:
        found.append(directory)
        return read_entries(directory)

    monkeypatch.setattr(rank_manifest, "read_entries", read)
    return found


def test_further_ranks_of_a_start_join_without_the_lock(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(unique(0, 3))
    before = run.manifest_path.stat().st_ino
    with FileLock(run.base / ".lock"):
        assert coordinator.register(unique(1, 3)).attempt == 0
        coordinator.finish(unique(1, 3), 0, {})
    assert run.manifest_path.stat().st_ino == before


@pytest.mark.parametrize("is_unique", [True, False])
def test_a_rank_that_joins_looks_at_few_others(run: RunDir, looked_at: list[Path], is_unique: bool) -> None:
    coordinator = LocalCoordinator(run)
    for number in range(RANKS):
        looked_at.clear()
        coordinator.register(rank(number, RANKS, is_incarnation_unique=is_unique))
    assert len(looked_at) <= (4 if is_unique else LOOKED_AT + 4)


@pytest.mark.parametrize("order", [range(RANKS), range(RANKS - 1, -1, -1)])
def test_ranks_that_leave_one_after_the_other_look_at_few_others(run, looked_at, order):
    coordinator = LocalCoordinator(run)
    for number in range(RANKS):
        coordinator.register(unique(number, RANKS))
    looked_at.clear()
    for number in order:
        assert run.read_manifest()["state"] == "running"
        coordinator.finish(unique(number, RANKS), 0, {})
    assert run.read_manifest()["state"] == "finished"
    assert len(looked_at) < 24 * RANKS  # all would be RANKS * RANKS


def test_of_ranks_that_leave_at_once_the_last_to_be_shown_sets_the_state(run: RunDir, looked_at: list[Path]):
    coordinator = LocalCoordinator(run)
    for number in range(RANKS):
        coordinator.register(unique(number, RANKS))
    entries = [coordinator.leave(unique(number, RANKS), 0, {}) for number in range(RANKS)]
    looked_at.clear()
    last = [n for n in range(RANKS) if states_of_all_that_left(run, entries[n], n) is not None]
    assert RANKS - 1 in last
    assert len(looked_at) < 40 * RANKS


def test_ranks_that_never_came_are_awaited_for_a_minute_only(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    for start, age_s, state in [("1", 0.0, "running"), ("2", JOIN_WINDOW_S, "finished")]:
        attempt = coordinator.register(unique(0, 4, incarnation=start)).attempt
        run.update_manifest(
            lambda manifest, age_s=age_s: manifest["attempts"][-1].update(  # type: ignore[misc]
                started=manifest["attempts"][-1]["started"] - age_s
            )
        )
        coordinator.finish(unique(0, 4, incarnation=start), attempt, {})
        assert run.read_manifest()["state"] == state


def other_process(**fields: Any) -> dict[str, Any]:
    """A living process that is not this one."""
    pid = os.getppid()
    return {"pid": pid, "pid_start": pid_start_of(pid), "session": "another", "host": "h", **fields}


def test_a_rank_that_another_living_process_is_already_is_refused_with_both(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(unique(0, 2))
    coordinator.register(unique(1, 2))
    message = (
        rf"rank 1 of the run .* is claimed twice: by process {os.getpid()} on .*, which joined attempt 0 "
        rf"first, and by process {os.getppid()} on h \(by single process\); give each process a rank "
    )
    with pytest.raises(RunDirError, match=message):
        coordinator.register(unique(1, 2, **other_process()))
    assert len(run.read_manifest()["attempts"]) == 1


def test_of_two_processes_that_claim_a_rank_at_the_same_moment_the_second_is_refused(run: RunDir) -> None:
    first, second = LocalCoordinator(run), LocalCoordinator(run)
    first.register(unique(0, 2))
    first.claim(unique(1, 2), 0)
    with pytest.raises(RunDirError, match=r"rank 1 of the run .* is claimed twice"):
        second.claim(unique(1, 2, **other_process()), 0)
    first.claim(unique(1, 2), 0)  # a call that is repeated changes nothing
    assert reported(run)["1"]["pid"] == os.getpid()


FAR = {"host": "far", "pid_space": "another boot", "pid": 7}


@pytest.mark.parametrize(
    ("is_sent", "far_s"),
    [
        pytest.param(False, 60.0, id="shared"),
        pytest.param(True, 0.0, id="sent, which takes longer"),
    ],
)
def test_a_job_on_another_machine_is_refused_if_its_heart_beats(
    run: RunDir, is_sent: bool, far_s: float
) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(unique(0, 1, **FAR))
    other = unique(0, 1, incarnation="another")
    refuse_in_use(run, other, far_s=0.0)  # it may have died a moment ago
    if is_sent:
        run.mark_sent("far")
    beats = []

    def sleep(seconds: float) -> None:
        beats.append(seconds)
        if len(beats) == 3:
            file = run.base / rank_manifest.RANK_MANIFEST
            coordinator.beat(unique(0, 1, **FAR), 0, Heartbeat())
            os.utime(file, (file.stat().st_mtime + 5,) * 2)

    with pytest.raises(
        RunDirError, match="is in use: rank 0 of attempt 0 runs as process 7 on far, and anoth"
    ):
        refuse_in_use(run, other, far_s=far_s, sleep=sleep)
    assert len(beats) == 3
    refuse_in_use(run, unique(0, 1))  # the same job
    note_deaths(run, "train", 0, {0: "its node does not answer"})
    refuse_in_use(run, other)  # its launcher saw it die


def test_of_two_jobs_that_begin_at_once_on_two_machines_the_second_is_refused(run: RunDir) -> None:
    far, here = (
        admit(run, place, door="").topology
        for place in (unique(0, 1, **FAR), unique(0, 1, incarnation="another"))
    )
    LocalCoordinator(run).register(far)
    for coordinator in (LocalCoordinator(run), Registrar(run)):
        with pytest.raises(RunDirError, match="is in use: rank 0 of attempt 0 runs as process 7 on far"):
            coordinator.register(here)
    # One that is admitted later has waited for its heartbeat in vain.
    late = replace(here, after=0)
    assert Registrar(run).register(late).attempt == 1


def test_a_full_disk_keeps_no_rank_from_reporting_its_heartbeat_and_its_end(run, monkeypatch):
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))

    @contextmanager
    def refuse(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
        yield run.base / "written"
        (run.base / "written").unlink()
        raise RunDirError(f"{path} cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rank_manifest, "replacing", refuse)
        coordinator.beat(rank(0), 0, Heartbeat(3, "training"))
        assert reported(run)["0"]["heartbeat"]["step"] == 3
        coordinator.finish(rank(0), 0, {"missing": "x" * 300})
        found = reported(run)["0"]
        assert (found["state"], found["heartbeat"]["step"], found["ended"] > 0) == ("incomplete", 3, True)
        with pytest.raises(RunDirError, match="No space left"):  # more than the blocks of the file hold
            coordinator.finish(rank(0), 0, {"missing": "x" * 5000})
    assert reported(run)["0"]["health"] == {"missing": "x" * 300}


def test_a_heartbeat_of_a_superseded_attempt_is_not_reported(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0))
    coordinator.register(rank(0, incarnation="start-2"))
    before = reported(run)
    assert coordinator.beat(rank(0), 0, Heartbeat(5)) == ()
    assert reported(run) == before


def test_a_heartbeat_and_a_registration_return_the_deals(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    assert coordinator.register(rank(0)).deals == ()
    assert coordinator.beat(rank(0), 0, Heartbeat(5)) == ()
    deals = Deal(1, None, ((0, 1),), 1), Deal(2, None, ((0,),), 7)
    stored = [deal.as_json() for deal in deals]
    run.update_manifest(lambda manifest: manifest["attempts"][0].update(deals=stored))
    assert coordinator.beat(rank(0), 0, Heartbeat(6)) == deals
    assert coordinator.register(rank(1)).deals == deals


def test_a_run_json_that_was_removed_is_rebuilt_by_fsck_and_by_nothing_else(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank(0, 1))
    known = run.read_manifest()["attempts"]
    run.manifest_path.unlink()
    removed = pytest.raises(RunDirError, match=r"was removed.*distsummary fsck --repair")
    with removed:
        coordinator.beat(rank(0, 1), 0, Heartbeat(step=7, phase="training"))
    for change in (lambda manifest: None, lambda manifest: manifest.update(key_tags=["a"])):
        with removed:
            run.update_manifest(change)
    with removed:
        coordinator.finish(rank(0, 1), 0, {"step": 9})
    assert not run.manifest_path.exists()
    fsck(run.base, repair=True)
    [entry] = run.read_manifest()["attempts"]
    assert entry["incarnation"] == known[0]["incarnation"]
    assert reported(run)["0"]["state"] == "finished"


def test_a_run_dir_that_was_renamed_is_never_made_again(run: RunDir) -> None:
    coordinator = LocalCoordinator(run)
    coordinator.register(rank())
    run.base.rename(run.base.with_name("moved"))
    missing = pytest.raises(MissingRunDirError, match="was removed or renamed")
    with missing:
        coordinator.beat(rank(), 0, Heartbeat(step=7, phase="training"))
    with missing:
        run.update_manifest(lambda manifest: None)
    with missing:
        coordinator.finish(rank(), 0, {})
    assert not run.base.exists()

"""A crew of actors does its work whichever of them die, fall silent, never start or raise."""

import gc
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.run import actor_crew, actor_resources
from distsummary.landscapes.run.actor_crew import UNRESERVED, ActorCrew, CrewTimes
from distsummary.landscapes.run.work import Job, Work
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("ray_cluster")

ON_CPU = {"num_cpus": 1.0}
ON_GPU = {"num_gpus": 1.0, "num_cpus": 0.0}  # the cluster has none
AMPLE = {"num_cpus": 64.0}  # nor as many of these


class Applier:
    """A worker that applies a function to numbers; `begin` returns its GPUs."""

    def __init__(self, function: Callable[[int], int] = abs, *, gpus: float = 0.0) -> None:
        self._function, self._gpus = function, gpus

    def begin(self) -> float:
        if self._function is None:
            raise ZeroDivisionError("at the beginning")
        return self._gpus

    def work(self, number: int) -> int:
        return self._function(number)


class Numbers(Work):
    """The numbers below `count` as jobs."""

    def __init__(self, count: int = 4) -> None:
        self.jobs: list[Job] = [(number,) for number in range(count)]
        self.held: dict[str, list[Job]] = {}
        self.results: dict[int, int] = {}
        self.blamed: list[bool] = []
        self._count = count

    @property
    def is_finished(self) -> bool:
        return len(self.results) == self._count

    def next_job(self, worker: str, workers: int) -> Job | None:
        job = self.jobs.pop() if self.jobs else None
        if job is not None:
            self.held.setdefault(worker, []).append(job)
        return job

    def done(self, worker: str, job: Job, result: int) -> Job | None:
        self.held[worker].remove(job)
        self.results[job[0]] = result
        return None

    def lost(self, worker: str, *, was_at_it: bool) -> None:
        self.blamed.append(was_at_it)
        self.jobs += self.held.pop(worker, [])


def crew_of(
    function: Any = abs,
    resources: Any = (ON_CPU,),
    *,
    times: Mapping[str, float] | None = None,
    **options: Any,
) -> ActorCrew:
    seconds = CrewTimes(**{"start_s": PATIENCE_S, "wait_s": 0.1} | dict(times or {}))
    return ActorCrew(
        Applier, [function], resources, name="test", beginning="when it began", times=seconds, **options
    )


def kinds(crew: ActorCrew) -> list[dict[str, float]]:
    return [worker.options for worker in crew._workers.values()]


def once(flag: Path, number: int = signal.SIGKILL) -> Callable[[int], int]:
    """A function that sends its own process a signal, the first time."""

    def function(value: int) -> int:
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), number)
        return value

    return function


def die(value: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def test_a_dead_worker_is_replaced_and_others_do_its_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = Numbers(9)
    with crew_of(once(tmp_path / "flag"), [ON_CPU] * 2) as crew:
        crew.do(work)
        assert crew.names == ["worker-0", "worker-1", "worker-2"]
        crew.do(again := Numbers(2))  # the same actors
        assert len(crew.names) == 3
    assert work.results == {number: number for number in range(9)}
    assert again.is_finished
    [died] = [message for message in caplog.messages if "died" in message]
    assert re.match(r"test worker-\d died \(", died)
    assert len(died) < 200
    assert "\n" not in died


@pytest.mark.parametrize(
    ("limit", "said"), [(1, "the test worker died ("), (2, "2 test workers died one after")]
)
def test_too_many_deaths_without_a_result_are_an_error_with_a_remedy(limit: int, said: str) -> None:
    with (
        crew_of(die, max_deaths=limit, remedy="do something else") as crew,
        pytest.raises(LandscapeError, match=r"; do something else$") as failed,
    ):
        crew.do(Numbers())
    assert str(failed.value).startswith(said)


def test_a_worker_that_died_of_earlier_work_is_not_blamed_for_later_work(tmp_path: Path) -> None:
    early, late = Numbers(1), Numbers(3)
    with crew_of(once(tmp_path / "flag")) as crew:
        crew.do(Work())
        crew._feed(["worker-0"], early)
        early.results[0] = 0  # as if another had ended it
        crew.do(early)
        crew.do(late)
    assert late.blamed == [False]
    assert late.is_finished


class Ender(logging.Handler):
    """Kills whom a warning of a silent worker names, if it is stopped: on a busy machine others are slow."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = re.search(r"\(process (\d+) on \S+\)", text)
        if found and psutil.Process(int(found[1])).status() == psutil.STATUS_STOPPED:
            self.texts.append(text)
            os.kill(int(found[1]), signal.SIGKILL)


@pytest.fixture
def ender() -> Iterator[Ender]:
    ender = Ender()
    logger = logging.getLogger(actor_crew.__name__)
    logger.addHandler(ender)
    yield ender
    logger.removeHandler(ender)


def test_a_silent_worker_is_reported_with_its_process_and_may_be_killed(tmp_path: Path, ender: Ender) -> None:
    with crew_of(once(tmp_path / "flag", signal.SIGSTOP), times={"silent_s": 1.0}) as crew:
        crew.do(work := Numbers())
    assert work.is_finished
    assert re.fullmatch(
        r"test worker-0 \(process \d+ on [\w.:]+\) has not answered for \d+ s; if it hangs, "
        "kill that process: another takes its place",
        ender.texts[0],
    )


def test_a_worker_without_a_reservation_takes_the_place_of_those_that_wait_for_gpus(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given_up: list[bool] = []
    with crew_of(
        resources=[ON_GPU] * 2,
        forgo=lambda: given_up.append(True),
        more=lambda points: [ON_GPU, ON_CPU],
        times={"start_s": 0.0, "grow_s": 0.0},
    ) as crew:
        crew.do(work := Numbers())
        assert work.is_finished
        assert kinds(crew)[0] == UNRESERVED
        assert all(ON_GPU.keys() != kind.keys() for kind in kinds(crew))
    assert given_up == [True]
    assert caplog.text.count("no test worker started in 0 s") == 1


def test_it_works_next_to_those_that_wait_for_cpus() -> None:
    with crew_of(resources=[AMPLE], times={"start_s": 0.0}) as crew:
        crew.do(work := Numbers())
        assert work.is_finished
        assert kinds(crew) == [AMPLE, UNRESERVED]


def test_a_gpu_is_waited_for_where_gpus_have_given_results(caplog: pytest.LogCaptureFixture) -> None:
    with crew_of(resources=[ON_GPU], times={"start_s": 0.0}) as crew:
        crew._has_results = True
        for _ in range(2):
            crew._look_after_workers()
        assert kinds(crew) == [ON_GPU]
    assert caplog.text.count("got its GPU in 0 s; still waiting for a GPU") == 1


def test_a_crew_continues_when_what_a_dead_worker_held_is_taken(tmp_path: Path) -> None:
    with crew_of(once(tmp_path / "flag"), times={"start_s": 1.0}) as crew:
        crew._workers["worker-0"].options = AMPLE  # as if others had taken it
        crew.do(work := Numbers())
    assert work.is_finished


class TwoArgumentsError(Exception):
    """Python pickles it, and cannot unpickle it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")
        self.add_note("and a note")


def raise_it(error: Exception) -> Callable[[int], int]:
    def function(value: int) -> int:
        raise error

    return function


def raise_two_arguments(value: int) -> int:
    raise TwoArgumentsError("in the", "work")


def test_what_a_worker_raises_is_the_cause_with_its_traceback_behind_it() -> None:
    with (
        crew_of(raise_it(ZeroDivisionError("of the user"))) as crew,
        pytest.raises(LandscapeError, match=r"raised ZeroDivisionError: of the user$") as failed,
    ):
        crew.do(Numbers())
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert "raise error" in str(failed.value.__cause__.__cause__)
    with (
        crew_of(raise_it(InvalidValueError("our own"))) as crew,
        pytest.raises(InvalidValueError, match=r"our own"),
    ):
        crew.do(Numbers())


def test_an_error_that_cannot_be_unpickled_is_quoted_with_its_notes_and_kills_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        crew_of(raise_two_arguments) as crew,
        pytest.raises(LandscapeError, match=r"TwoArgumentsError: in the work$") as failed,
    ):
        crew.do(Numbers())
    assert failed.value.__cause__ is not None
    assert failed.value.__cause__.__notes__ == ["and a note"]
    assert "died" not in caplog.text


def test_an_error_at_the_beginning_is_reported_in_one_line() -> None:
    said = r"ZeroDivisionError: at the beginning when it began$"
    with crew_of(None) as crew, pytest.raises(LandscapeError, match=said) as failed:
        crew.do(Work())
    assert type(failed.value.__cause__) is ZeroDivisionError


def test_errors_in_other_workers_are_not_printed_by_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, asked = tmp_path / "first", tmp_path / "asked"

    def function(value: int) -> int:
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            while not asked.exists():
                time.sleep(0.01)
        raise ZeroDivisionError

    @contextmanager
    def late() -> Iterator[None]:
        if first.exists():
            asked.touch()
            time.sleep(0.5)  # meanwhile the other raises; Ray takes an error as read that it was asked for
        with original_errors():
            yield

    gc.collect()
    printed: list[Exception] = []
    original_errors = actor_crew.original_errors
    monkeypatch.setattr(ray._private.worker, "_unhandled_error_handler", printed.append)
    monkeypatch.setattr(actor_crew, "original_errors", late)
    with crew_of(function, [ON_CPU] * 2) as crew, pytest.raises(LandscapeError):
        crew.do(Numbers())
    gc.collect()  # Ray reports errors that no one has read when they are gone
    assert printed == []


def test_what_others_have_taken_is_waited_for_no_longer_than_said() -> None:
    group = ray.util.placement_group([{"CPU": 1}])
    try:
        actor = ray.remote(Applier).options(num_cpus=1).remote()
        ray.get([group.ready(), actor.__ray_ready__.remote()])
        begun = time.monotonic()
        actor_resources.end_actors([(actor, {"num_cpus": 4})], return_s=0.5)
        assert actor_resources.free_resources()["CPU"] == 3
        assert time.monotonic() - begun >= 0.5
    finally:
        ray.util.remove_placement_group(group)


def test_an_interrupt_while_workers_are_ended_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    killed: list[Any] = []
    monkeypatch.setattr(ray, "available_resources", interrupt)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    with pytest.raises(KeyboardInterrupt):
        actor_resources.end_actors([("one", {"num_cpus": 1}), ("another", {"num_cpus": 1})])
    assert killed == ["one", "another"]

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

import numpy as np
import psutil
import pytest
import ray

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.worker import ChunkResult
from distsummary.landscapes.run import actor_crew, actor_resources
from distsummary.landscapes.run.actor_crew import (
    MAX_DEATHS,
    NOT_BEGUN,
    UNRESERVED,
    ActorCrew,
    CrewTimes,
    are_too_many,
)
from distsummary.landscapes.run.scheduler import Scheduler
from distsummary.landscapes.run.worker_failures import ChunkFailedError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("ray_cluster")

ON_CPU = {"num_cpus": 1.0}
ON_GPU = {"num_gpus": 1.0, "num_cpus": 0.0}  # the cluster has none
AMPLE = {"num_cpus": 64.0}  # nor as many of these


class Applier:
    """A worker that applies a function to the numbers of rows; `begin` returns its GPUs."""

    def __init__(self, function: Callable[[int], int] = abs, *, gpus: float = 0.0) -> None:
        self._function, self._gpus = function, gpus

    def begin(self) -> float:
        if self._function is None:
            raise ZeroDivisionError("at the beginning")
        return self._gpus

    def work(self, chunks: list[Chunk]) -> list[ChunkResult]:
        found = [self._function(chunk.row) for chunk in chunks]
        return [ChunkResult(seconds=0.0, measured=np.full((1, 1), number)) for number in found]


class Numbers(Scheduler):
    """The numbers below `count` as rows of a chunk each."""

    def __init__(self, count: int = 4) -> None:
        super().__init__([Chunk(plane=0, kind="grid", row=row, columns=(0,)) for row in range(count)])
        self.blamed: list[bool] = []

    @property
    def found(self) -> dict[int, float]:
        return {chunk.row: values.item() for chunk, values in self.results.items()}

    def lost(self, worker: str, *, was_at_it: bool = True) -> None:
        self.blamed.append(was_at_it)
        super().lost(worker, was_at_it=was_at_it)


def do(crew: ActorCrew, count: int = 4) -> Numbers:
    """Have a crew apply its function to the numbers below `count`."""
    numbers = Numbers(count)
    crew.run(numbers, lambda _: 1, lambda worker, chunk, result: numbers.done(worker, chunk, result.measured))
    return numbers


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
    with crew_of(once(tmp_path / "flag"), [ON_CPU] * 2) as crew:
        work = do(crew, 9)
        assert crew.names == ["worker-0", "worker-1", "worker-2"]
        do(crew, 2)  # the same actors
        assert len(crew.names) == 3
    assert work.found == {number: number for number in range(9)}
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
        do(crew)
    assert str(failed.value).startswith(said)


def test_a_worker_that_died_of_earlier_work_is_not_blamed_for_later_work(tmp_path: Path) -> None:
    with crew_of(once(tmp_path / "flag")) as crew:
        crew.begin()
        [chunk] = Numbers(1).next_chunks("worker-0")
        crew._ask("worker-0", [chunk])  # as if another had ended this work
        assert do(crew, 3).blamed == [False]


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
        do(crew)
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
        do(crew)
        assert kinds(crew)[0] == UNRESERVED
        assert all(ON_GPU.keys() != kind.keys() for kind in kinds(crew))
    assert given_up == [True]
    assert caplog.text.count("no test worker started in 0 s") == 1


def test_it_works_next_to_those_that_wait_for_cpus() -> None:
    with crew_of(resources=[AMPLE], times={"start_s": 0.0}) as crew:
        do(crew)
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
        do(crew)


class TwoArgumentsError(Exception):
    """Python pickles it, and cannot unpickle it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")
        self.add_note("and a note")


def test_each_worker_may_fail_to_begin_before_all_are_given_up() -> None:
    failed = f"{NOT_BEGUN}x"
    assert [are_too_many([failed] * count, 3) for count in (1, 2, 3)] == [False, False, True]
    assert not are_too_many([failed] * 3 + ["of a signal"], 3), "only MAX_DEATHS of several kinds are"
    signals = ["of a signal"] * MAX_DEATHS
    assert not are_too_many(signals[1:], 1)
    assert are_too_many(signals, 1)


def raise_it(error: Exception) -> Callable[[int], int]:
    def function(value: int) -> int:
        raise error

    return function


def raise_two_arguments(value: int) -> int:
    raise TwoArgumentsError("in the", "work")


def test_what_a_worker_raises_is_the_cause_with_its_traceback_behind_it() -> None:
    with (
        crew_of(raise_it(ZeroDivisionError("of the user"))) as crew,
        pytest.raises(ChunkFailedError) as failed,
    ):
        do(crew)
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert "raise error" in str(failed.value.__cause__.__cause__)
    with (
        crew_of(raise_it(InvalidValueError("our own"))) as crew,
        pytest.raises(InvalidValueError, match=r"our own"),
    ):
        do(crew)


def test_an_error_that_cannot_be_unpickled_is_quoted_with_its_notes_and_kills_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        crew_of(raise_two_arguments) as crew,
        pytest.raises(ChunkFailedError) as failed,
    ):
        do(crew)
    assert str(failed.value.cause).endswith("TwoArgumentsError: in the work")
    assert failed.value.cause.__notes__ == ["and a note"]
    assert "died" not in caplog.text


def test_an_error_at_the_beginning_is_reported_in_one_line() -> None:
    said = r"ZeroDivisionError: at the beginning when it began$"
    with crew_of(None) as crew, pytest.raises(LandscapeError, match=said) as failed:
        crew.begin()
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
    with crew_of(function, [ON_CPU] * 2) as crew, pytest.raises(ChunkFailedError):
        do(crew)
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

"""A crew of actors does its work whichever of them die, fall silent, never start or raise."""

import gc
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from distsummary.base import actor_calls
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.worker import ChunkResult
from distsummary.landscapes.run import actor_crew
from distsummary.landscapes.run.actor_crew import ActorCrew
from distsummary.landscapes.run.scheduler import Scheduler
from distsummary.landscapes.run.worker_failures import ChunkFailedError
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.usefixtures("ray_cluster")

ON_CPU = {"num_cpus": 1.0}
ON_TWO_CPUS = {"num_cpus": 2.0}
ON_GPU = {"num_gpus": 1.0, "num_cpus": 0.0}  # the cluster has none


class Applier:
    """A worker that applies a function to the numbers of rows; `begin` returns its GPUs.

    With a function of None it raises when it begins, and with two CPUs its process dies.
    """

    def __init__(self, function: Callable[[int], int] = abs, *, gpus: float = 0.0) -> None:
        self._function, self._gpus = function, gpus

    def begin(self) -> float:
        if self._function is None:
            raise ZeroDivisionError("at the beginning")
        if ray.get_runtime_context().get_assigned_resources().get("CPU") == 2:
            os.kill(os.getpid(), signal.SIGKILL)
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

    def lost(self, worker: str, *, was_at_it: bool = True) -> bool:
        self.blamed.append(was_at_it)
        return super().lost(worker, was_at_it=was_at_it)


def do(crew: ActorCrew, count: int = 4) -> Numbers:
    """Have a crew apply its function to the numbers below `count`."""
    numbers = Numbers(count)
    crew.run(numbers, lambda _: 1, lambda worker, chunk, result: numbers.done(worker, chunk, result.measured))
    return numbers


def crew_of(function: Any = abs, resources: Any = (ON_CPU,), **options: Any) -> ActorCrew:
    return ActorCrew(Applier, [function], resources, name="test", beginning="when it began", **options)


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how long a crew waits: `times(SILENT_S=1.0)`."""

    def change(**seconds: float) -> None:
        for name, value in seconds.items():
            monkeypatch.setattr(actor_calls if name == "BEGIN_S" else actor_crew, name, value)

    change(BEGIN_S=PATIENCE_S, WAIT_S=0.1)
    return change


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


def test_a_dead_worker_is_made_again_in_its_slot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A single slot: of two, the other may finish the work before the death is noticed.
    with crew_of(once(tmp_path / "flag")) as crew:
        work = do(crew, 9)
        do(crew, 2)  # the same actor
        assert crew.names == ["worker-0"]
    assert work.found == {number: number for number in range(9)}
    [died] = [message for message in caplog.messages if "died" in message]
    assert re.match(r"test worker-0 died \(", died)
    assert len(died) < 200
    assert "\n" not in died


def test_a_slot_is_filled_again_as_long_as_chunks_finish_between_its_deaths(tmp_path: Path) -> None:
    def function(value: int) -> int:
        flag = tmp_path / str(value)
        if value % 2 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    with crew_of(function) as crew:
        work = do(crew, 10)
    assert len(list(tmp_path.iterdir())) == 5
    assert work.found == {number: number for number in range(10)}


def test_three_deaths_without_a_result_end_the_last_slot_with_a_remedy() -> None:
    with (
        crew_of(die, remedy="do something else") as crew,
        pytest.raises(LandscapeError, match=r"; do something else$") as failed,
    ):
        do(crew)
    assert str(failed.value).startswith("the test worker died 3 times without a result (")


def test_what_can_not_begin_in_one_slot_is_done_by_the_others_and_its_place_is_not_taken_again(
    tmp_path: Path, times: Callable[..., None]
) -> None:
    has_ended = tmp_path / "ended"

    def function(value: int) -> int:
        wait_for(has_ended.exists)
        return value

    class Noticing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "died 3 times without a result" in record.getMessage():
                has_ended.touch()

    handler = Noticing()
    logging.getLogger(actor_crew.__name__).addHandler(handler)
    times(GROW_S=0.0)
    try:
        with crew_of(function, [ON_CPU, ON_TWO_CPUS], more=lambda points: [ON_TWO_CPUS]) as crew:
            assert do(crew).found == {number: number for number in range(4)}
            assert crew.names == ["worker-0", "worker-1"]
            assert list(crew.begun) == ["worker-0"]
    finally:
        logging.getLogger(actor_crew.__name__).removeHandler(handler)


def test_slots_that_become_free_are_taken_if_they_are_of_the_same_kind(times: Callable[..., None]) -> None:
    times(GROW_S=0.0)
    asked: list[int] = []

    def more(points: int) -> list[dict[str, float]]:
        asked.append(points)
        return [ON_GPU, ON_CPU] if len(asked) == 1 else []

    with crew_of(more=more) as crew:
        wait_for(lambda: bool(do(crew) and asked))
        assert crew.names == ["worker-0", "worker-1"]
        wait_for(lambda: bool(do(crew) and len(crew.begun) == 2))


def test_a_crew_of_which_no_worker_begins_ends_with_what_ray_says(times: Callable[..., None]) -> None:
    times(BEGIN_S=0.5)
    said = r"^no test worker began within 0\.5 s: "
    with crew_of(resources=[ON_GPU]) as crew, pytest.raises(LandscapeError, match=said):
        do(crew)


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


def test_a_silent_worker_is_reported_with_its_process_and_may_be_killed(tmp_path, ender, times):
    times(SILENT_S=1.0)
    with crew_of(once(tmp_path / "flag", signal.SIGSTOP)) as crew:
        do(crew)
    assert re.fullmatch(
        r"test worker-0 \(process \d+ on [\w.:]+\) has not answered for \d+ s; if it hangs, "
        "kill that process: another takes its place",
        ender.texts[0],
    )


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


def test_an_error_that_cannot_be_unpickled_is_quoted_with_its_notes_and_kills_no_worker(caplog):
    with crew_of(raise_two_arguments) as crew, pytest.raises(ChunkFailedError) as failed:
        do(crew)
    assert str(failed.value.cause).endswith("TwoArgumentsError: in the work")
    assert failed.value.cause.__notes__ == ["and a note"]
    assert "died" not in caplog.text


def test_an_error_at_the_beginning_is_reported_in_one_line() -> None:
    said = r"ZeroDivisionError: at the beginning when it began$"
    with crew_of(None) as crew, pytest.raises(LandscapeError, match=said) as failed:
        crew.begin()
    assert type(failed.value.__cause__) is ZeroDivisionError


def test_errors_in_other_workers_are_not_printed_by_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
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


def test_the_resources_of_a_crew_are_free_when_it_has_ended(times: Callable[..., None]) -> None:
    times(RETURN_S=PATIENCE_S)
    for _ in range(2):
        with crew_of(resources=[ON_CPU] * 4) as crew:
            crew.begin()
        assert ray.available_resources()["CPU"] == 4


def test_what_others_have_taken_is_waited_for_no_longer_than_said(times: Callable[..., None]) -> None:
    times(RETURN_S=0.5)
    with crew_of() as crew:
        crew.begin()
        group = ray.util.placement_group([{"CPU": 1}] * 4)  # it waits for the CPU of the crew
    try:
        assert group.wait(PATIENCE_S)
    finally:
        ray.util.remove_placement_group(group)


def test_an_interrupt_while_workers_are_ended_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    crew = crew_of(resources=[ON_CPU] * 2)
    crew.begin()
    monkeypatch.setattr(ray, "available_resources", interrupt)
    with pytest.raises(KeyboardInterrupt):
        crew.__exit__()

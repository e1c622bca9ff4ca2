"""Phases with clocks that the tests turn: what each phase took, and what interrupts it."""

import copy
import gc
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distsummary.diagnosis.measured_steps import is_measured, next_measured
from distsummary.format.own_tags import EVERY, OWN_MS, WAIT_MS
from distsummary.format.records import Value
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import Callback, RunContext
from distsummary.training.run import Run
from distsummary.training.timing.phases import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FIRST_MEASURED,
    FORWARD,
    MEASURED,
    PYTHON,
    RECORDING,
    REST,
    UNKNOWN,
    WAIT,
    Phases,
    ThreadClocks,
)
from distsummary.training.timing.worker_queues import WorkerQueues


class Turned(ThreadClocks):
    """Clocks that advance only by `turn`, in milliseconds, and by `read_ms` when the CPU time is read."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.queue_s = self.read_ms = 0.0
        self.wall, self.cpu, self.queue = (lambda: self.wall_s, self._read, lambda: self.queue_s)

    def _read(self) -> float:
        self.turn(cpu=self.read_ms)
        return self.cpu_s

    def turn(self, cpu: float = 0.0, blocked: float = 0.0, queue: float = 0.0) -> None:
        self.wall_s += (cpu + blocked + queue) / 1e3
        self.cpu_s += cpu / 1e3
        self.queue_s += queue / 1e3

    def close(self) -> None:
        pass


@pytest.fixture
def clocks() -> Turned:
    return Turned()


@pytest.fixture
def phases(clocks: Turned) -> Iterator[Phases]:
    gc.disable()  # its pauses would be measured
    found = Phases(clocks)
    yield found
    found.close()
    gc.enable()


def of(found: dict[str, float], phase: str) -> tuple[float, float, float]:
    names = [f"zz_perf/phase/{phase}/{measure}" for measure in ("cpu_ms", "blocked_ms", "queue_ms")]
    cpu, blocked, queue = (round(found[name], 6) for name in names)
    return cpu, blocked, queue


def test_a_step_is_divided_and_waiting_for_others_is_not_the_ranks_own(clocks: Turned, phases: Phases):
    phases.enter(DATA)
    clocks.turn(cpu=1, blocked=5)
    phases.enter(FORWARD)
    clocks.turn(cpu=10, queue=2)
    phases.enter(BACKWARD)
    clocks.turn(cpu=20)
    phases.begin_wait()
    clocks.turn(cpu=1, blocked=30)
    phases.end_wait()
    phases.enter(REST)
    found = phases.take(RECORDING)
    assert of(found, DATA) == (1, 5, 0)
    assert of(found, FORWARD) == (10, 0, 2)
    assert of(found, BACKWARD) == (20, 0, 0)
    assert of(found, WAIT) == (1, 30, 0)
    assert found[OWN_MS] == pytest.approx(36)
    assert found[WAIT_MS] == pytest.approx(31)
    clocks.turn(cpu=2)
    found = phases.take(RECORDING)
    assert of(found, RECORDING) == (2, 0, 0)  # counts to the next step
    assert of(found, DATA) == (0, 0, 0)


def test_garbage_collection_interrupts_a_phase_and_so_does_a_checkpoint(clocks: Turned, phases: Phases):
    class Turns:
        def __del__(self) -> None:
            clocks.turn(cpu=7)

    phases.enter(FORWARD)
    clocks.turn(cpu=1)
    one = Turns()
    one.me = one  # type: ignore[attr-defined]
    del one
    gc.collect()
    clocks.turn(cpu=2)
    with phases.within(CHECKPOINT):
        clocks.turn(blocked=4)
    clocks.turn(cpu=3)
    found = phases.take(REST)
    assert of(found, PYTHON) == (7, 0, 0)
    assert of(found, CHECKPOINT) == (0, 4, 0)
    assert of(found, FORWARD) == (6, 0, 0)


def test_other_threads_do_not_change_the_phase(clocks: Turned, phases: Phases) -> None:
    phases.enter(FORWARD)
    thread = threading.Thread(target=phases.enter, args=(DATA,))
    thread.start()
    thread.join()
    clocks.turn(cpu=1)
    assert of(phases.take(REST), FORWARD) == (1, 0, 0)


def test_the_clocks_of_this_thread_continue_and_are_closed() -> None:
    clocks = ThreadClocks()
    first = clocks.wall(), clocks.cpu(), clocks.queue()
    sum(range(100_000))
    second = clocks.wall(), clocks.cpu(), clocks.queue()
    assert second[0] > first[0]
    assert second[1] > first[1]
    assert second[2] >= first[2]
    clocks.close()
    assert clocks.queue() == 0.0


def test_a_copy_of_the_clocks_reads_and_closes_no_file_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    clocks = ThreadClocks()
    twin = copy.deepcopy(clocks)
    clocks.close()
    with (tmp_path / "mine").open() as mine:  # has the number that is free now
        clocks.queue()
        clocks.close()
        twin.queue()
        twin.close()
        assert mine.read() == "mine"


class Keeps(Callback):
    """Keeps what a step logs."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.logged.append(dict(run_context.step.logged))


def test_a_run_of_several_ranks_measures_its_phases_and_a_run_of_one_does_not() -> None:
    for world_size in (1, 2):
        keeps = Keeps()
        with Run(callbacks=keeps, topology=Topology(rank=0, world_size=world_size)) as run:
            for number in run.steps(range(3)):
                if number == 1:
                    with run.eval() as evaluation:
                        evaluation.log(accuracy=1.0)
        names = {name for logged in keeps.logged for name in logged if name.startswith("zz_perf/phase/")}
        if world_size == 1:
            assert names == set()
            continue
        measured = {name.split("/")[2] for name in names}
        assert measured - {PYTHON} == {DATA, REST, RECORDING, EVALUATION, WAIT}
        assert "zz_perf/phase/evaluation/cpu_ms" not in keeps.logged[0]
        assert keeps.logged[1]["zz_perf/phase/evaluation/cpu_ms"] > 0
        assert (
            keeps.logged[2]["zz_perf/phase/evaluation/cpu_ms"] == 0
        )  # rows of equal tags are written quicker
        assert all({OWN_MS, WAIT_MS} <= logged.keys() for logged in keeps.logged)
    assert not [call for call in gc.callbacks if "Phases" in repr(call)]


@pytest.mark.parametrize("has_numbers", [True, False])
def test_steps_that_log_begins_last_from_one_log_to_the_next(monkeypatch, clocks, has_numbers):
    monkeypatch.setattr("distsummary.training.timing.phases.ThreadClocks", lambda: clocks)
    gc.disable()
    keeps = Keeps()
    with Run(callbacks=keeps, topology=Topology(rank=0, world_size=2)) as run:
        for number in range(1, 5):
            clocks.turn(cpu=number, blocked=2)
            run.log({"loss": number}, step=10 * number if has_numbers else None)
    gc.enable()
    assert [of(logged, REST) for logged in keeps.logged[1:-1]] == [(3, 0, 0), (4, 0, 0)]
    assert [of(logged, WAIT) for logged in keeps.logged[1:-1]] == [(0, 2, 0)] * 2  # for all that is known
    assert [logged[OWN_MS] for logged in keeps.logged[1:-1]] == pytest.approx([3, 4])
    assert len(keeps.logged) == 4


def test_a_step_that_ends_after_its_loop_has_no_phases() -> None:
    keeps = Keeps()
    with Run(callbacks=keeps, topology=Topology(rank=0, world_size=2)) as run:
        steps = run.steps(range(9))
        next(steps)
        run.log(loss=1.0)
        for _ in run.steps(range(2)):
            pass
    assert [OWN_MS in logged for logged in keeps.logged] == [False, True, True]


def test_no_step_can_be_late_after_the_end_of_the_loop() -> None:
    reported: list[tuple[str, bool]] = []

    class Reports(Callback):
        def on_train_epoch_end(self, run_context: RunContext) -> None:
            reported.append(("epoch", run_context.step.phases.is_in_loop))

        def on_train_end(self, run_context: RunContext) -> None:
            reported.append(("training", run_context.step.phases.is_in_loop))

    def by_log(run: Run) -> None:
        run.log(loss=1.0)
        run.log(loss=2.0)

    def by_next_step(run: Run) -> None:
        with run.next_step():
            pass

    for loop in (by_log, by_next_step):
        with Run(callbacks=Reports(), topology=Topology(rank=0, world_size=2)) as run:
            loop(run)
            phases = run.context.step.phases
            assert phases.is_in_loop
        assert not phases.is_in_loop
    assert reported == [("epoch", False), ("training", False)] * 2


def test_no_step_can_be_late_after_the_loader_has_raised() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with Run(topology=Topology(rank=0, world_size=2)) as run:
        with pytest.raises(ZeroDivisionError):
            list(run.steps(batches()))
        phases = run.context.step.phases
        assert (phases.is_in_loop, phases.current) == (False, REST)
        for _ in run.steps(range(3)):
            assert phases.is_in_loop
            break
        assert (phases.is_in_loop, phases.current) == (False, REST)
        next(run.steps(range(1)))
        with pytest.raises(ZeroDivisionError), run:
            raise ZeroDivisionError
    assert not phases.is_in_loop


class Snapshots(Keeps):
    """Records arrays, and keeps the phases in which they were copied and after that."""

    plain_before = -math.inf

    def __init__(self) -> None:
        super().__init__()
        self.recorder, self.phases = self, list[str]()  # type: ignore[assignment]

    def gather(self) -> None:
        pass

    def snapshot(self, plugin: str, name: str, value: object) -> Value:
        self.phases.append(self.context.step.phases.current)
        return Value(plugin, name, value)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        self.context = run_context


def test_arrays_are_copied_in_the_phase_of_recording() -> None:
    keeps = Snapshots()
    with Run(callbacks=keeps, topology=Topology(rank=0, world_size=2)) as run:
        for number in run.steps(range(2)):
            run.tensor("number", number)
            keeps.phases.append(run.context.step.phases.current)
    assert keeps.phases == [RECORDING, REST] * 2


def test_a_thread_that_is_interrupted_while_clocks_are_read_was_not_blocked(clocks: Turned) -> None:
    read_cpu = clocks.cpu
    late_ms = [0.0]

    def cpu() -> float:  # a system call, at whose end the thread may have to wait for a processor
        found = read_cpu()
        clocks.turn(queue=late_ms.pop() if late_ms else 0.0)
        return found

    clocks.cpu = cpu
    phases = Phases(clocks)
    phases.enter(BACKWARD)
    clocks.turn(cpu=20, blocked=2)
    late_ms.append(7.0)
    phases.enter(REST)
    clocks.turn(cpu=1)
    found = phases.take(RECORDING)
    phases.close()
    assert of(found, BACKWARD) == (20, 2, 7)
    assert of(found, REST) == (1, 0, 0)


def test_what_blocks_a_rank_while_it_computes_is_waiting_if_peers_or_a_device_may(clocks, phases):
    phases.is_computing_shared = True
    phases.enter(DATA)
    clocks.turn(cpu=1, blocked=2, queue=4)
    phases.enter(FORWARD)
    clocks.turn(cpu=10, blocked=20, queue=30)
    found = phases.take(REST)
    assert of(found, DATA) == (1, 2, 4)
    assert of(found, FORWARD) == (10, 0, 30)
    assert of(found, WAIT) == (0, 20, 0)
    assert found[OWN_MS] == pytest.approx(13)
    assert found[WAIT_MS] == pytest.approx(20)


def test_a_collective_in_a_phase_is_waiting_and_what_else_blocks_is_the_ranks_own(clocks, phases):
    phases.enter(FORWARD)
    clocks.turn(cpu=1, blocked=7)
    phases.begin_wait()
    phases.begin_wait()  # one that another one calls
    assert phases.current == FORWARD
    clocks.turn(cpu=2, blocked=20, queue=5)
    phases.end_wait()
    clocks.turn(blocked=10)
    phases.end_wait()
    clocks.turn(cpu=4)
    phases.enter(REST)
    found = phases.take(RECORDING)
    assert of(found, FORWARD) == (5, 7, 0)
    assert of(found, WAIT) == (2, 30, 5)
    assert found[OWN_MS] == pytest.approx(12)
    phases.every = 8
    phases.begin_step(1)
    phases.begin_wait()
    clocks.turn(blocked=1)
    phases.end_wait()
    phases.begin_step(next_measured(1, 8))
    clocks.turn(cpu=1)
    found = phases.take(RECORDING)
    assert (found[OWN_MS], found[WAIT_MS]) == (pytest.approx(1), 0)


def test_what_blocks_a_backward_pass_in_which_ddp_waits_is_waiting(clocks: Turned, phases: Phases) -> None:
    phases.enter(FORWARD)
    phases.is_backward_shared = True  # while the forward pass continues
    clocks.turn(blocked=2)
    phases.begin_backward()
    clocks.turn(cpu=1, blocked=7, queue=3)
    phases.end_backward()
    assert phases.current == REST
    phases.begin_backward()  # such as of another model
    clocks.turn(blocked=5)
    phases.end_backward()
    found = phases.take(RECORDING)
    assert of(found, FORWARD) == (0, 2, 0)
    assert of(found, BACKWARD) == (1, 5, 3)
    assert of(found, WAIT) == (0, 7, 0)


def test_where_it_is_known_that_all_gradients_are_there_only_what_follows_is_waiting(clocks, phases):
    phases.is_backward_shared = True
    phases.begin_backward()
    assert phases.waits_after_gradients
    phases.begin_gradients()
    clocks.turn(cpu=1, blocked=7)  # such as a hook that sleeps
    phases.end_gradients()
    clocks.turn(cpu=1, blocked=3)
    phases.end_backward()
    found = phases.take(RECORDING)
    assert of(found, BACKWARD) == (2, 7, 0)
    assert of(found, WAIT) == (0, 3, 0)
    phases.every = 8
    phases.begin_step(1)  # it is not marked: its time is in no other
    phases.is_backward_shared = True
    phases.begin_backward()
    assert not phases.waits_after_gradients
    clocks.turn(cpu=50)
    phases.end_gradients()
    phases.end_backward()
    phases.begin_step(next_measured(1, 8))
    clocks.turn(cpu=1)
    assert of(phases.take(RECORDING), BACKWARD) == (0, 0, 0)


def test_of_several_models_each_backward_pass_may_wait_for_other_ranks(clocks: Turned, phases: Phases):
    phases.is_backward_shared = True  # both are ready before the first of two passes
    phases.shared_models |= {1, 2}
    for _ in range(2):
        phases.begin_backward()
        phases.begin_gradients()
        clocks.turn(cpu=1, blocked=2)
        phases.end_gradients()
        clocks.turn(blocked=3)
        phases.end_backward()
    found = phases.take(RECORDING)
    assert of(found, BACKWARD) == (2, 4, 0)
    assert of(found, WAIT) == (0, 6, 0)


class Starved(WorkerQueues):
    """Workers that waited for so long since the last step."""

    waited_ms = 0.0, 0.0

    def take(self) -> dict[int, float]:
        return {pid: waited / 1e3 for pid, waited in enumerate(self.waited_ms)}


def test_a_batch_that_is_late_since_workers_waited_for_a_processor_is_not_the_ranks_own(clocks: Turned):
    gc.disable()
    phases, reported = Phases(clocks, workers=(workers := Starved())), []
    for first, second, late in ((1, 4, 0), (0, 0, 3), (0, 0, 3), (9, 10, 3)):
        workers.waited_ms = first, second
        phases.enter(DATA)
        clocks.turn(cpu=1, blocked=late, queue=2)
        phases.enter(REST)
        clocks.turn(blocked=5)
        reported.append(phases.take(RECORDING))
    phases.close()
    gc.enable()
    assert [of(found, DATA) for found in reported] == [
        (1, 0, 2),
        (1, 0, 5),  # the one that waited longest waited for 4 ms, of which 3.6 ms count in the next step
        (1, 2.46, 2.54),  # 0.9 * 0.6 ms are left
        (1, 0, 5),
    ]
    assert all(of(found, REST) == (0, 5, 0) for found in reported)


def test_short_steps_are_marked_at_every_few_steps_and_marks_cost_less_than_a_share(clocks, phases):
    marks: list[bool] = []
    phases.on_marked = marks.append

    def steps(numbers: range, cpu: float) -> dict[int, dict[str, float]]:
        found = {}
        for step in numbers:
            phases.enter(DATA)
            clocks.turn(cpu=cpu / 2)
            phases.enter(FORWARD)
            assert phases.current == (FORWARD if is_measured(step, phases.every) else UNKNOWN)
            clocks.turn(cpu=cpu / 2)
            if reported := phases.end_step(step):
                found[step] = reported
                assert reported[OWN_MS] == pytest.approx(cpu)  # of this step alone
        return found

    first = steps(range(1, 3 * FIRST_MEASURED), 2.0)
    assert {*range(1, FIRST_MEASURED + 1)} <= first.keys()
    every = phases.every
    assert 1 < every <= 8
    assert [step for step in first if step > FIRST_MEASURED] == [
        step for step in range(FIRST_MEASURED + 1, 3 * FIRST_MEASURED) if is_measured(step, every)
    ]
    assert all(EVERY not in reported for step, reported in first.items() if step < FIRST_MEASURED)
    assert all(reported[EVERY] == every for step, reported in first.items() if step >= FIRST_MEASURED)
    assert marks[:2] == [False, True]
    steps(range(3 * FIRST_MEASURED, 3 * FIRST_MEASURED + 2 * every * MEASURED), 30.0)
    assert phases.every == 1  # steps have become so long that marks take less than the share


@pytest.mark.parametrize("apart", [33, 40, 150])
def test_where_some_steps_are_long_more_are_marked_though_the_first_is_not(clocks, phases, apart):
    """Rare ones, which take so much of the time that marks are a small part of it."""
    chosen, found = [], []
    first = next(step for step in range(1001, 1100) if not is_measured(step, 8))
    for step in range(1, 2001):
        is_long = step >= first and (step - first) % apart == 0
        phases.enter(FORWARD)
        clocks.turn(cpu=2, blocked=1500 if is_long else 0)
        is_marked = bool(phases.end_step(step))
        chosen.append(phases.every)
        found += [is_marked] * is_long
    assert {*chosen[100:1000]} == {8}
    assert not found[0]
    assert sum(found) >= 3


def test_what_marks_cost_is_weighed_again(clocks: Turned, phases: Phases) -> None:
    clocks.read_ms = 0.05  # in the first steps, in which caches are cold
    for step in range(1, 1001):
        phases.enter(FORWARD)
        clocks.turn(cpu=12)
        phases.end_step(step)
        if step == 2 * FIRST_MEASURED:
            assert phases.every > 1
            clocks.read_ms = 0.0
    assert phases.every == 1


def test_waiting_for_a_processor_does_not_make_a_step_longer(clocks: Turned, phases: Phases) -> None:
    for step in range(1, 1001):
        phases.enter(FORWARD)
        clocks.turn(cpu=2, queue=500)
        phases.end_step(step)
    assert phases.every > 1


def test_garbage_collected_while_a_step_becomes_marked_is_of_no_unknown_phase(clocks: Turned, phases: Phases):
    def collect(is_marked: bool) -> None:
        clocks.turn(cpu=3)
        gc.collect()

    phases.on_marked = collect
    phases.every = 2
    for step in range(1, 6):
        phases.enter(FORWARD)
        clocks.turn(cpu=1)
        found = phases.end_step(step)
        if step > 1:
            assert found[OWN_MS] == pytest.approx(1) if is_measured(step, 2) else found == {}


def test_a_phase_that_interrupts_an_unknown_one_may_end_in_a_marked_step(clocks: Turned, phases: Phases):
    phases.every = 2
    phases.begin_step(1)
    phases.enter(FORWARD)
    with phases.within(EVALUATION):
        phases.end_step(1)  # such as by an iterator that is released
        clocks.turn(cpu=1)
    clocks.turn(cpu=2)
    assert of(phases.end_step(2), REST) == (2, 0, 0)


def test_a_step_that_is_not_the_next_one_is_marked_by_its_own_number(clocks: Turned, phases: Phases) -> None:
    phases.every = 4
    assert [is_measured(step, 4) for step in (11, 12, 26)] == [False, False, True]
    phases.begin_step(11)
    clocks.turn(cpu=5)
    assert phases.end_step(11) == {}
    clocks.turn(cpu=5)
    phases.begin_step(26)
    clocks.turn(cpu=1)
    assert phases.end_step(26)[OWN_MS] == pytest.approx(1)


def test_the_first_step_after_a_loop_is_marked_whatever_comes_between(clocks: Turned, phases: Phases) -> None:
    phases.every, step, found = 4, 0, dict[int, dict[str, float]]()
    for length in (18, 18, 18, 3, 15, 1):
        for _ in range(length):
            step += 1
            phases.enter(FORWARD)
            clocks.turn(cpu=1)
            found[step] = phases.end_step(step)
        phases.end_loop(step)
        clocks.turn(blocked=900)
    assert not any(is_measured(step, 4) for step in (19, 37, 55, 58))
    assert [of(found[step], REST) for step in (19, 37, 55)] == [(0, 900, 0)] * 3
    assert is_measured(73, 4)
    assert not any(EVERY in found[step] for step in (19, 37, 55, 73))  # each stands for itself alone
    assert found[58] == {}  # it follows a short loop: marks would take too much time

"""What a loop shares with its callbacks beyond MindSpore's parameters is typed, and no entry of these."""

from types import SimpleNamespace

import pytest

from distsummary.rundir.topology import Topology
from distsummary.training import step_context
from distsummary.training.callbacks import Callback, CallbackParams, RunContext, step_of
from distsummary.training.run import Run
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import CHECKPOINT


class Looks(Callback):
    """Keeps the StepContext of each hook, and asks for a call after the end of each step."""

    def __init__(self) -> None:
        self.found: list[StepContext] = []
        self.order: list[str] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        self.found.append(run_context.step)

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.found.append(run_context.step)
        run_context.step.after_hook.append(lambda: self.order.append("after"))
        self.order.append("hook")

    def on_eval_begin(self, run_context: RunContext) -> None:
        self.found.append(run_context.step)


def test_all_hooks_of_a_run_share_one_and_its_parameters_have_no_entry_of_it() -> None:
    looks = Looks()
    with Run(callbacks=[looks], topology=Topology(world_size=2)) as run:
        for _ in run.steps(range(2)):
            run.log(loss=0.5)
        with run.eval() as evaluation:
            evaluation.log(accuracy=0.5)
        assert run.context.step.phases is not None
    assert {id(one) for one in looks.found} == {id(run.context.step)}
    assert not run.context.original_args().keys() & set(StepContext.__slots__)


def test_what_a_callback_asks_for_is_called_once_when_all_have_seen_the_hook() -> None:
    looks, last = Looks(), Looks()
    last.order = looks.order
    with Run(callbacks=[looks, last]) as run:
        list(run.steps(range(2)))
    assert looks.order == ["hook", "hook", "after", "after"] * 2


def test_a_loop_that_is_not_ours_has_an_empty_one() -> None:
    for context in (RunContext(CallbackParams()), object()):
        step = step_of(context)
        assert (step.phases, step.ended_late, step.finite_check) == (None, False, None)
        step.report_finding("cause", "evidence")
        with step.within(CHECKPOINT):
            pass


def test_the_time_within_a_phase_is_added_up_also_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr(step_context, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    step = StepContext()
    with step.within(CHECKPOINT):
        pass
    with pytest.raises(OSError, match="full"), step.within(CHECKPOINT):
        raise OSError("full")
    assert step.spent_s == {CHECKPOINT: 2.5}

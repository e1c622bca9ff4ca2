"""DrivenRun: the Run of a training whose loop is MindSpore's, which reports where its steps begin and end."""

from typing import Any

from distsummary.base.guard import guarded
from distsummary.model.model_run import ModelRun
from distsummary.training.timing.phases import DATA, EVALUATION


class DrivenRun(ModelRun):
    """A ModelRun whose steps are made elsewhere; steps are numbered by that loop, and may jump.

    The time from the end of a step to the beginning of the next one counts as waiting for data.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._asked_s = self._clock()

    @property
    def is_training(self) -> bool:
        """Whether the training has begun; False for a run that only evaluates."""
        return self._is_training

    def begin(self) -> None:
        """Begin the training; raises what the callbacks raise."""
        self._begin_stepping()
        self._in_epochs = True
        self._begin_training()

    def begin_epoch(self, number: int) -> None:
        """Begin an epoch, counted from 1."""
        self._settle_epoch()
        self._params["cur_epoch_num"] = number
        self._begin_epoch(None)
        self._ask()

    @guarded()
    def begin_step(self, run_context: Any) -> None:
        """Begin the step of MindSpore's parameters, counted from 1 over all epochs, with its batch."""
        started_s = self._clock()
        theirs, params = run_context.original_args(), self._params
        params["cur_step_num"] = step = theirs["cur_step_num"]
        params["train_dataset_element"], params["net_outputs"] = theirs.get("train_dataset_element"), None
        self._data_wait_s = started_s - self._asked_s
        self._opener, self._body_start_s = self, started_s
        if step >= self._recorder.plain_before:
            self._call("on_train_step_begin")
            self._body_start_s = self._clock()
        if self._phases is not None:
            self._phases.is_in_loop = True
            self._phases.enter(self._body)

    @guarded()
    def end_step(self, run_context: Any) -> None:
        """End the step, with the outputs of the network; a step that has not begun begins before."""
        # A loop that calls the hooks by hand may not have reported the beginning of the step.
        if self._opener is None:
            self.begin_step(run_context)
        self._params["net_outputs"] = run_context.original_args()["net_outputs"]
        self._end_step(self._clock(), is_whole=True)
        # After the last step of an epoch no batch comes, but perhaps an evaluation.
        is_last = self._params["step_in_epoch"] == self._params["batch_num"]
        self._ask(EVALUATION if is_last else DATA)

    def note_evaluation(self) -> None:
        """Count the time since the last step as that of an evaluation whose hooks were not called."""
        self._step_context.spend(EVALUATION, self._clock() - self._asked_s)
        self._ask()

    def end_epoch(self) -> None:
        """End the epoch."""
        self._settle_epoch()

    def _ask(self, phase: str = DATA) -> None:
        """From now on, the next batch is awaited."""
        self._asked_s = self._clock()
        if self._phases is not None:
            self._phases.enter(phase)

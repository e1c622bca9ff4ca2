"""StepContext: what a loop and its callbacks share of the current step, beyond MindSpore's parameters."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from distsummary.format.records import Value
from distsummary.rundir.topology import Topology
from distsummary.training.finite import FiniteCheck
from distsummary.training.timing.loader_use import LoaderUse
from distsummary.training.values import Scalar

ENDED_LATE = (
    "the end of a step was noticed only at a later call on the run, so nothing was read from the model; "
    "write `for ... in run.steps(...)` and keep no other reference to the iterator, or call run.next_step"
)


class MeasuredPhases(Protocol):
    """The phases of the current step, see `phases.Phases`."""

    current: str
    is_in_loop: bool
    loader: LoaderUse

    def within(self, phase: str) -> contextlib.AbstractContextManager[None]:
        """Count what is done in the context as that phase."""


@dataclass(slots=True, kw_only=True)
class StepContext:
    """Made by the loop, and the same object in all hooks of a run.

    Attributes:
        topology: this rank's place among the ranks; None: the loop does not know it.
        logged, values: the numbers and the other values that were given since they were last recorded.
        phases: measures the phases of the step; None: the loop does not measure them.
        ended_late: the end of the step was noticed only at a later call, so that the model may have changed.
        finite_check: receives numbers of callbacks that are not finite; None: the loop checks none.
        report_finding: called with a cause and its evidence that a callback has found, from any thread.
        spent_s: seconds that were spent in phases which the loop or a callback marked by `within`.
        after_hook: called and removed when all callbacks have seen the current hook.
    """

    topology: Topology | None = None
    logged: dict[str, Scalar] = field(default_factory=dict)
    values: Sequence[Value] = ()
    phases: MeasuredPhases | None = None
    ended_late: bool = False
    finite_check: FiniteCheck | None = None
    report_finding: Callable[[str, str], None] = lambda cause, evidence: None
    after_hook: list[Callable[[], object]] = field(default_factory=list)
    spent_s: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """What is done in the context is a phase of its own, and adds to `spent_s`."""
        begun_s = time.perf_counter()
        try:
            with contextlib.nullcontext() if self.phases is None else self.phases.within(phase):
                yield
        finally:
            self.spend(phase, time.perf_counter() - begun_s)

    def spend(self, phase: str, seconds: float) -> None:
        """Add to `spent_s`."""
        self.spent_s[phase] = self.spent_s.get(phase, 0.0) + seconds

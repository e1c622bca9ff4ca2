"""A training that a host, such as Lightning, drives: what a callback on each of its ranks says of it."""

import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torch.optim import Optimizer

from distsummary.integrations.door import Door, close_door, follow, open_door
from distsummary.integrations.door_run import DoorRun, Training, begin_run
from distsummary.training.run import Run

VARIABLE = "DISTSUMMARY"  # the run dir of hosts that are given none


class Hosted:
    """Follows one training after the other, each by a door of its own; its run begins with the first step.

    Loss, learning rate and norm of the gradients are those of this rank. The numbers that the host reports,
    which are mostly means over the ranks, have the prefix `host/`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> None:
        self._run_dir = os.fspath(run_dir or os.environ.get(VARIABLE) or "runs/{time}")
        self._options = dict(options)
        self._door: Door | None = None

    @property
    def run(self) -> Run | None:
        """The open run, None before the first step and after the end."""
        found = None if self._door is None else self._door.run
        return None if found is None or found.run.is_closed else found.run

    def begin(self, *, optimizers: Iterable[Optimizer] = (), **options: Any) -> None:
        """A training begins; the one before has ended.

        Args:
            optimizers: those that were made before this call.
            options: arguments for `ds.init`, besides those that the user gave.
        """
        self.end()
        training = Training(run_dir=self._run_dir, options=options | self._options)

        def begin(optimizer: Optimizer) -> tuple[DoorRun | None, Optimizer | None]:
            return begin_run(training, optimizer)

        self._door = open_door(begin)
        for optimizer in optimizers:
            follow(optimizer)

    def log(self, numbers: Mapping[str, Any]) -> None:
        """The host reports numbers of the last step; anything else is left out."""
        found = {f"host/{name}": number for name, number in numbers.items() if _is_number(number)}
        if found and self.run is not None:
            self.run.log(found)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """The host has evaluated the model."""
        if self.run is not None:
            with self.run.eval() as evaluation:
                evaluation.log({name: number for name, number in metrics.items() if _is_number(number)})

    def end(self, error: BaseException | None = None) -> None:
        """The training has ended, or failed; without one, nothing is done."""
        run, door, self._door = self.run, self._door, None
        if door is not None:
            close_door(door)
        if run is not None:
            run.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (hasattr(value, "numel") and value.numel() == 1)

"""A training that a host, such as Lightning, drives: what a callback on each of its ranks says of it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from distsummary._init import init
from distsummary.base.checks import anchored
from distsummary.base.guard import Guard
from distsummary.base.terminal import announced
from distsummary.collect.config import read_config
from distsummary.integrations.deepspeed import follow_deepspeed
from distsummary.integrations.door_options import read_options
from distsummary.integrations.followed_run import FollowedRun, begin_run, flat, record
from distsummary.integrations.follower import Follower, follow, start_following, stop_following
from distsummary.rundir.topology import OPTIONS, RUN_DIR
from distsummary.training.run import Run

_guard = Guard()


class NotEnded(KeyboardInterrupt):
    """Internal: what a training was ended by that its host did not end; never raised."""


class Hosted:
    """Follows one training after the other, each by its own follower; its run begins with the first step.

    Loss, learning rate and norm of the gradients are those of this rank. The numbers that the host reports,
    of this rank or means over the ranks, have the prefix `host/`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, which precede those of DISTSUMMARY_OPTIONS. One with neither
            gives way to another that follows the same training.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> None:
        self._is_default = run_dir is None and not options
        self._run_dir = anchored(run_dir or os.environ.get(RUN_DIR) or "runs/{time}")
        self._options = dict(options)
        self._known: dict[str, Any] = {}  # arguments for `ds.init` by the host
        self._early: list[tuple[bool, Mapping[str, Any]]] = []  # before the run: is an evaluation, numbers
        self._last: Path | None = None  # the dir of the newest run
        self._is_late = False  # whether it was said that numbers come after the end
        self._follower: Follower | None = None

    @property
    def run(self) -> Run | None:
        """The open run, None before the first step and after the end."""
        found = None if self._follower is None else self._follower.run
        return None if found is None or found.run.is_closed else found.run

    def begin(self, *, optimizers: Iterable[Optimizer] = (), **options: Any) -> None:
        """A training begins; the one before has ended.

        Args:
            optimizers: those that were made before this call.
            options: arguments for `ds.init`, besides those that the user gave.
        """
        # One that its host has not ended was ended by an exception, which the host has caught.
        if self.run is not None:
            self.end(NotEnded("its host began another training"))
            # What was recorded of it is no earlier attempt of this one.
            options = {"on_existing": "new"} | options
        self.end()
        self._known = options

        def begin(
            optimizer: Optimizer, model: nn.Module | None
        ) -> tuple[FollowedRun | None, Optimizer | None]:
            chosen = self._known | read_options(os.environ.get(OPTIONS, "")) | self._options
            return begin_run(
                optimizer,
                model,
                run_dir=self._run_dir,
                options=chosen,
                has_reports=True,
                on_begin=self._record_early,
            )

        self._follower = start_following(begin, is_default=self._is_default)
        follow_deepspeed()
        for optimizer in optimizers:
            follow(optimizer)

    def set_config(self, config: Any) -> None:
        """The host reports the settings; after the first step they are recorded as a text, `host/config`."""
        if self._follower is None or self.run is None:
            self._known["config"] = config
        else:
            self._follower.call(self._add_config, config)

    def _add_config(self, config: Any) -> None:
        if self.run is not None:
            lines = [f"- {name}: {value}" for name, value in read_config(config).flat.items()]
            self.run.text("host/config", "\n".join(lines))

    def log(self, numbers: Mapping[str, Any]) -> None:
        """The host reports numbers of the last step; before the first one, they are kept for its run."""
        if self.run is not None and self._follower is not None:
            self._follower.call(self._log, numbers)
        elif self._follower is not None and self._follower.run is None:
            self._early.append((False, dict(numbers)))
        elif not self._is_late:
            self._is_late = True
            announced(
                f"distsummary: {', '.join(map(str, numbers))} and what comes after it are not recorded: the "
                "training has ended"
            )

    def _log(self, numbers: Mapping[str, Any]) -> None:
        if self.run is not None:
            record(self.run, "host/", numbers)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """The host has evaluated the model: before, in or after its training."""
        if self.run is not None:
            _evaluate(self.run, metrics)
        elif self._follower is not None and self._follower.run is None:
            self._early.append((True, dict(metrics)))
        elif self._last is not None:
            _guard.call("an evaluation after the training", self._evaluate_late, self._last, metrics)

    def _record_early(self, run: Run) -> None:
        """Record what was reported before the first step, at the step before it."""
        self._last, self._is_late, early, self._early = run.dir, False, self._early, []
        for is_evaluation, numbers in early:
            if is_evaluation:
                _evaluate(run, numbers)
            else:
                record(run, "host/", numbers, step=run.step)

    def _evaluate_late(self, run_dir: Path, metrics: Mapping[str, Any]) -> None:
        """Add an evaluation to the run of the training, which has ended."""
        with init(run_dir, on_existing="attempt", quiet=True, system_metrics=False) as again:
            _evaluate(again, metrics)

    def end(self, error: BaseException | None = None) -> None:
        """The training has ended, or failed; without one, nothing is done."""
        follower, self._follower = self._follower, None
        if follower is not None:
            stop_following(follower)
            follower.end(error)


def _evaluate(run: Run, metrics: Mapping[str, Any]) -> None:
    with run.eval() as evaluation:
        evaluation.log({name: value for name, value in flat(metrics, "") if not isinstance(value, str)})

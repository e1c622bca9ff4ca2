"""A training that a host, such as Lightning, drives: what a callback on each of its ranks says of it."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from distsummary.collect.config import read_config
from distsummary.integrations.deepspeed import follow_deepspeed
from distsummary.integrations.door_options import read_options
from distsummary.integrations.followed_run import FollowedRun, begin_run, is_number
from distsummary.integrations.follower import Follower, follow, start_following, stop_following
from distsummary.rundir.topology import OPTIONS, RUN_DIR
from distsummary.training.run import Run


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
        self._run_dir = os.fspath(run_dir or os.environ.get(RUN_DIR) or "runs/{time}")
        self._options = dict(options)
        self._known: dict[str, Any] = {}  # arguments for `ds.init` by the host
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
        self.end()
        self._known = options

        def begin(
            optimizer: Optimizer, model: nn.Module | None
        ) -> tuple[FollowedRun | None, Optimizer | None]:
            chosen = self._known | read_options(os.environ.get(OPTIONS, "")) | self._options
            return begin_run(optimizer, model, run_dir=self._run_dir, options=chosen, has_reports=True)

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
        """The host reports numbers of the last step; anything else is left out."""
        if self._follower is not None and self._follower.run is not None:
            self._follower.run.report("host/", numbers)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """The host has evaluated the model."""
        if self.run is not None:
            with self.run.eval() as evaluation:
                evaluation.log({name: number for name, number in metrics.items() if is_number(number)})

    def end(self, error: BaseException | None = None) -> None:
        """The training has ended, or failed; without one, nothing is done."""
        follower, self._follower = self._follower, None
        if follower is not None:
            stop_following(follower)
            follower.end(error)

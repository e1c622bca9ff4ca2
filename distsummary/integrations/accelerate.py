"""A tracker for Accelerate."""

import functools
import os
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from distsummary.integrations.hosted import Hosted


class DistSummaryTracker(GeneralTracker):  # type: ignore[misc]  # without types here
    """Records the training of a script that uses Accelerate, on each of its ranks.

    Example:
        >>> accelerator = Accelerator(log_with=DistSummaryTracker("runs/a"))

    Make it on all ranks, before the optimizer: each rank's loss, learning rate and gradients are recorded, of
    the steps from then on. Accelerate calls trackers on the main process alone: what `accelerator.log` gets
    is recorded there, as `host/...`. The settings that `accelerator.init_trackers` gets are those of the run.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True or initial_step=1000.
    """

    name = "distsummary"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__()
        self._hosted = Hosted(run_dir, options)
        self._hosted.begin()

    @property
    def tracker(self) -> Any:
        """The run, None before the first step."""
        return self._hosted.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The settings of the run, which `accelerator.init_trackers` gets."""
        self._hosted.set_config(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers at the last step."""
        self._hosted.log(values)

    def finish(self) -> None:
        """End the run."""
        self._hosted.end()


def _on_all_ranks(call: Any) -> Any:
    """`Accelerator.init_trackers`, which passes the settings to trackers of the main process alone."""

    @functools.wraps(call)
    def init_trackers(
        self: Any, project_name: str, config: dict[str, Any] | None = None, *others: Any, **named: Any
    ) -> None:
        if config is not None and not self.is_main_process:
            for tracker in self.log_with:
                if isinstance(tracker, DistSummaryTracker):
                    tracker.store_init_configuration(config)
        call(self, project_name, config, *others, **named)

    return init_trackers


Accelerator.init_trackers = _on_all_ranks(Accelerator.init_trackers)

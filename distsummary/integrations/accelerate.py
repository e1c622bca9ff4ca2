"""A tracker for Accelerate."""

import os
from typing import Any

from accelerate.tracking import GeneralTracker

from distsummary.base.redaction import redacted
from distsummary.integrations.hosted import Hosted


class DistSummaryTracker(GeneralTracker):  # type: ignore[misc]  # without types here
    """Records the training of a script that uses Accelerate, on each of its ranks.

    Example:
        >>> accelerator = Accelerator(log_with=DistSummaryTracker("runs/a"))

    Make it on all ranks, before the optimizer: each rank's loss, learning rate and gradients are recorded.
    Accelerate calls trackers on the main process alone: what `accelerator.log` gets is recorded there, as
    `host/...`.

    Args:
        run_dir: by default that of the environment variable DISTSUMMARY, else runs/{time}.
        options: further arguments for `ds.init`, such as norms=True or initial_step=1000.
    """

    name = "distsummary"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {}
        self._hosted = Hosted(run_dir, options)
        self._hosted.begin()

    @property
    def tracker(self) -> Any:
        """The run, None before the first step."""
        return self._hosted.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the settings, which `accelerator.init_trackers` gets, for the first `log`."""
        self._settings = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers at the last step, and once the settings, as a text."""
        settings, self._settings = self._settings, {}
        if settings and self._hosted.run is not None:
            lines = "\n".join(f"- {name}: {value}" for name, value in redacted(settings).items())
            self._hosted.run.text("host/config", lines)
        self._hosted.log(values)

    def finish(self) -> None:
        """End the run."""
        self._hosted.end()

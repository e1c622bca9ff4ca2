"""SummaryLandscape inside MindSpore: MindSpore's own, which also takes the trajectories that ours saves."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore

from distsummary.events.reader import read_values
from distsummary.landscapes.output.write import publish_landscapes
from distsummary.rundir.run_dir import RunDir

_KEYS = (
    "epoch_group",
    "model_params_file_map",
    "step_per_epoch",
    "unit",
    "num_samples",
    "landscape_size",
    "create_landscape",
)  # those that MindSpore knows of train_metadata.json


class SummaryLandscape(mindspore.SummaryLandscape):  # type: ignore[misc]  # its base is untyped
    """MindSpore's SummaryLandscape: its loss, its numbers, its files.

    `device_ids` may be left out: the landscape is then computed in this process. So it is on a CPU, whatever
    they are, since processes that MindSpore forks after a training hang. After an error, the next call works,
    and so does MindSpore's SummaryRecord.
    """

    def gen_landscapes_with_multi_process(
        self,
        callback_fn: Callable[[], Any],
        collect_landscape: Mapping[str, Any] | None = None,
        device_ids: Sequence[int] | None = None,
        output: str | None = None,
    ) -> None:
        """Compute the landscapes of the saved intervals and record them in `output`, or in the summary dir.

        In the summary dir they take the place of older ones. Raises what MindSpore's method raises.
        """
        devices, before = [] if device_ids is None else device_ids, mindspore.SummaryRecord.count
        self._check_device_ids(devices)  # MindSpore checks them after it has started processes
        if mindspore.get_context("device_target") == "CPU":
            devices = devices[:1]
        try:
            with tempfile.TemporaryDirectory(prefix="distsummary-") as place:
                compute = super().gen_landscapes_with_multi_process
                compute(callback_fn, collect_landscape, devices, place if output is None else output)
                found = {value.tag: value.value for value in read_values(place)} if output is None else {}
        finally:
            mindspore.SummaryRecord.count = before  # it counts records that an error left open
        if found:
            publish_landscapes(RunDir(self._summary_dir), found)

    def _check_json_file_data(self, json_file_data: Mapping[str, Any]) -> None:
        """MindSpore's check, of its own keys alone: ours also name the run and the sums of its files."""
        super()._check_json_file_data({key: json_file_data[key] for key in _KEYS if key in json_file_data})

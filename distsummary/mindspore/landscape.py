"""SummaryLandscape inside MindSpore: MindSpore's own, which also takes our trajectories, and our workers."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore
import numpy as np

from distsummary.events.reader import read_values
from distsummary.landscapes.output.write import publish_landscapes
from distsummary.mindspore.landscape_workers import compute
from distsummary.rundir.run_dir import RunDir

# The keys of train_metadata.json that MindSpore knows.
_KEYS = (
    "epoch_group",
    "model_params_file_map",
    "step_per_epoch",
    "unit",
    "num_samples",
    "landscape_size",
    "create_landscape",
)


class SummaryLandscape(mindspore.SummaryLandscape):  # type: ignore[misc]  # its base is untyped
    """MindSpore's SummaryLandscape: its loss, its numbers, its files.

    `device_ids` may be left out: the landscape is then computed in this process. Several are as many
    processes of ours, on a CPU too: those that MindSpore forks after a training hang. After a call
    the next one works, and so does MindSpore's SummaryRecord.
    """

    _devices: Sequence[int] = ()
    _error: BaseException | None = None

    def gen_landscapes_with_multi_process(
        self,
        callback_fn: Callable[[], Any],
        collect_landscape: Mapping[str, Any] | None = None,
        device_ids: Sequence[int] | None = None,
        output: str | None = None,
    ) -> None:
        """Compute the landscapes of the saved intervals and record them in `output`, or in the summary dir.

        In the summary dir they take the place of older ones. With several `device_ids`, `callback_fn` is
        called in each of as many new processes, which get this one's mode, device target and seed; it and
        what it refers to is sent there, so that it should make the network and the data itself.

        Raises what MindSpore's method and `callback_fn` raise, InvalidValueError if `callback_fn` cannot be
        sent, LandscapeError if a process dies.
        """
        # MindSpore's object keeps the intervals of an earlier call.
        super().__init__(self._summary_dir)
        self._devices, self._error = [] if device_ids is None else device_ids, None
        # MindSpore checks them only after it has started processes.
        self._check_device_ids(self._devices)
        with tempfile.TemporaryDirectory(prefix="distsummary-") as place:
            # Landscapes for the summary dir are written elsewhere first: an error leaves the older ones.
            into = place if output is None else output
            # With one device at most, MindSpore starts no processes of its own.
            super().gen_landscapes_with_multi_process(callback_fn, collect_landscape, self._devices[:1], into)
            error, self._error = self._error, None
            if error is not None:
                raise error
            found = {value.tag: value.value for value in read_values(place)} if output is None else {}
        if found:
            publish_landscapes(RunDir(self._summary_dir), found)

    def part(self, *arguments: Any, **more: Any) -> tuple[list[Any], list[Any]]:
        """The losses of points of the path and of rows of the grid, in this process: MindSpore's method."""
        found: tuple[list[Any], list[Any]] = super()._cont_loss_wrapper(*arguments, **more)
        return found

    def _cont_loss_wrapper(
        self,
        callback_fn: Callable[[], Any],
        test_final_params: Any,
        final_params_numpy: Any,
        v_ndarray: Any,
        w_ndarray: Any,
        x_points: Any,
        y_points: Any,
        coefs: Any = None,
    ) -> tuple[list[Any], list[Any]]:
        """See `part`; of several devices each computes as many rows, one after the other."""
        fixed = callback_fn, test_final_params, final_params_numpy, v_ndarray, w_ndarray, x_points
        devices = self._devices[: len(y_points)]
        if len(devices) < 2:
            return self.part(*fixed, y_points, coefs=coefs)
        rows = np.array_split(y_points, len(devices))
        points = [None] * len(devices) if coefs is None else np.array_split(coefs, len(devices))
        jobs = [(self._summary_dir, *fixed, *each) for each in zip(rows, points, strict=True)]
        found = compute(_part, jobs, devices)
        return [loss for paths, _ in found for loss in paths], [row for _, grid in found for row in grid]

    def _list_landscapes(self, **arguments: Any) -> Iterator[Any]:
        """MindSpore's; an error waits until MindSpore has closed its record, or its writer would not end."""
        try:
            yield from super()._list_landscapes(**arguments)
        except BaseException as error:
            self._error = error

    def _check_json_file_data(self, json_file_data: Mapping[str, Any]) -> None:
        """MindSpore's check, of its own keys alone: ours also name the run and the sums of its files."""
        super()._check_json_file_data({key: json_file_data[key] for key in _KEYS if key in json_file_data})


def _part(summary_dir: str, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """In a worker: the losses of its part."""
    return SummaryLandscape(summary_dir).part(*arguments)

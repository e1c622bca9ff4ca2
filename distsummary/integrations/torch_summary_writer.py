"""SummaryWriter: torch's class, whose events are written by a writer of distsummary.

Names, arguments and values are torch's by construction: its methods make the events of TensorBoard. Only the
object that takes them is replaced, and scalars, which most calls are, take a shorter way.
"""

import os
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, bfloat16
from torch.utils import tensorboard
from torch.utils.tensorboard.summary import hparams

from distsummary.base.checks import anchored
from distsummary.base.extras import require
from distsummary.collect.options import check_file_affix, check_summary_dir
from distsummary.collect.remote.open_writer import open_writer
from distsummary.collect.values.pictures import animation
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.spec import WriterSpec
from distsummary.format.records import TENSORBOARD, TENSORBOARD_EVENT, Event, Value
from distsummary.integrations.step_rows import StepRows
from distsummary.rundir import topology as topologies


class SummaryWriter(tensorboard.SummaryWriter):
    """torch's SummaryWriter: the same methods and arguments, and the same values in TensorBoard.

    Scalars cost a fraction of the time. What was added is in the files a tenth of a second later, whatever
    happens to the process then. The directory is also one that `ds.open_run` and `distsummary report` read.

    Example:
        >>> from distsummary.integrations import SummaryWriter
        >>> with SummaryWriter("runs/mine") as writer:
        ...     writer.add_scalar("loss", 0.5, global_step=1)

    Args:
        log_dir: the directory of the event files; by default runs/<time>_<host><comment>.
        comment: a suffix of the default `log_dir`.
        purge_step: TensorBoard hides what earlier writers wrote from this step on.
        max_queue, flush_secs: accepted; what was added never waits so long.
        filename_suffix: the end of the file names; letters, digits, _ and dots.

    Raises:
        RunDirError: the directory cannot be made or written. MissingExtraError, of a method: it needs a
            package that is not installed (`add_figure`: matplotlib, `add_video`: pillow, `add_onnx_graph`:
            onnx).
    """

    file_writer: Any  # a _FileWriter, None while it is closed
    all_writers: Any  # directory -> _FileWriter

    @cached_property
    def _base(self) -> str:
        """`log_dir` as it was when the writer was made, from whatever working directory."""
        return anchored(self.log_dir)

    def _get_file_writer(self) -> Any:
        """The writer of `log_dir`; a new one after `close`, as torch has it."""
        if self.all_writers is None or self.file_writer is None:
            self.file_writer = writer = _FileWriter(self._base, self.filename_suffix)
            self.all_writers = {str(self.log_dir): writer}
            if self.purge_step is not None:
                start = TensorBoardEvent(session_log=SessionLog(status=SessionLog.START))
                writer.add_event(start, self.purge_step)
                self.purge_step = None
        return self.file_writer

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Add a number, or a tensor or array of one element."""
        if new_style:
            super().add_scalar(tag, scalar_value, global_step, walltime, new_style, double_precision)
        else:
            number = scalar_value if type(scalar_value) is float else _number(tag, scalar_value)
            step = 0 if global_step is None else int(global_step)
            (self.file_writer or self._get_file_writer()).rows.add(tag, number, step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Add numbers that TensorBoard draws in one chart: each name has a directory below `log_dir`."""
        walltime = time.time() if walltime is None else walltime
        step = 0 if global_step is None else int(global_step)
        self._get_file_writer()
        for tag, number in tag_scalar_dict.items():
            directory = f"{self._base}/{main_tag.replace('/', '_')}_{tag}"
            if (writer := self.all_writers.get(directory)) is None:
                writer = self.all_writers[directory] = _FileWriter(directory, self.filename_suffix)
            writer.rows.add(main_tag, _number(main_tag, number), step, walltime)

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: Any = None,
    ) -> None:
        """Add settings and results, in the directory `run_name` below `log_dir`, by default a time."""
        summaries = hparams(hparam_dict, metric_dict, hparam_domain_discrete)  # type: ignore[no-untyped-call]
        directory = os.path.join(self._base, run_name or str(time.time()))
        with SummaryWriter(directory) as writer:
            for summary in summaries:
                writer._get_file_writer().add_summary(summary, global_step)
            for name, number in metric_dict.items():
                writer.add_scalar(name, number, global_step)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: Any = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Add a matplotlib figure, or a list of them, as a picture."""
        require("SummaryWriter.add_figure", "matplotlib")
        super().add_figure(tag, figure, global_step, close, walltime)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: Any = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        """Add videos (N, T, C, H, W), uint8 or in [0, 1], side by side as one animated GIF."""
        # Not torch's own method, which needs moviepy before 2.
        require("SummaryWriter.add_video", "PIL")
        video = animation(f"the video {tag!r}", _side_by_side(_array(vid_tensor)), fps)
        image = Summary.Image(
            height=video.height,
            width=video.width,
            colorspace=video.colorspace,
            encoded_image_string=video.encoded,
        )
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._get_file_writer().add_summary(summary, global_step, walltime)

    def add_onnx_graph(self, prototxt: Any) -> None:
        """Add the graph of an ONNX file."""
        require("SummaryWriter.add_onnx_graph", "onnx")
        super().add_onnx_graph(prototxt)


def _number(tag: str, value: Any) -> float:
    """A number, or what a tensor or an array of one element holds."""
    array = _array(value).squeeze()
    if array.ndim:
        raise InvalidValueError(
            f"scalar_value of {tag!r} must have one element, got the shape {array.shape}; "
            "reduce it, or use add_histogram"
        )
    return float(array)


def _array(value: Any) -> Any:
    """A tensor, an array or a number as an array."""
    if isinstance(value, Tensor):
        host = value.detach().cpu()
        return (host.float() if host.dtype == bfloat16 else host).numpy()
    if isinstance(value, np.ndarray) or np.isscalar(value):
        return np.asarray(value)
    raise InvalidTypeError(f"a tensor, an array or a number is needed, got {type(value).__name__}")


def _side_by_side(videos: Any) -> Any:
    """Videos (N, T, C, H, W) as one, (T, C, H', W'), in rows and columns whose numbers are powers of 2."""
    count, times, channels, height, width = videos.shape
    scaled = np.float32(videos) / 255.0 if videos.dtype == np.uint8 else videos
    places = 1 << (count - 1).bit_length()
    rows = 1 << (count.bit_length() - 1) // 2
    whole = np.concatenate((scaled, np.zeros((places - count, *videos.shape[1:]), scaled.dtype)))
    grid = whole.reshape(rows, places // rows, times, channels, height, width).transpose(2, 3, 0, 4, 1, 5)
    return grid.reshape(times, channels, rows * height, places // rows * width)


class _FileWriter(tensorboard.FileWriter):
    """Takes what torch's FileWriter takes; `rows` takes scalars."""

    def __init__(self, log_dir: Any, suffix: str) -> None:
        self.event_writer = _EventWriter(str(log_dir), suffix)
        self.rows = self.event_writer.rows

    def reopen(self) -> None:
        """Continue after `close`, in new files."""
        self.event_writer.reopen()
        self.rows = self.event_writer.rows


class _EventWriter:
    """What FileWriter expects of TensorBoard's EventFileWriter; it writes events as they are."""

    def __init__(self, log_dir: str, suffix: str) -> None:
        self._log_dir = log_dir
        self._spec = WriterSpec(
            directory=check_summary_dir(log_dir, "log_dir").base,
            formats=(TENSORBOARD,),
            source=check_file_affix("filename_suffix", f"0{suffix}"),
        )
        self.reopen()

    def reopen(self) -> None:
        self._writer, _ = open_writer(self._spec, None, ranks=topologies.place().local_world_size)
        self.rows = StepRows(self._writer)

    def get_logdir(self) -> str:
        return self._log_dir

    def add_event(self, event: Any) -> None:
        """Write an Event of TensorBoard, of any kind."""
        self.rows.end_row()
        tag = event.summary.value[0].tag if event.summary.value else event.WhichOneof("what")
        data = event.SerializeToString()
        self._writer.write(Event(event.step, event.wall_time, [Value(TENSORBOARD_EVENT, tag, data)]))

    def flush(self) -> None:
        self.rows.end_row()
        self._writer.flush()

    def close(self) -> None:
        self.rows.close()
        self._writer.close()

"""What a directory of event files holds, as our reader and both of TensorBoard's see it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import grpc
import numpy as np
import tensorboard_data_server
from numpy.typing import NDArray
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.backend.event_processing.plugin_event_multiplexer import (
    EventMultiplexer as PluginEventMultiplexer,
)
from tensorboard.context import RequestContext
from tensorboard.data.grpc_provider import GrpcDataProvider
from tensorboard.data.proto import data_provider_pb2_grpc
from tensorboard.util import tensor_util

from distsummary.events.reader import read_directory
from distsummary.format.records import Histogram

ALL = 1_000_000  # more points than any test has: no reader may sample

Points: TypeAlias = list[tuple[int, Any]]  # Any: a float, the bins of a histogram, a picture ...


class Bins(NamedTuple):
    """The bins between the outermost that count something: the inner edges and all counts."""

    inner_edges: tuple[float, ...]
    counts: tuple[float, ...]


class Picture(NamedTuple):
    """An encoded image; height and width in pixels."""

    height: int
    width: int
    encoded: bytes


class View(NamedTuple):
    """(run, tag) -> points in the order of steps, by kind; the run of the directory itself is "."."""

    scalars: dict[tuple[str, str], Points]
    histograms: dict[tuple[str, str], Points]
    images: dict[tuple[str, str], Points]
    texts: dict[tuple[str, str], Points]
    sounds: dict[tuple[str, str], Points]
    curves: dict[tuple[str, str], Points]


def differences(left: View, right: View) -> list[str]:
    """What differs, one short line each, so that a failure can be read."""
    lines = []
    for kind in View._fields:
        ours, theirs = getattr(left, kind), getattr(right, kind)
        lines += [f"{kind} {key} only on the left" for key in ours.keys() - theirs.keys()]
        lines += [f"{kind} {key} only on the right" for key in theirs.keys() - ours.keys()]
        for key in ours.keys() & theirs.keys():
            if ours[key] != theirs[key] and repr(ours[key]) != repr(theirs[key]):  # NaN is itself in words
                lines.append(f"{kind} {key}: {_first_difference(ours[key], theirs[key])}")
    return sorted(lines)


def _first_difference(left: Points, right: Points) -> str:
    pairs = zip(left, right, strict=False)
    first = next(((a, b) for a, b in pairs if a != b), f"{len(left)} points, then {len(right)}")
    return str(first)[:300]


def own_view(logdir: Path, dialect: str = "tensorboard") -> View:
    """What distsummary.events.reader reads from `logdir` and the directories in it."""
    view = View(*({} for _ in View._fields))
    for directory in sorted({logdir, *(path for path in logdir.rglob("*") if path.is_dir())}):
        for event in read_directory(directory, dialect):
            for value in event.values:
                kind, data = _own_point(value.plugin, value.data)
                if kind:
                    tags = getattr(view, kind)
                    key = (_run_name(directory, logdir), value.tag)
                    tags.setdefault(key, []).append((event.step, data))
    return view


def python_view(logdir: Path) -> View:
    """What TensorBoard's Python reader reads, without sampling."""
    guidance = {"scalars": 0, "histograms": 0, "images": 0, "audio": 0, "tensors": 0}  # 0: keep all
    multiplexer = EventMultiplexer(size_guidance=guidance, purge_orphaned_data=True)
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    view = View(*({} for _ in View._fields))
    for run in multiplexer.Runs():
        _add_accumulated(view, run, multiplexer.GetAccumulator(run))
    return view


def _add_accumulated(view: View, run: str, accumulator: EventAccumulator) -> None:
    tags = accumulator.Tags()
    for tag in tags["scalars"]:
        view.scalars[run, tag] = [(point.step, point.value) for point in accumulator.Scalars(tag)]
    for tag in tags["histograms"]:
        view.histograms[run, tag] = [
            (point.step, _trim(point.histogram_value.bucket_limit, point.histogram_value.bucket))
            for point in accumulator.Histograms(tag)
        ]
    for tag in tags["images"]:
        view.images[run, tag] = [
            (point.step, Picture(point.height, point.width, point.encoded_image_string))
            for point in accumulator.Images(tag)
        ]
    for tag in tags["audio"]:
        view.sounds[run, tag] = [(point.step, point.encoded_audio_string) for point in accumulator.Audio(tag)]
    for tag in tags["tensors"]:
        plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
        points = [(p.step, tensor_util.make_ndarray(p.tensor_proto)) for p in accumulator.Tensors(tag)]
        if plugin == "text":
            view.texts[run, tag] = [(step, _text(array)) for step, array in points]
        elif plugin == "pr_curves":
            view.curves[run, tag] = [(step, array.tolist()) for step, array in points]


def server_view(logdir: Path) -> View:
    """What TensorBoard's data server (its default reader) answers after one load, without sampling."""
    with data_server(logdir) as provider:
        context, of_all = RequestContext(), {"experiment_id": "", "downsample": ALL}
        scalars = provider.read_scalars(context, plugin_name="scalars", **of_all)
        histograms = provider.read_tensors(context, plugin_name="histograms", **of_all)
        texts = provider.read_tensors(context, plugin_name="text", **of_all)
        curves = provider.read_tensors(context, plugin_name="pr_curves", **of_all)
        sounds = provider.read_blob_sequences(context, plugin_name="audio", **of_all)
        images = provider.read_blob_sequences(context, plugin_name="images", **of_all)

        def picture(references: Sequence[Any]) -> Picture:
            # a summary's image is three blobs: its width and height as text, then the file
            width, height, encoded = (provider.read_blob(context, blob_key=r.blob_key) for r in references)
            return Picture(int(height), int(width), encoded)

        return View(
            _flat(scalars, lambda point: point.value),
            _flat(histograms, lambda point: _trim(point.numpy[:, 1], point.numpy[:, 2])),
            _flat(images, lambda point: picture(point.values)),
            _flat(texts, lambda point: _text(point.numpy)),
            _flat(sounds, lambda point: provider.read_blob(context, blob_key=point.values[0].blob_key)),
            _flat(curves, lambda point: point.numpy.tolist()),
        )


def first_times(logdir: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Run -> the time of its first event, by which TensorBoard sorts runs, of both readers."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    python = {run: float(multiplexer.FirstEventTimestamp(run)) for run in multiplexer.Runs()}
    with data_server(logdir) as provider:
        runs = provider.list_runs(RequestContext(), experiment_id="")
        return python, {run.run_name: float(run.start_time) for run in runs}


def descriptions(logdir: Path, run: str) -> tuple[dict[str, str], dict[str, str]]:
    """Tag -> what TensorBoard's page HISTOGRAMS says about it; of the Python reader, the server."""
    multiplexer = PluginEventMultiplexer()  # the one that its pages use
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    metadata = multiplexer.AllSummaryMetadata()[run]
    python = {
        tag: one.summary_description
        for tag, one in metadata.items()
        if one.plugin_data.plugin_name == "histograms"
    }
    with data_server(logdir) as provider:
        found = provider.list_tensors(RequestContext(), experiment_id="", plugin_name="histograms")[run]
        return python, {tag: one.description for tag, one in found.items()}


def layouts(logdir: Path, run: str) -> tuple[bytes, bytes]:
    """The layout that TensorBoard's page CUSTOM SCALARS shows of a run; of the Python reader, the server."""
    of_page = {"experiment_id": "", "plugin_name": "custom_scalars", "downsample": 1}
    multiplexer = PluginEventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    python = MultiplexerDataProvider(multiplexer, str(logdir)).read_tensors(RequestContext(), **of_page)
    with data_server(logdir) as provider:
        server = provider.read_tensors(RequestContext(), **of_page)
        found = [of[run]["custom_scalars__config__"][0].numpy.item() for of in (python, server)]
    return found[0], found[1]


@contextmanager
def data_server(logdir: Path, reload: str = "once") -> Iterator[GrpcDataProvider]:
    """The data server on a free loopback port, ended by closing its stdin; `reload` is once or in seconds."""
    with tempfile.TemporaryDirectory() as place:
        port_file = Path(place, "port")
        options = [
            "--reload", reload, "--port", "0", "--port-file", str(port_file), "--die-after-stdin", "-v",
        ]  # fmt: skip
        plugins = ("scalars", "histograms", "images", "text", "audio", "pr_curves")
        samples = f"--samples-per-plugin={','.join(f'{plugin}={ALL}' for plugin in plugins)}"
        command = [tensorboard_data_server.server_binary(), "--logdir", str(logdir), samples, *options]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as server:
            log = []
            for line in server.stderr:
                log.append(line)
                if "Finished load cycle" in line:
                    break
            else:
                raise AssertionError(f"the data server ended before it had loaded {logdir}:\n{''.join(log)}")
            refused = [line for line in log if " WARN " in line or " ERROR " in line]
            assert not refused, f"the data server could not read everything:\n{''.join(refused)}"
            with grpc.insecure_channel(f"localhost:{port_file.read_text().strip()}") as channel:
                yield GrpcDataProvider("", data_provider_pb2_grpc.TensorBoardDataProviderStub(channel))
            server.stdin.close()
            server.stderr.read()


def _flat(runs: Any, convert: Any) -> dict[tuple[str, str], Points]:
    return {
        (run, tag): [(point.step, convert(point)) for point in points]
        for run, tags in runs.items()
        for tag, points in tags.items()
    }


def _own_point(plugin: str, data: Any) -> tuple[str, Any]:
    match plugin:
        case "scalar":
            return "scalars", data
        case "histogram":
            return "histograms", _own_bins(data)
        case "image":
            return "images", Picture(data.height, data.width, data.encoded)
        case "text":
            return "texts", data
        case "audio":
            return "sounds", data.encoded
        case "pr_curve":
            return "curves", data.tolist()
    return "", None


def _text(strings: NDArray[np.object_]) -> str:
    """A text of one string, as TensorBoard's text plugin gets it."""
    return str(strings.item().decode())


def _own_bins(histogram: Histogram) -> Bins:
    return Bins(tuple(histogram.left[1:].tolist()), tuple(histogram.counts.astype(float).tolist()))


def _trim(limits: Sequence[float], counts: Sequence[float]) -> Bins:
    filled = np.flatnonzero(counts)
    if not filled.size:
        return Bins((), ())
    first, last = int(filled[0]), int(filled[-1])
    return Bins(tuple(map(float, limits[first:last])), tuple(map(float, counts[first : last + 1])))


def _run_name(directory: Path, logdir: Path) -> str:
    return os.path.relpath(directory, logdir)

"""Our SummaryWriter beside torch's: each method, read back by TensorBoard's own accumulator."""

import dataclasses
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils import tensorboard

import distsummary as ds
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingExtraError
from distsummary.integrations import SummaryWriter

RANDOM = np.random.default_rng(1)
VALUES = RANDOM.normal(size=1000)
PICTURE = RANDOM.random((3, 16, 20))
LABELS = RANDOM.integers(2, size=100)
CHANCES = RANDOM.random(100)
BOXES = np.array([[2, 3, 10, 12], [1, 1, 5, 5]])
VERTICES = torch.tensor(RANDOM.random((1, 4, 3)), dtype=torch.float32)
FACES = torch.tensor([[[0, 2, 3], [0, 3, 1]]])
COUNTS = {"min": -1.0, "max": 2.0, "num": 6, "sum": 3.0, "sum_squares": 9.0}
LAYOUT = {"all": {"both": ["Multiline", ["a", "b"]], "band": ["Margin", ["a", "b", "c"]]}}
CURVE = [RANDOM.random(5) for _ in range(6)]


def figure() -> Any:
    drawn, axes = plt.subplots(figsize=(2, 1))
    axes.plot([1, 2, 4])
    return drawn


def embedding(writer: Any) -> None:
    labels = [f"point {n}" for n in range(9)]
    pictures = torch.tensor(RANDOM.random((9, 3, 4, 4)))
    writer.add_embedding(
        VALUES[:45].reshape(9, 5), metadata=labels, label_img=pictures, global_step=3, tag="a/b"
    )


CALLS: dict[str, Callable[[Any], object]] = {
    "scalar": lambda w: w.add_scalar("loss", 0.1, 3),
    "scalar without a step": lambda w: w.add_scalar("loss", 0.1),
    "scalar of a tensor": lambda w: w.add_scalar("loss", torch.tensor([0.1]), torch.tensor(3)),
    "scalar of an integer": lambda w: w.add_scalar("loss", 7, np.int64(3)),
    "scalar that is not finite": lambda w: [w.add_scalar("x", n, 1) for n in (np.inf, -np.inf)],
    "scalar beyond float32": lambda w: w.add_scalar("x", 1e300, 1),
    "scalar with a time": lambda w: w.add_scalar("loss", 0.1, 3, walltime=12.5),
    "scalar of the new style": lambda w: w.add_scalar("loss", 0.1, 3, new_style=True),
    "scalar in double precision": lambda w: w.add_scalar(
        "loss", 0.1, 3, new_style=True, double_precision=True
    ),
    "scalars of several steps": lambda w: [w.add_scalar(t, 1.5 * n, n) for n in range(50) for t in "abc"],
    "a scalar twice in a step": lambda w: [w.add_scalar("loss", n, 3) for n in (0.5, 0.25)],
    "scalars": lambda w: w.add_scalars("both/of", {"a": 1.0, "b": torch.tensor(2)}, 4),
    "tensor": lambda w: w.add_tensor("t", torch.arange(6.0).reshape(2, 3), 2),
    "histogram": lambda w: w.add_histogram("h", VALUES, 2),
    "histogram with bins": lambda w: w.add_histogram("h", torch.tensor(VALUES), 2, bins="auto", max_bins=9),
    "histogram_raw": lambda w: w.add_histogram_raw(
        "h", **COUNTS, bucket_limits=[0, 1, 2], bucket_counts=[1, 2, 3], global_step=1
    ),
    "image": lambda w: w.add_image("i", PICTURE, 1),
    "image of uint8": lambda w: w.add_image("i", (PICTURE[0] * 255).astype(np.uint8), 1, dataformats="HW"),
    "images": lambda w: w.add_images("i", np.stack([PICTURE, PICTURE / 2]), 1),
    "image_with_boxes": lambda w: w.add_image_with_boxes("i", PICTURE, BOXES, 1, labels=["a", "b"]),
    "figure": lambda w: w.add_figure("f", figure(), 2),
    "figures": lambda w: w.add_figure("f", [figure(), figure()], 2),
    "audio": lambda w: w.add_audio("a", np.sin(np.arange(400) / 9)[None], 5, sample_rate=8000),
    "text": lambda w: w.add_text("t", "# Größe\n*x*", 2),
    "graph": lambda w: w.add_graph(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.zeros(1, 3)
    ),
    "hparams": lambda w: w.add_hparams(
        {"lr": 0.1, "name": "sgd", "deep": True}, {"result/loss": 0.5}, {"lr": [0.1, 0.2]}, "trial", 4
    ),
    "pr_curve": lambda w: w.add_pr_curve("p", LABELS, CHANCES, 3),
    "pr_curve_raw": lambda w: w.add_pr_curve_raw("p", *CURVE, global_step=3, num_thresholds=5),
    "custom_scalars": lambda w: w.add_custom_scalars(LAYOUT),
    "custom_scalars_multilinechart": lambda w: w.add_custom_scalars_multilinechart(["a", "b"]),
    "custom_scalars_marginchart": lambda w: w.add_custom_scalars_marginchart(["a", "b", "c"]),
    "mesh": lambda w: w.add_mesh("m", VERTICES, colors=VERTICES * 255, faces=FACES, global_step=2),
    "embedding": embedding,
}


def timeless(event: Any) -> Any:
    """An event of the accumulator without its time."""
    return dataclasses.replace(event, wall_time=0.0)


def contents(base: Path) -> dict[str, Any]:
    """All that TensorBoard's accumulator finds below a directory, and the other files."""
    found: dict[str, Any] = {}
    for directory, _, files in os.walk(base):
        place = os.path.relpath(directory, base)
        for name in files:
            if "tfevents" not in name:
                found[f"{place}/{name}"] = Path(directory, name).read_bytes()
        if any("tfevents" in name for name in files):
            sizes = dict.fromkeys(("scalars", "images", "histograms", "audio", "tensors"), 0)
            read = EventAccumulator(directory, sizes).Reload()
            tags = read.Tags()
            found[place] = {
                "scalars": {tag: [timeless(e) for e in read.Scalars(tag)] for tag in tags["scalars"]},
                "histograms": {
                    tag: [timeless(e) for e in read.Histograms(tag)] for tag in tags["histograms"]
                },
                "images": {tag: [timeless(e) for e in read.Images(tag)] for tag in tags["images"]},
                "audio": {tag: [timeless(e) for e in read.Audio(tag)] for tag in tags["audio"]},
                "tensors": {tag: [timeless(e) for e in read.Tensors(tag)] for tag in tags["tensors"]},
                "described": {t: str(read.SummaryMetadata(t)) for t in tags["tensors"]},
                "graph": read.Graph() if tags["graph"] else None,
                "runs": {tag: read.RunMetadata(tag) for tag in tags["run_metadata"]},
            }
            if not any(found[place].values()):  # torch makes a file without events
                del found[place]
    return found


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.filterwarnings("default")  # torch's own
@pytest.mark.parametrize("name", CALLS)
def test_what_a_method_adds_is_read_back_as_torchs(name, tmp_path, monkeypatch):
    for directory, kind in (("torch", tensorboard.SummaryWriter), ("ours", SummaryWriter)):
        RANDOM.bit_generator.state = np.random.default_rng(2).bit_generator.state
        with kind(str(tmp_path / directory)) as writer:
            CALLS[name](writer)
    ours, theirs = contents(tmp_path / "ours"), contents(tmp_path / "torch")
    assert ours == theirs
    assert ours


def test_all_public_methods_of_torch_are_compared() -> None:
    public = {name for name in vars(tensorboard.SummaryWriter) if name.startswith("add_")}
    assert {f"add_{name}" for name in CALLS} >= public - {"add_video", "add_onnx_graph"}


def test_a_time_that_is_given_is_kept(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("a", 1.0, 1, walltime=10.5)
        writer.add_scalar("b", 1.0, 1, walltime=11.5)
        writer.add_text("t", "x", 1, walltime=12.5)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [read.Scalars(tag)[0].wall_time for tag in "ab"] == [10.5, 11.5]
    assert read.Tensors("t/text_summary")[0].wall_time == 12.5


def test_a_video_is_an_animated_gif_of_its_frames(tmp_path: Path) -> None:
    frames = np.zeros((1, 4, 3, 8, 10), np.uint8)
    frames[0, :, 0] = np.array([0, 80, 160, 240])[:, None, None]
    with SummaryWriter(tmp_path) as writer:
        writer.add_video("v", frames, 2, fps=10)
    [event] = EventAccumulator(str(tmp_path)).Reload().Images("v")
    movie: Any = Image.open(io.BytesIO(event.encoded_image_string))
    reds = []
    for number in range(movie.n_frames):
        movie.seek(number)
        assert movie.info["duration"] == 100
        reds.append(movie.convert("RGB").getpixel((3, 3))[0])
    assert (event.step, event.width, event.height, reds) == (2, 10, 8, [0, 80, 160, 240])


def test_steps_from_purge_step_on_are_hidden(tmp_path: Path) -> None:
    for first, purge_step in ((0, None), (5, 5)):
        with SummaryWriter(tmp_path, purge_step=purge_step) as writer:
            for step in range(first, first + 8):
                writer.add_scalar("loss", first + 0.5, step)
    found = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in found] == [
        *((step, 0.5) for step in range(5)),
        *((step, 5.5) for step in range(5, 13)),
    ]


def test_a_closed_writer_continues_in_a_new_file(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path)
    for step in (1, 2):
        writer.add_scalar("loss", 1.0, step)
        writer.close()
    assert len(list(tmp_path.glob("*tfevents*"))) == 2
    assert [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")] == [1, 2]


def test_the_default_directory_is_named_after_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with SummaryWriter(comment="_mine") as writer:
        writer.add_scalar("loss", 1.0)
    [directory] = (tmp_path / "runs").iterdir()
    assert directory.name.endswith("_mine")
    assert list(directory.glob("*tfevents*"))


def test_the_files_end_in_the_suffix(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path, filename_suffix=".mine") as writer:
        writer.add_scalar("loss", 1.0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".mine"]


def test_the_directory_is_a_run_to_our_readers(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path / "mine") as writer:
        for step in range(1, 4):
            writer.add_scalar("loss", step / 2, step)
        CALLS["audio"](writer)
        CALLS["pr_curve"](writer)
    run = ds.open_run(tmp_path / "mine")
    assert [(row.step, row.value.rate) for row in run.audio("a")] == [(5, 8000)]
    assert [(row.step, row.value.shape) for row in run.pr_curves("p")] == [(3, (6, 127))]
    table = run.scalars("loss")
    assert (table["step"].tolist(), table["value"].tolist()) == ([1, 2, 3], [0.5, 1.0, 1.5])


def test_a_killed_process_has_written_what_it_added(tmp_path: Path) -> None:
    code = f"""
import sys, time
from distsummary.integrations import SummaryWriter
writer = SummaryWriter({str(tmp_path)!r})
writer.add_scalar("loss", 0.5, 1)
writer.add_text("t", "x", 1)
writer.add_scalar("loss", 0.25, 2)
print("added", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with process.stdout:
        assert process.stdout.readline() == b"added\n"
        try:
            while process.poll() is None:  # it passes on the last row by itself
                read = EventAccumulator(str(tmp_path)).Reload()
                if read.Tags()["scalars"] and len(read.Scalars("loss")) == 2:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in read.Scalars("loss")] == [0.5, 0.25]
    assert read.Tags()["tensors"] == ["t/text_summary"]


def test_bad_arguments_name_the_field(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        with pytest.raises(InvalidValueError, match=r"scalar_value of 'loss' must have one element.*\(2,\)"):
            writer.add_scalar("loss", torch.zeros(2))
        with pytest.raises(InvalidTypeError, match="name of a value must be str, got 3"):
            writer.add_scalar(3, 1.0)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidValueError, match="filename_suffix"):
        SummaryWriter(tmp_path, filename_suffix="/x")


@pytest.mark.parametrize(
    ("method", "arguments", "line"),
    [
        ("add_figure", (figure,), "pip install matplotlib"),
        ("add_video", (VALUES,), "pip install pillow"),
        ("add_onnx_graph", (), "pip install onnx"),
    ],
)
def test_a_missing_codec_is_named_with_the_pip_line(method, arguments, line, tmp_path, hide_package):
    hide_package({"pillow": "PIL"}.get(package := line.rpartition(" ")[2], package))
    with SummaryWriter(tmp_path) as writer, pytest.raises(MissingExtraError, match=f"{method}.*run: {line}"):
        getattr(writer, method)("x", *arguments)


def test_without_tensorboard_the_import_says_so(monkeypatch, hide_package):
    from distsummary import integrations

    monkeypatch.delitem(vars(integrations), "SummaryWriter", raising=False)
    hide_package("tensorboard")
    with pytest.raises(MissingExtraError, match=r"SummaryWriter needs tensorboard.*pip install tensorboard"):
        integrations.SummaryWriter  # noqa: B018


def test_a_script_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with SummaryWriter("runs/a") as writer:
        monkeypatch.chdir(tmp_path / "elsewhere")
        writer.add_scalars("loss", {"one": 1.0}, 1)
        writer.add_hparams({"lr": 0.1}, {"best": 1.0}, run_name="tried")
        writer.close()
        writer.add_scalar("after", 2.0, 2)
    base = tmp_path / "runs/a"
    assert sorted(path.name for path in base.iterdir() if path.is_dir()) == ["loss_one", "tried"]
    assert not list((tmp_path / "elsewhere").iterdir())
    assert EventAccumulator(str(base)).Reload().Tags()["scalars"] == ["after"]

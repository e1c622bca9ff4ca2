"""Tables, videos, sounds, matrices and PR curves of a run, read back by our readers and by TensorBoard."""

from pathlib import Path

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.pr_curve.metadata import parse_plugin_metadata
from tensorboard.util.tensor_util import make_ndarray

import distsummary as ds
from distsummary.aggregate.merge import merge_run


def test_they_are_in_the_ranks_files_and_in_the_merged_run(tmp_path: Path) -> None:
    frames = torch.zeros(2, 3, 4, 6, dtype=torch.uint8)
    frames[1] = 255
    with ds.init(tmp_path / "run", quiet=True, record=ds.Record(formats=["tensorboard", "mindspore"])) as run:
        for _ in run.steps(range(2)):
            run.table("scores", [{"class": "cat", "f1": 0.5}])
            run.video("movie", frames, fps=5)
            run.confusion_matrix("matrix", np.array([[3, 1], [0, 4]]), classes=["cat", "dog"])
    assert run.health().dropped == {}
    recorded = ds.open_run(tmp_path / "run")
    for rank in (None, 0):
        assert recorded.text("scores", rank).value(0) == "| class | f1 |\n| --- | --- |\n| cat | 0.5 |"
        movie = recorded.images("movie", rank).value(1)
        assert (movie.width, movie.height, movie.encoded[:4]) == (6, 4, b"GIF8")
        assert recorded.images("matrix", rank).value(0).encoded[:4] == b"\x89PNG"
    [directory] = {path.parent for path in (tmp_path / "run").glob("*tfevents*")}
    read = EventAccumulator(str(directory)).Reload()
    assert read.Images("movie")[0].encoded_image_string[:4] == b"GIF8"
    assert "matrix" in read.Tags()["images"]


def test_sounds_and_pr_curves_reach_tensorboard_from_mindspores_files_of_the_ranks(tmp_path: Path) -> None:
    sound = torch.sin(torch.arange(400) / 9)
    labels, predictions = torch.arange(60) % 3 == 0, torch.linspace(0, 1, 60)
    for rank in range(2):
        with ds.init(tmp_path, rank=rank, world_size=2, quiet=True, aggregate=False) as run:
            for _ in run.steps(range(2)):
                run.audio("voice", torch.stack([sound, -sound / (1 + rank)]), 8000)
                run.pr_curve("cats", labels, predictions, thresholds=200)
                run.add_value("pr_curve", "dogs", (~labels, predictions))
        assert run.health().dropped == {}
    assert [*tmp_path.glob("rank*/*_MS")]
    assert not [*tmp_path.glob("rank*/*tfevents*")]
    merge_run(tmp_path)
    recorded = ds.open_run(tmp_path)
    assert recorded.tags["pr_curve"] == {"cats": 2, "dogs": 2}
    voices = {rank: recorded.audio("voice", rank).value(1) for rank in (0, 1, "merged")}
    assert voices[0] == voices["merged"] != voices[1]
    assert (voices[1].rate, voices[1].channels, voices[1].frames) == (8000, 2, 400)
    cats = recorded.pr_curves("cats", "merged").value(1)
    assert cats.shape == (6, 200)
    assert cats[:4, 0].tolist() == [20, 40, 0, 0]
    assert recorded.pr_curves("dogs", 1).value(0).shape == (6, 127)
    [directory] = {path.parent for path in tmp_path.glob("*tfevents*")}
    read = EventAccumulator(str(directory), {"audio": 0, "tensors": 0}).Reload()
    assert [heard.step for heard in read.Audio("voice")] == [1, 2]
    for heard in read.Audio("voice"):
        assert (heard.sample_rate, heard.length_frames, heard.content_type) == (8000, 400, "audio/wav")
        assert heard.encoded_audio_string == voices[0].encoded
    shown = read.SummaryMetadata("cats").plugin_data
    assert (shown.plugin_name, parse_plugin_metadata(shown.content).num_thresholds) == ("pr_curves", 200)
    assert np.array_equal(make_ndarray(read.Tensors("cats")[1].tensor_proto), cats)


def test_what_is_none_is_counted_and_named(tmp_path: Path) -> None:
    with ds.init(tmp_path / "run", quiet=True, aggregate=False) as run:
        for _ in run.steps(range(1)):
            run.table("t", "no table")
            run.video("v", np.zeros((2, 2)))
            run.confusion_matrix("m", np.zeros((2, 2)), classes=["one"])
            run.audio("a", np.zeros((2, 2, 2)), 8000)
            run.pr_curve("p", [0, 1, 2], [0.5, 0.5, 0.5])
            run.add_value("audio", "b", np.zeros(4))
    assert run.health().dropped == {
        "table": 1, "video": 1, "confusion_matrix": 1, "audio": 2, "pr_curve": 1
    }  # fmt: skip

"""Tables, videos and confusion matrices of a run, read back by our readers and by TensorBoard."""

from pathlib import Path

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distsummary as ds


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


def test_what_is_none_is_counted_and_named(tmp_path: Path) -> None:
    with ds.init(tmp_path / "run", quiet=True, aggregate=False) as run:
        for _ in run.steps(range(1)):
            run.table("t", "no table")
            run.video("v", np.zeros((2, 2)))
            run.confusion_matrix("m", np.zeros((2, 2)), classes=["one"])
    assert run.health().dropped == {"table": 1, "video": 1, "confusion_matrix": 1}

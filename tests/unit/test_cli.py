import json

import pytest

from distsummary.cli import main
from distsummary.events.reader import read_directory
from distsummary.events.records import Batch, Event, Value
from distsummary.events.writer import RankWriter
from distsummary.run_dir import RunDir

FACTORY = """
import numpy as np

class Bowl:
    def __init__(self):
        self.parameters = {"w": np.array([1.0, 2.0], np.float32)}

def loss(model, batch):
    return float((model.parameters["w"] ** 2).sum() + batch.mean())

def parts():
    return Bowl(), loss, [np.zeros(4)]
"""


def two_ranks(path) -> RunDir:
    run_dir = RunDir(path).create()
    for rank in range(2):
        writer = RankWriter(run_dir.writer_dir("train", rank, 2), run_id="00000000000000ab", rank=rank)
        events = [Event(step, 0.0, [Value("scalar", "acc", float(rank))]) for step in (1, 2)]
        writer.write(Batch(run_id="00000000000000ab", attempt=0, rank=rank, first_seq=1, events=events))
        writer.close()
    return run_dir


def test_merge_makes_one_run_and_tells_it_as_json(tmp_path, capsys):
    run_dir = two_ranks(tmp_path / "run")
    assert main(["merge", str(run_dir.base), "--json", "--tag", "acc"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [0, 1]
    merged = {v.tag: v.data for e in read_directory(run_dir.base) for v in e.values}
    assert (merged["acc"], merged["acc/max"], merged["acc/argmax_rank"]) == (0.5, 1.0, 1.0)


def test_landscape_of_a_factory_without_ray(tmp_path, capsys, monkeypatch):
    run_dir = two_ranks(tmp_path / "run")
    (tmp_path / "bowl_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [
        "landscape",
        str(run_dir.base),
        "bowl_factory:parts",
        "--size",
        "5",
        "--workers",
        "0",
        "--json",
    ]
    assert main([*arguments, "--directions", "random"]) == 1  # the run kept no checkpoints
    assert "train_metadata.json" in capsys.readouterr().err
    assert main(["landscape", str(run_dir.base), "nowhere:parts", "--workers", "0"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_an_error_is_one_line_that_names_the_verb(tmp_path, capsys):
    assert main(["merge", str(tmp_path / "absent")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("distsummary merge: ")
    assert str(tmp_path / "absent") in message
    assert message.count("\n") == 1


def test_wrong_arguments_are_argparses(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["merge"])
    assert "RUN" in capsys.readouterr().err

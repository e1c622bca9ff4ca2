"""What a run without identity writes in the place of names, and that all later jobs in it do the same."""

import os
import platform
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.rundir.identity import as_recorded, host_in, without_places, without_places_in
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology


def test_the_directories_of_paths_are_left_out_of_texts() -> None:
    home = os.path.expanduser("~")
    for text, left in (
        ("FileNotFoundError: '/data/alice/a b.bin'", "FileNotFoundError: 'a b.bin'"),
        (f"{home}/x/train.py:12 in step: y = f(x) / 2", "train.py:12 in step: y = f(x) / 2"),
        (f"{os.getcwd()}/train.py:3", "train.py:3"),
        ('{"ckpt": "/a/b/c-1_2.ckpt"}', '{"ckpt": "c-1_2.ckpt"}'),
        ("see https://example.org/a/b, 3/4 of it", "see https://example.org/a/b, 3/4 of it"),
        ("loss is 1/2 and a/b/c", "loss is 1/2 and a/b/c"),
    ):
        assert without_places(text) == left
    assert without_places_in({"a": ["/x/y", 1, None], "b": ("/x/z",)}) == {"a": ["y", 1, None], "b": ["z"]}


def test_the_name_of_this_host_is_left_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "gpu-17.lab")
    assert without_places("connection to gpu-17.lab:29500 closed") == "connection to ***:29500 closed"


def test_what_a_run_omits_is_omitted_by_all_that_is_written_into_it(nasty_tmp_path: Path) -> None:
    run_dir = nasty_tmp_path / "run"
    for options in ({"record": ds.Record(identity=False)}, {"on_existing": "attempt"}, {"role": "eval"}):
        with ds.init(run_dir, quiet=True, system_metrics=False, **options) as run:
            if "role" in options:
                with run.eval() as evaluation:
                    evaluation.log(accuracy=1.0)
            else:
                for _ in run.steps(range(2)):
                    run.log(loss=1.0)
    with ds.SummaryRecord(run_dir / "mine") as record:
        record.scalars(1, {"loss": 1.0})
    names = [path.name for path in run_dir.rglob("events.*")]
    assert len(names) >= 5
    assert all(".host-" in name for name in names)
    assert host_in(nasty_tmp_path) == platform.node()
    place = Topology()
    assert as_recorded(RunDir(nasty_tmp_path), place) is place


def test_a_new_run_next_to_a_finished_one_is_claimed_without_the_name_of_the_job(
    nasty_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "gpu-17", "MASTER_PORT": "29"}.items():
        monkeypatch.setenv(name, value)
    for expected in ("run", "run-2", "run-3"):
        options = {"on_existing": "new", "record": ds.Record(identity=False)}
        with ds.init(nasty_tmp_path / "run", quiet=True, system_metrics=False, **options) as run:
            for _ in run.steps(range(2)):
                run.log(loss=1.0)
        assert (nasty_tmp_path / expected / "run.json").exists()
    texts = [path.read_text() for path in nasty_tmp_path.rglob("*.json")]
    assert len(texts) == 6
    assert not any("gpu-17" in text for text in texts)

"""The recommended door: ranks meet in one run, resumed ones keep its past, strangers are told at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from distsummary.errors import InvalidValueError, RunDirError
from distsummary.reading.reader import read_directory
from distsummary.run_dir import RunDir


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def train(path: Path, steps: int, *, rank: int = 0, world_size: int = 2, **options: Any) -> None:
    with ds.init(path, rank=rank, world_size=world_size, **options) as run:
        for _ in run.steps(range(steps)):
            run.log(loss=float(rank))


def losses(path: Path) -> Mapping[int, float]:
    return {e.step: v.data for e in read_directory(path) for v in e.values if v.tag == "loss"}


def test_ranks_that_no_launcher_names_meet_in_one_attempt(nasty_tmp_path: Path) -> None:
    for rank in range(2):
        train(nasty_tmp_path, 3, rank=rank)
    assert len(RunDir(nasty_tmp_path).read_manifest()["attempts"]) == 1
    ds.merge_run(nasty_tmp_path)
    assert losses(nasty_tmp_path) == {1: 0.5, 2: 0.5, 3: 0.5}


def test_a_resumed_training_goes_on_and_the_merged_run_keeps_its_past(nasty_tmp_path: Path) -> None:
    for rank in range(2):
        train(nasty_tmp_path, 5, rank=rank)
    for rank in range(2):
        train(nasty_tmp_path, 3, rank=rank, initial_step=4, initial_epoch=1)
    report = ds.merge_run(nasty_tmp_path)
    assert list(losses(nasty_tmp_path)) == [1, 2, 3, 4, 5, 6, 7]
    assert (report.attempts, report.superseded) == ((0, 1), 2)  # step 5 of both ranks was computed anew


@pytest.mark.parametrize("name", ["initial_step", "initial_epoch"])
def test_a_negative_start_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} must be >= 0"):
        ds.init(tmp_path, **{name: -1})


def test_event_files_where_the_merged_run_belongs_are_told_before_the_training(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path, 3, world_size=1)
    with pytest.raises(RunDirError, match=r"holds event files that no merge wrote .* move them"):
        ds.init(nasty_tmp_path, rank=1, world_size=2)


def test_a_run_that_was_not_closed_and_the_next_one_of_the_process_are_two_attempts(
    nasty_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    runs = [ds.init(nasty_tmp_path) for _ in range(2)]
    for number, run in enumerate(runs):
        next(iter(run.steps(range(9))))
        run.log(loss=float(number))
    for run in runs:
        run.close()
    events = list(read_directory(nasty_tmp_path))
    assert sorted((e.attempt, e.step) for e in events for v in e.values if v.tag == "loss") == [
        (0, 1),
        (1, 1),
    ]


def test_a_removed_manifest_does_not_hide_what_is_recorded_from_then_on(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path, 3, world_size=1)
    (nasty_tmp_path / "run.json").unlink()
    train(nasty_tmp_path, 3, world_size=1)
    assert {event.attempt for event in read_directory(nasty_tmp_path)} == {0, 1}


def test_one_callback_is_enough_and_a_second_collector_is_refused(nasty_tmp_path: Path) -> None:
    with ds.init(nasty_tmp_path, callbacks=ds.TimeMonitor()) as run:
        list(run.steps([1, 2]))
    with pytest.raises(InvalidValueError, match="callbacks must not hold a SummaryCollector"):
        ds.init(nasty_tmp_path, callbacks=[ds.SummaryCollector(nasty_tmp_path)])


@pytest.mark.parametrize("place", [3, (3, 2), (0, 0), (0.0, 2), "dp"])
def test_a_mesh_that_is_none_is_refused_with_its_axis(nasty_tmp_path: Path, place: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"mesh\['dp'\] must be \(coordinate"):
        ds.init(nasty_tmp_path, mesh={"dp": place})


@pytest.mark.parametrize(
    "asked",
    [
        {"collect_landscape": {"sketch": 1}},
        {"collect_specified_data": {"collect_landscape": {"intervals": [[1, 2, 3]]}}},
    ],
)
def test_a_landscape_of_a_model_that_nobody_gives_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=r"got watch=None; pass the model: ds\.init"):
        ds.init(tmp_path, **asked)
    ds.init(tmp_path, rank=1, world_size=2, **asked).close()  # rank 0 keeps what all have


def test_the_ranks_of_a_job_name_their_run_by_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    for rank in range(2):
        train(tmp_path / "{time}", 2, rank=rank)
    [path] = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert list(RunDir(path).rank_dirs()) == [0, 1]


def test_ranks_that_cannot_know_one_time_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"must not hold {time} here, .* --rdzv-id"):
        ds.init(tmp_path / "{time}", rank=1, world_size=2)
    assert list(tmp_path.iterdir()) == []
    train(tmp_path / "{time}", 1, world_size=1)
    assert len(list(tmp_path.iterdir())) == 1

"""Every example runs as it stands, and leaves what it says; that of many ranks does so in tests/ray."""

import re
from pathlib import Path

import pytest

from distsummary import LossGrid
from distsummary.events.reader import read_directory, read_lineage
from distsummary.rundir.run_dir import RunDir
from tests import forked
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("fork_server")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, place: Path, *arguments: str) -> str:
    done = forked.run_script(ROOT / "examples" / name, place, *arguments, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def tags(directory: Path) -> dict[str, set[int]]:
    """Tag -> the steps that have it."""
    found: dict[str, set[int]] = {}
    for event in read_directory(directory):
        for value in event.values:
            found.setdefault(value.tag, set()).add(event.step)
    return found


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES} == {
        "own_loop.py", "reinforcement.py", "accumulate.py", "summary_record.py",
        "many_ranks.py", "landscape.py", "from_mindspore.py", "gradients.py", "gpt_taps.py",
    }  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_started(path: Path) -> None:
    assert f"`python examples/{path.name}" in path.read_text().split('"""')[1]


def test_the_own_loop_records_everything(tmp_path: Path) -> None:
    said = run("own_loop.py", tmp_path / "run")
    assert int(said.split()[0]) > 60
    found = tags(tmp_path / "run")
    assert found["loss"] == found["gradients/norm"] == set(range(1, 61))
    assert found["gradients/first"] == set(range(10, 61, 10))
    assert found["task"] == {0}
    assert found["confusion"] == found["confusion_matrix"] == {30, 60}  # a tensor and a figure
    assert len(found["eval/accuracy"]) == 2
    assert {"lr", "1.weight/auto", "input_data/auto"} <= found.keys()
    lineage = read_lineage(tmp_path / "run").train
    assert lineage.algorithm.network == "Sequential"


def test_each_episode_is_one_step(tmp_path: Path) -> None:
    said = run("reinforcement.py", tmp_path / "run")
    episodes = int(said.split()[0])
    found = tags(tmp_path / "run")
    for tag in ("loss", "episode/reward", "episode/baseline", "zz_perf/step_ms"):
        assert found[tag] == set(range(1, episodes + 1))
    assert episodes < 500, "the corridor was not learned"


def test_a_step_is_four_batches_and_the_last_of_an_epoch_two(tmp_path: Path) -> None:
    run("accumulate.py", tmp_path / "run")
    found = tags(tmp_path / "run")
    assert found["loss"] == found["zz_perf/step_ms"] == set(range(1, 17))
    assert found["weight/auto"] == {1, 10}


def test_the_fourth_way_of_the_tutorial(tmp_path: Path) -> None:
    run("summary_record.py", tmp_path / "run")
    found = {(value.plugin, value.tag): 0 for e in read_directory(tmp_path / "run") for value in e.values}
    assert found.keys() == {
        ("scalar", "loss"), ("tensor", "weight"), ("histogram", "weight"), ("image", "inputs"),
    }  # fmt: skip
    assert tags(tmp_path / "run")["loss"] == set(range(1, 21))


def test_an_optimizer_that_records_its_gradients_records_what_gradients_does(tmp_path: Path) -> None:
    run("gradients.py", tmp_path / "run")
    found = tags(tmp_path / "run")
    assert found["zz_gradient/0.weight"] == found["0.weight.gradient"] == {1, 10, 20, 30, 40}
    assert found["norms/gradient_unclipped"] == set(range(1, 41))
    first = {v.tag: v.data for e in read_directory(tmp_path / "run") if e.step == 1 for v in e.values}
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        ours, tutorials = first[f"zz_gradient/{name}"], first[f"{name}.gradient"]
        assert ours.counts.tolist() == tutorials.counts.tolist()
        assert (ours.min, ours.max) == (tutorials.min, tutorials.max)


def test_a_compiled_gpt_reports_what_happens_inside(tmp_path: Path) -> None:
    said = run("gpt_taps.py", tmp_path / "run", "aot_eager")  # inductor would take a minute
    assert said.startswith("60 steps, loss ")
    assert said.endswith(", 0 graph breaks\n")
    found = tags(tmp_path / "run")
    for block in ("block0", "block1"):
        for number in ("gradient", "largest_logit", "entropy", "rms"):
            assert found[f"{block}/{number}"] == set(range(1, 61))
        assert found[f"{block}/output"] == found[f"{block}/attention"] == {1, *range(10, 61, 10)}
    assert found["zz_norms"] == found["zz_norms/gradient"] == set(range(1, 61))


@pytest.mark.long
def test_the_landscape_has_its_path(tmp_path: Path) -> None:
    run("landscape.py", tmp_path / "run")
    [saved] = RunDir(tmp_path / "run").landscape_dir.glob("*.npz")
    grid = LossGrid.load(saved)
    assert len(grid.numbers) == 11
    assert grid.true_loss[-1] < grid.true_loss[0]
    assert (tmp_path / "run" / "valley.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_samples_of_mindspores_pages_run_with_their_lines_unchanged(tmp_path: Path) -> None:
    pages = (ROOT / "tests" / "mindspore_samples.txt").read_text().splitlines()  # all lines that name a class
    ours = {line.strip() for line in (ROOT / "examples" / "from_mindspore.py").read_text().splitlines()}
    assert set(pages) <= ours
    said = run("from_mindspore.py", tmp_path)
    steps = len(re.findall(r"^epoch: \d+ step: \d, loss is 2\.\d+$", said, re.MULTILINE))
    assert (steps, said.count("Train epoch time: ")) == (51, 10)
    for line in (
        "step_num:  2",
        "{'epoch': [1, 2]}",
        "stop: False",
        "landscapes: landscape_[1, 5]",
        "networks: True",
        "evaluated: acc predicted: (1, 10)",
        "second order: 1 conv1 conv2 fc1.0 fc2.0 fc3",
    ):
        assert f"\n{line}\n" in said
    found = tags(tmp_path / "summary_collector" / "summary_dir")
    assert {"loss/auto", "conv1.weight/auto", "input_data/auto"} <= found.keys()
    lineage = read_lineage(tmp_path / "summary_collector" / "summary_dir").train
    assert (lineage.algorithm.network, lineage.hyper_parameters.batch_size) == ("LeNet5", 8)
    steps_of_operators = set(range(1, 6))
    found = tags(tmp_path / "operators" / "summary_dir")
    for tag in ("loss", "tensor", "image", "fc3.weight"):
        assert found[tag] == steps_of_operators
    assert tags(tmp_path / "summary_record" / "summary_dir") == {"loss": {2}}
    assert (tmp_path / "summary_landscape/summary/lenet_interval_1/landscape/landscape_1-5.npz").exists()
    saved = {path.name for path in (tmp_path / "checkpoints").rglob("*.safetensors")}
    steps_of_myckpt = {f"myckpt-{epoch}_{step}.safetensors" for epoch in (1, 2) for step in (1, 2)}
    assert saved == steps_of_myckpt | {f"LeNet5-10_{step}.safetensors" for step in range(1, 6)}

"""What a host reports of its training, without a host."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import distsummary as ds
from distsummary.integrations.follower import follow
from distsummary.integrations.hosted import Hosted
from distsummary.integrations.zero_lines import arm
from tests.programs import run_python


def train() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    follow(optimizer)  # another test may have made one of this class before
    for _ in range(3):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_trainer_after_a_loop_of_the_script_begins_a_run_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTSUMMARY", "loop")
    arm("loop", '{"quiet": true}')
    hosted = Hosted("trainer", {"quiet": True})
    # A script may change its working directory before its first step.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    train()
    assert os.environ["DISTSUMMARY"] == str(tmp_path / "loop")
    hosted.begin()
    train()
    hosted.end()
    for name in ("loop", "trainer"):
        run = ds.open_run(tmp_path / name)
        assert (run.state, run.scalars("loss")["step"].tolist()) == ("finished", [1, 2, 3])


def test_settings_are_those_of_the_run_and_after_its_first_step_a_text(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hosted = Hosted(tmp_path / "run", {"quiet": True})
    hosted.begin(optimizers=[optimizer])
    hosted.set_config({"width": 4})
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    hosted.set_config({"late": {"depth": 2}, "password": "open sesame"})
    hosted.set_config(3)  # has no names, which does not end the training
    hosted.end()
    run = ds.open_run(tmp_path / "run")
    assert run.config == {"width": 4}
    assert run.text("host/config").value(0) == "- late.depth: 2\n- password: ***"


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_step_end"])
def test_what_a_callback_among_the_options_raises_reaches_the_script(tmp_path: Path, hook: str) -> None:
    def fail(context: ds.RunContext) -> None:
        raise KeyError("theirs")

    hosted = Hosted(tmp_path / "run", {"quiet": True, "callbacks": ds.LambdaCallback(**{hook: fail})})
    hosted.begin()
    with pytest.raises(KeyError, match="theirs"):
        train()
    hosted.end()


def values_of(run: ds.RecordedRun, tag: str) -> list[tuple[int, float]]:
    table = run.scalars(tag)
    return [*zip(table["step"].tolist(), table["value"].tolist(), strict=True)]


def test_what_a_host_reports_is_kept_whenever_it_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hosted = Hosted(tmp_path / "run", {"quiet": True, "system_metrics": False})
    hosted.begin()
    hosted.evaluated({"before": 0.5, "name": "held out"})
    hosted.log({"early": 1, "nested": {"x": {"y": 2.0}}})
    train()
    hosted.log(
        {
            "array0": np.array(3.0), "array1": np.array([4.0]), "int64": np.int64(5), "bool": True,
            "tensor": torch.ones(1, 1), "nested": {"x": 6.0, "said": "inner"}, "said": "a text",
            "list": [1, 2], "none": None,
        }
    )  # fmt: skip
    hosted.evaluated({"after/last": np.array(0.25), "nested": {"f1": 0.75}})
    hosted.end()
    hosted.evaluated({"final": torch.tensor(0.125)})
    hosted.log({"late": 1.0})
    hosted.log({"later": 1.0})
    run = ds.open_run(tmp_path / "run")
    expected = {
        "eval/before": [(0, 0.5)], "host/early": [(0, 1)], "host/nested/x/y": [(0, 2)],
        "host/array0": [(3, 3)], "host/array1": [(3, 4)], "host/int64": [(3, 5)], "host/tensor": [(3, 1)],
        "host/bool": [(3, 1)], "host/nested/x": [(3, 6)], "eval/after/last": [(3, 0.25)],
        "eval/nested/f1": [(3, 0.75)], "eval/final": [(3, 0.125)],
    }  # fmt: skip
    assert {tag: values_of(run, tag) for tag in expected} == expected
    texts = {tag: run.text(tag).value(0) for tag in ("host/said", "host/nested/said")}
    assert texts == {"host/said": "a text", "host/nested/said": "inner"}
    # What is no number is counted, and what comes too late is named once.
    assert run.health["dropped"].tolist() == [2]
    assert capsys.readouterr().err.count("are not recorded: the training has ended") == 1


def test_a_training_that_its_host_did_not_end_was_interrupted(tmp_path: Path) -> None:
    """As a Trainer's that ran out of memory, or a trial that was pruned: its host goes on."""
    hosted = Hosted(tmp_path / "run", {"quiet": True, "system_metrics": False})
    for _ in range(2):
        hosted.begin()
        train()
    hosted.end()
    assert ds.open_run(tmp_path / "run").state == "interrupted"
    again = ds.open_run(tmp_path / "run-2")
    assert (again.state, again.scalars("loss")["step"].tolist()) == ("finished", [1, 2, 3])


SEVERAL = """
import torch
from torch import nn
G, D = nn.Linear(2, 2), nn.Linear(2, 1)
g, d = torch.optim.SGD(G.parameters(), lr=.1), torch.optim.SGD(D.parameters(), lr=.1)
for _ in range(2):
    z = torch.ones(1, 2)
    for optimizer in (d, g):
        optimizer.zero_grad()
        D(G(z)).sum().backward()
        optimizer.step()
"""
BY_HAND = """
import torch
net = torch.nn.Linear(2, 1)
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""
NO_TRAINING = "import torch; torch.ones(1).sum()"


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (SEVERAL, '{"norms": true}', "norms: of Linear alone, which the first optimizer trains"),
        (SEVERAL, "{}", ""),
        (BY_HAND, "{}", "nothing was recorded: 3 backward passes, and no step of a torch.optim.Optimizer"),
        (NO_TRAINING, "{}", ""),
    ],
)
def test_what_zero_lines_do_not_see_is_named(tmp_path: Path, script: str, options: str, said: str) -> None:
    variables = {"DISTSUMMARY": str(tmp_path / "run"), "DISTSUMMARY_OPTIONS": options}
    lines = [
        one for one in run_python("-c", script, **variables).stderr.splitlines() if "recording" not in one
    ]
    assert ("\n".join(lines) == "") == (not said)
    assert said in "\n".join(lines)

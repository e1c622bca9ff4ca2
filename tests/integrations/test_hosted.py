"""What a host reports of its training, without a host."""

from pathlib import Path

import pytest
import torch

import distsummary as ds
from distsummary.integrations.follower import follow
from distsummary.integrations.hosted import Hosted
from distsummary.integrations.zero_lines import arm


def train() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    follow(optimizer)  # another test may have made one of this class before
    for _ in range(3):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_trainer_after_a_loop_of_the_script_begins_a_run_of_its_own(tmp_path: Path) -> None:
    arm(str(tmp_path / "loop"), '{"quiet": true}')
    train()
    hosted = Hosted(tmp_path / "trainer", {"quiet": True})
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

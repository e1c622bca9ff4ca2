"""What a host reports of its training, without a host."""

from pathlib import Path

import torch

import distsummary as ds
from distsummary.integrations.hosted import Hosted


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

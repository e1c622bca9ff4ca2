"""Model against MindSpore's with the same data, weights and optimizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from tests.interop.conftest import run_mindspore

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs, and what MindSpore made of them."""
    place: Path = tmp_path_factory.mktemp("mindspore_model")
    run_mindspore("mindspore_model.py", place)
    with np.load(place / "inputs.npz") as inputs:
        return dict(inputs), json.loads((place / "reported.json").read_text())


def test_a_training_has_mindspores_losses_and_results(reported: Any) -> None:
    inputs, answers = reported
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6))
    network.load_state_dict({name: torch.from_numpy(inputs[name]) for name in network.state_dict()})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    model = ds.Model(network, nn.CrossEntropyLoss(), optimizer, metrics={"acc", "recall", "loss"})
    data = [
        (torch.from_numpy(x), torch.from_numpy(y).long())
        for x, y in zip(inputs["data"], inputs["labels"], strict=True)
    ]
    losses: list[float] = []
    results: list[dict[str, Any]] = []
    keep = ds.LambdaCallback(
        on_train_step_end=lambda context: losses.append(float(context.original_args().net_outputs)),
        on_train_epoch_end=lambda context: results.append(context.original_args().eval_results),
    )
    model.fit(3, data, data, callbacks=keep)
    expected = answers
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    assert len(results) == len(expected["results"]) == 3
    for ours, theirs in zip(results, expected["results"], strict=True):
        assert ours.keys() == theirs.keys()
        # MindSpore 2.10 makes a new metric for each batch: its eval_loss is that of the last batch alone
        assert ours["eval_loss"] == ours["loss"]
        for name, value in (theirs | {"eval_loss": theirs["loss"]}).items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-5, err_msg=name)

"""SummaryLandscape for a torch model, with the four values that MindSpore's callback_fn returns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from tests.frameworks.test_torch_landscape import Mlp
from tests.unit.landscapes import golden_mlp


def callback_fn() -> tuple[Any, ...]:
    data = [(torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in golden_mlp.batches()]
    return nn.CrossEntropyLoss(), Mlp(), data, {"Loss": None}


@pytest.mark.usefixtures("no_matplotlib")
def test_a_run_of_torch_is_drawn_from_its_trajectory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, criterion = Mlp(), nn.CrossEntropyLoss()
    _, _, data, _ = callback_fn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = {"intervals": [[1, 3, 5, 7]], "landscape_size": 5, "num_samples": 16}
    record = ds.Record(collect_landscape=path)
    with ds.init(tmp_path / "run", watch=model, optimizer=optimizer, record=record) as run:
        for inputs, targets in run.steps((data * 4)[:8]):
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    landscapes = ds.SummaryLandscape(tmp_path / "run")
    grids = landscapes.gen_landscapes_with_multi_process(lambda: (model, criterion, data), device_ids=[])
    assert (grids["pca"].numbers, grids["pca"].samples) == ((1, 3, 5, 7), 16)
    assert grids["pca"].z.shape == (5, 5)
    with torch.no_grad():
        state = {name: value.clone() for name, value in model.state_dict().items()}
        centre = np.mean([float(criterion(model(x), y)) for x, y in data[:2]])
    # the last checkpoint is that of step 7, the model has taken step 8
    assert grids["pca"].true_loss[-1] > centre
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    landscapes.clean_ckpt()
    assert not (tmp_path / "run" / "ckpt_dir").exists()


class OwnLoss(Mlp):
    """The net with its loss inside, as a Model without a loss_fn takes it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(super().forward(x), y)


@pytest.mark.usefixtures("no_matplotlib")
def test_the_sample_of_mindspores_page_runs_with_a_model(tmp_path: Path) -> None:
    _, _, ds_train, _ = callback_fn()
    network = Mlp()
    net_loss = nn.CrossEntropyLoss()
    net_opt = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    model = ds.Model(network, net_loss, net_opt, metrics={"Accuracy": ds.Accuracy()})
    interval_1 = [1, 2, 3, 4, 5]
    summary_collector = ds.SummaryCollector(
        summary_dir=str(tmp_path / "lenet_interval_1"),
        collect_specified_data={
            "collect_landscape": {
                "landscape_size": 4, "unit": "step", "create_landscape": {"train": True, "result": False},
                "num_samples": 2048, "intervals": [interval_1],
            }
        },
    )  # fmt: skip
    model.train(2, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)

    def made(network: nn.Module, net_loss: Any) -> tuple[Any, ...]:
        metrics = {"Loss": ds.Loss()}
        model = ds.Model(network, net_loss, metrics=metrics, eval_network=network)
        return model, network, ds_train, metrics

    summary_landscape = ds.SummaryLandscape(str(tmp_path / "lenet_interval_1"))
    collect_landscape = {
        "landscape_size": 4,
        "create_landscape": {"train": True, "result": False},
        "num_samples": 2048,
        "intervals": [interval_1],
    }
    drawn = [
        summary_landscape.gen_landscapes_with_multi_process(
            lambda made_of=made_of: made(*made_of),  # type: ignore[misc]
            collect_landscape=collect_landscape,
            device_ids=[1],
            resume=False,
        )["pca"]
        for made_of in ((Mlp(), net_loss), (OwnLoss(), None))
    ]
    assert drawn[0].z.shape == (4, 4)
    assert drawn[0].numbers == (1, 2, 3, 4, 5)
    np.testing.assert_allclose(drawn[1].z, drawn[0].z, rtol=1e-5)

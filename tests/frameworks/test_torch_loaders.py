"""Torch's loaders that shuffle or augment: all points see the same data, held or streamed."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import distsummary as ds
from distsummary.errors import InvalidValueError
from tests.frameworks.landscape_nets import Mlp, make_net

CRITERION = nn.CrossEntropyLoss()


def rows() -> TensorDataset:
    numbers = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(60, 6, generator=numbers), torch.arange(60) % 3)


class Augmenting(Dataset[Any]):
    """Rows with noise of all three global generators."""

    def __init__(self) -> None:
        self.rows = rows()

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> Any:
        inputs, label = self.rows[number]
        return inputs + torch.randn(6) + float(np.random.normal()) + random.gauss(), label


def loader(data: Any = None, **options: Any) -> Any:
    return DataLoader(data or rows(), **({"batch_size": 10, "shuffle": True} | options))


def drawn(batches: Any, *, streamed: bool | None, size: int = 5) -> ds.LossGrid:
    evaluation = ds.Evaluation(streamed=streamed)
    grid = ds.landscape(
        make_net(Mlp), CRITERION, batches, plane=ds.Plane(size=size), compute=ds.Compute(engine="row"),
        evaluation=evaluation, progress=False,
    )  # fmt: skip
    assert isinstance(grid, ds.LossGrid)
    return grid


@pytest.mark.parametrize(
    ("data", "options"),
    [(rows, {}), (Augmenting, {}), (Augmenting, {"num_workers": 2})],
    ids=["rows", "augmented", "augmented by two workers"],
)
def test_streamed_held_and_again_are_the_same_bits(data: Any, options: Any) -> None:
    size = 3 if options else 5
    found = [
        drawn(loader(data(), **options), streamed=streamed, size=size).z.tobytes()
        for streamed in (True, False, True)
    ]
    assert found[0] == found[1] == found[2]


def test_all_rows_of_points_see_the_same_augmented_data() -> None:
    seen: list[bytes] = []

    def loss_fn(model: Any, batch: Any) -> Tensor:
        seen.append(batch[0].numpy().tobytes())
        return CRITERION(model(batch[0]), batch[1])

    ds.landscape(
        make_net(Mlp), batch_loss=loss_fn, batches=loader(Augmenting()), plane=ds.Plane(size=5),
        compute=ds.Compute(engine="row"), evaluation=ds.Evaluation(streamed=True), progress=False,
    )  # fmt: skip
    assert len(seen) > 25 * 6
    assert len(set(seen)) == 6


def test_what_the_model_draws_changes_nothing_for_the_loader() -> None:
    class Noisy(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            torch.rand(3), random.random(), np.random.normal()
            return super().forward(x)

    plain = drawn(loader(), streamed=True)
    noisy = ds.landscape(
        make_net(Noisy), CRITERION, loader(), plane=ds.Plane(size=5), compute=ds.Compute(engine="row"),
        evaluation=ds.Evaluation(streamed=True), progress=False,
    )  # fmt: skip
    assert noisy.z.tobytes() == plain.z.tobytes()


@pytest.mark.parametrize("streamed", [True, False])
def test_the_callers_generators_are_as_before(streamed: bool) -> None:
    def states() -> list[Any]:
        numpys = np.random.get_state()
        return [random.getstate(), numpys[1].tobytes(), numpys[2:], torch.get_rng_state().tolist()]  # type: ignore[index]  # of two kinds

    net, batches = make_net(Mlp), loader(Augmenting())
    np.random.normal()  # a second number of the pair waits in it
    before = states()
    ds.landscape(
        net, CRITERION, batches, plane=ds.Plane(size=5), compute=ds.Compute(engine="row"), progress=False,
        evaluation=ds.Evaluation(streamed=streamed),
    )  # fmt: skip
    assert states() == before


@pytest.mark.parametrize("options", [{"generator": True}, {"num_workers": 1, "persistent_workers": True}])
def test_a_loader_that_continues_from_reading_to_reading_is_refused(options: Any) -> None:
    if "generator" in options:
        options = {"generator": torch.Generator().manual_seed(0)}
    with pytest.raises(InvalidValueError, match=r"generator=.*persistent_workers.*shuffle=False.*a list"):
        drawn(loader(**options), streamed=True)


def test_held_it_is_read_once_and_taken() -> None:
    batches = loader(generator=torch.Generator().manual_seed(0))
    again = loader(generator=torch.Generator().manual_seed(0))
    assert drawn(batches, streamed=False).z.tobytes() == drawn(again, streamed=False).z.tobytes()


def test_products_with_the_hessian_see_the_same_data_too() -> None:
    grids = [
        ds.landscape(
            make_net(Mlp), CRITERION, batches, directions="hessian", plane=ds.Plane(size=3),
            compute=ds.Compute(engine="row"), evaluation=ds.Evaluation(streamed=streamed), progress=False,
        )
        for batches, streamed in ((loader(), True), (loader(), False))
    ]  # fmt: skip
    assert grids[0].eigenvalues == grids[1].eigenvalues  # type: ignore[union-attr]  # one grid each

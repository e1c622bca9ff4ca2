"""What a run records of the factors of THOR, and the landscape in the plane of their eigenvectors."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.collect.values.curvature_source import FIGURES, LAYERS
from distsummary.errors import InvalidValueError
from distsummary.events.reader import read_values
from distsummary.frameworks.base import CurvatureSource
from distsummary.landscapes.directions.hessian import angles
from distsummary.thor import THOR
from tests.landscape_arguments import grouped


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def train(net: nn.Module, optimizer: THOR, run: ds.Run, steps: int) -> None:
    for x, y in run.steps(batches(steps)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss)


def test_a_run_records_its_factors_as_one_table(tmp_path: Path) -> None:
    net = network()
    optimizer = THOR(net, lr=0.05, damping=lambda step: 0.1 / (step + 1), batch_size=8, frequency=10)
    with ds.init(tmp_path, optimizer=optimizer, collect_freq=5, aggregate=False, quiet=True) as run:
        train(net, optimizer, run, 21)
    found: dict[str, dict[int, object]] = {}
    for value in read_values(tmp_path):
        if value.tag.startswith("zz_curvature/"):
            found.setdefault(value.tag, {})[value.step] = value.value
    assert [*found["zz_curvature/damping"]] == [1, 5, 10, 15, 20]
    np.testing.assert_allclose(found["zz_curvature/damping"][20], 0.1 / 20, rtol=1e-6)
    assert [*found["zz_curvature/refreshes"].values()] == [1, 1, 1, 2, 2]
    assert [*found["zz_curvature/refresh_ms"]] == [1, 15]
    assert all(value == 0 for value in found["zz_curvature/skipped"].values())
    assert [*found[LAYERS]] == [*found[FIGURES]] == [1, 15]
    rows = str(found[LAYERS][15]).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| 0", "| 2"]
    figures = np.asarray(found[FIGURES][15])
    assert figures.shape == (2, 4)
    assert (figures[:, 2:] >= 1).all()
    expected = [optimizer.state[net[at].weight]["figures"][1:5].tolist() for at in (0, 2)]
    assert not np.allclose(figures, expected)  # those of the refresh of step 21 are recorded later
    assert len(found) == 6


def test_other_optimizers_have_no_such_values(tmp_path: Path) -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with ds.init(tmp_path, optimizer=optimizer, collect_freq=1, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    assert not isinstance(optimizer, CurvatureSource)
    assert not [value.tag for value in read_values(tmp_path) if value.tag.startswith("zz_curvature/")]


def test_the_largest_eigenvectors_are_those_of_the_damped_kronecker_product() -> None:
    net = network().double()
    optimizer = THOR(net, lr=0.05, damping=0.1, batch_size=8)
    x, y = batches(1)[0]
    nn.functional.cross_entropy(net(x.double()), y).backward()
    optimizer.step()
    values, vectors = [], []
    for at in (0, 2):
        state = optimizer.state[net[at].weight]
        whole = torch.kron(state["inverse_g"][0, 0].inverse(), state["inverse_a"][0, 0].inverse())
        found, of = torch.linalg.eigh(whole)
        values += found.tolist()
        vectors += [(at, column) for column in of.T]
    order = np.argsort(values)[::-1]
    largest = optimizer.largest_curvature(3)
    np.testing.assert_allclose([one.value for one in largest], np.array(values)[order[:3]], rtol=1e-9)
    for one, place in zip(largest, order, strict=False):
        at, column = vectors[place]
        assert [*one.vector] == [f"{at}.weight"]
        cosine = abs(float(np.dot(one.vector[f"{at}.weight"].ravel(), column.numpy())))
        assert cosine > 1 - 1e-9


@pytest.mark.parametrize("directions", [["curvature"], ["hessian", "curvature"]], ids=str)
def test_a_landscape_has_the_plane_of_the_factors(directions: list[str]) -> None:
    net = network()
    optimizer = THOR(net, lr=0.05, damping=0.1, batch_size=8, frequency=2)
    data = batches(4)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    grids = ds.landscape(
        net, nn.CrossEntropyLoss(), data, directions=directions,
        plane=ds.Plane(curvature=optimizer, size=5), compute=ds.Compute(workers=0), progress=False,
    )  # fmt: skip
    grid = grids["curvature"]
    largest = optimizer.largest_curvature(2)
    assert grid.eigenvalues == tuple(one.value for one in largest)
    assert (grid.kind, grid.decomposition, grid.eigenvalue_errors) == ("curvature", "Curvature", ())
    assert len(grid.hessian_angles) == (0 if directions == ["curvature"] else 2)
    assert all(0 <= angle <= 90 for angle in grid.hessian_angles)
    moved = copy.deepcopy(net)
    with torch.no_grad():
        dict(moved.named_parameters())[next(iter(largest[0].vector))].add_(
            torch.from_numpy(next(iter(largest[0].vector.values()))).float(), alpha=float(grid.x[4])
        )
        losses = [float(nn.functional.cross_entropy(moved(x), y)) for x, y in data]
    assert grid.z[2, 4] == pytest.approx(np.mean(losses), rel=1e-5)
    assert all(map(torch.equal, before, net.parameters()))


def test_the_plane_of_the_factors_needs_an_optimizer_that_has_refreshed_them() -> None:
    net = network()
    given = {"workers": 0, "progress": False, "size": 5}
    with pytest.raises(InvalidValueError, match=r"ds\.thor\.THOR"):
        ds.landscape(net, nn.CrossEntropyLoss(), batches(1), **grouped(directions="curvature", **given))
    optimizer = THOR(net, lr=0.1, damping=0.1)
    with pytest.raises(InvalidValueError, match="ask for 'curvature'"):
        ds.landscape(net, nn.CrossEntropyLoss(), batches(1), **grouped(curvature=optimizer, **given))
    with pytest.raises(ds.LandscapeError, match="refresh its factors first"):
        ds.landscape(
            net,
            nn.CrossEntropyLoss(),
            batches(1),
            **grouped(directions="curvature", curvature=optimizer, **given),
        )


def test_angles_between_planes() -> None:
    x, y, z = np.eye(3)
    assert angles(np.stack([x, y]), np.stack([y, x])) == pytest.approx((0, 0), abs=1e-5)
    assert angles(np.stack([x, y]), np.stack([x, z])) == pytest.approx((0, 90))
    tilted = (y + z) / np.sqrt(2)
    assert angles(np.stack([x, y]), np.stack([x, tilted])) == pytest.approx((0, 45))

"""Hessian-vector products of torch models, and the landscapes along the eigenvectors they lead to."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn.attention import SDPBackend, sdpa_kernel

from distsummary import Plane, landscape
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.hessian import lanczos, mean_product
from distsummary.landscapes.engines.torch_hessian import TorchHessian
from tests.frameworks.test_torch_landscape import conv_net, fingerprint, images
from tests.unit.landscapes import golden_mlp

CRITERION = nn.CrossEntropyLoss()


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def batches(dtype: torch.dtype = torch.float64) -> list[Any]:
    """24 rows in uneven batches: their means count by rows."""
    x, y = (np.concatenate(parts) for parts in zip(*golden_mlp.batches(), strict=True))
    cuts = [slice(0, 5), slice(5, 6), slice(6, 24)]
    return [(torch.from_numpy(x[c]).to(dtype), torch.from_numpy(y[c]).long()) for c in cuts]


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in framework_of(model).named_parameters(model)]


def dense_hessian(model: nn.Module, data: list[Any], names: list[str]) -> Any:
    """The Hessian of the mean loss by torch.func, float64 (D, D)."""
    values = {name: p.detach() for name, p in model.named_parameters()}
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))

    def loss(moved: dict[str, torch.Tensor]) -> torch.Tensor:
        return CRITERION(functional_call(model, {**values, **moved}, (x,)), y)

    with warnings.catch_warnings(), sdpa_kernel([SDPBackend.MATH]):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.func's own
        blocks = hessian(loss)({name: values[name] for name in names})
    sizes = {name: values[name].numel() for name in names}
    rows = [torch.cat([blocks[a][b].reshape(sizes[a], sizes[b]) for b in names], 1) for a in names]
    return torch.cat(rows).numpy()


def test_products_are_those_of_the_dense_hessian() -> None:
    model, data = mlp(), batches()
    dense = dense_hessian(model, data, names_of(model))
    v = np.random.default_rng(0).normal(size=len(dense))
    with TorchHessian(
        model, CRITERION, data, names=names_of(model), centre=framework_of(model).state(model)
    ) as h:
        np.testing.assert_allclose(mean_product(h)(v), dense @ v, rtol=1e-10, atol=1e-12)
        found = lanczos(mean_product(h), len(dense), tolerance=1e-9)
    values, vectors = np.linalg.eigh(dense)
    np.testing.assert_allclose(found.values, values[[-1, -2]], rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * vectors.T[[-1, -2]], axis=1)), 1, rtol=1e-9)


def test_sparse_gradients_make_the_product_of_dense_ones() -> None:
    torch.manual_seed(1)
    dense = nn.Sequential(nn.Embedding(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    sparse = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Tanh(), nn.Linear(4, 3)).double()
    sparse.load_state_dict(dense.state_dict())
    data = [(torch.tensor([0, 1, 1, 3]), torch.tensor([0, 1, 2, 0]))]
    names = names_of(dense)
    centre = {name: p.detach().numpy() for name, p in dense.named_parameters()}
    vector = np.random.default_rng(0).normal(size=35)
    products = []
    for model in (dense, sparse):
        with TorchHessian(model, CRITERION, data, names=names, centre=centre) as found:
            products.append(found.product(vector))
    np.testing.assert_allclose(*products, rtol=1e-12)


def test_a_vector_that_is_read_only_as_those_of_rays_store_gives_its_product() -> None:
    model = mlp()
    v = np.random.default_rng(0).normal(size=sum(p.numel() for p in model.parameters()))
    with TorchHessian(
        model, CRITERION, batches(), names=names_of(model), centre=framework_of(model).state(model)
    ) as h:
        expected = h.product(v).tobytes()
        v.flags.writeable = False
        assert h.product(v).tobytes() == expected  # and no warning, which would be an error here


@pytest.mark.usefixtures("several_threads")
def test_the_product_is_the_sum_of_its_groups_in_order() -> None:
    model = mlp()
    torch.manual_seed(1)
    sizes = range(2, 21)
    data = [(torch.randn(n, 4, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in sizes]
    centre, names = framework_of(model).state(model), names_of(model)
    v = np.random.default_rng(0).normal(size=sum(centre[name].size for name in names))
    with TorchHessian(model, CRITERION, data, names=names, centre=centre) as h:
        assert h.groups == 8
        assert h.weight == sum(sizes)
        parts = [h.group_product(v, number) for number in range(h.groups)]
        assert h.product(v).tobytes() == sum(parts, start=np.zeros_like(v)).tobytes()
    assert torch.get_num_threads() == 2


def test_batches_that_are_read_again_or_do_not_fit_into_a_gpu_give_the_same_bits(fill_device):
    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return iter(data)

    model, data = mlp(), batches()
    centre, names = framework_of(model).state(model), names_of(model)
    v = np.random.default_rng(0).normal(size=sum(centre[name].size for name in names))

    def product(source: Any) -> bytes:
        with TorchHessian(model, CRITERION, source, names=names, centre=centre) as h:
            return bytes(h.product(v).tobytes())

    expected = product(data)
    assert product(Loader()) == expected
    fill_device()
    assert product(data) == expected


def test_the_hessian_is_that_of_the_checkpoint_over_the_parameters_that_move() -> None:
    model, data = mlp(), batches()
    other = {name: a + 0.1 for name, a in framework_of(model).state(model).items()}
    moved = mlp()
    moved.load_state_dict({name: torch.from_numpy(a) for name, a in other.items()})
    dense = dense_hessian(moved, data, ["2.weight"])
    v = np.random.default_rng(0).normal(size=18)
    with TorchHessian(model, CRITERION, data, names=["2.weight"], centre=other) as h:
        np.testing.assert_allclose(mean_product(h)(v), dense @ v, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["standard", "mindspore"])
def test_the_model_and_the_generators_are_left_as_they_were(mode: str) -> None:
    model, data = conv_net(), images()
    before, noise = fingerprint(model), torch.get_rng_state()
    centre = {name: a * 0.5 for name, a in framework_of(model).state(model).items()}
    names = names_of(model)
    h = TorchHessian(model, CRITERION, data, names=names, centre=centre, mode=mode)
    v = np.ones(sum(centre[name].size for name in names))
    assert np.array_equal(h.product(v), h.product(v))  # dropout makes the same noise
    h.close()
    h.close()
    assert fingerprint(model) == before
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_that_move_in_mindspores_mode_are_frozen_again() -> None:
    model = conv_net()
    centre = framework_of(model).state(model)
    with TorchHessian(
        model, CRITERION, images(), names=["frozen.weight"], centre=centre, mode="mindspore"
    ) as h:
        assert np.isfinite(h.product(np.ones(256))).all()
    assert not model.frozen.weight.requires_grad


def test_attention_has_a_second_derivative() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(24, 3)
    )
    data = [(torch.randn(4, 3, 8), torch.tensor([0, 1, 2, 0]))]
    names = ["0.self_attn.in_proj_weight", "2.weight"]
    dense = dense_hessian(model.eval(), data, names)
    v = np.random.default_rng(0).normal(size=len(dense))
    with TorchHessian(model, CRITERION, data, names=names, centre=framework_of(model).state(model)) as h:
        np.testing.assert_allclose(mean_product(h)(v), dense @ v, rtol=1e-3, atol=1e-5)


def test_a_loss_linear_in_what_moves_has_a_hessian_of_zero() -> None:
    model = nn.Linear(3, 1)
    data = [(torch.randn(4, 3), torch.zeros(4, 1))]
    with TorchHessian(
        model, lambda out, _: out.mean(), data, names=["bias"], centre=framework_of(model).state(model)
    ) as h:
        assert h.product(np.ones(1)).tolist() == [0]


def test_a_loss_without_a_gradient_is_refused() -> None:
    model, data = mlp(), batches()
    centre = framework_of(model).state(model)
    for loss_fn in (lambda out, y: CRITERION(out, y).item(), lambda out, y: CRITERION(out, y).detach()):
        with (
            TorchHessian(model, loss_fn, data, names=names_of(model), centre=centre) as h,
            pytest.raises(LandscapeError, match="with a single element and a gradient"),
        ):
            h.product(np.ones(51))
    with torch.inference_mode(), pytest.raises(LandscapeError, match="call landscape, outside of it"):
        TorchHessian(model, CRITERION, data, names=names_of(model), centre=centre)


# No direction is leading where all eigenvalues are 0.
def test_a_plane_of_a_loss_without_curvature_is_said_to_be_arbitrary(caplog: pytest.LogCaptureFixture):
    data = [(torch.randn(4, 3), torch.zeros(4, 1))]
    flat, size = lambda out, _: out.mean(), Plane(size=3)
    landscape(nn.Linear(3, 1), flat, data, directions="hessian", plane=size, progress=False)
    assert "no curvature at the centre (eigenvalues 0), so its plane is arbitrary" in caplog.text


def test_a_landscape_along_the_leading_eigenvectors_curves_as_the_eigenvalues_say() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 2).double()
    data = [
        (torch.randn(rows, 6).double() * torch.arange(1, 7), torch.randn(rows, 2).double()) for rows in (9, 4)
    ]
    before = fingerprint(model)
    grid = landscape(model, nn.MSELoss(), data, directions="hessian", plane=Plane(size=5), progress=False)
    assert fingerprint(model) == before
    assert (grid.kind, grid.decomposition, grid.tag) == ("hessian", "Hessian", "landscape_hessian")
    # The loss is a parabola along any line, so its second difference is the eigenvalue.
    across, along = grid.z[2], grid.z[:, 2]
    bends = [line[0] - 2 * line[2] + line[4] for line in (across, along)]
    np.testing.assert_allclose(grid.eigenvalues, bends, rtol=1e-5)
    assert max(grid.eigenvalue_errors) < 1e-3 * grid.eigenvalues[0]


def test_eigenvectors_can_be_had_of_a_subspace_only() -> None:
    model, data = mlp(), batches()
    grid = landscape(
        model, CRITERION, data, directions="hessian", plane=Plane(parameters=r"^2\.", size=3), progress=False
    )
    values = np.linalg.eigvalsh(dense_hessian(model, data, ["2.weight", "2.bias"]))
    np.testing.assert_allclose(grid.eigenvalues, values[[-1, -2]], rtol=1e-5)
    with pytest.raises(InvalidValueError, match="at least two elements"):
        landscape(
            nn.Linear(1, 1), nn.MSELoss(), [(torch.ones(2, 1), torch.ones(2, 1))], directions="hessian",
            plane=Plane(parameters="bias"), progress=False,
        )  # fmt: skip


def test_eigenvectors_that_have_not_converged_are_said_to_be_so(monkeypatch, caplog):
    monkeypatch.setattr(lanczos, "__kwdefaults__", lanczos.__kwdefaults__ | {"max_products": 3})
    landscape(mlp(), CRITERION, batches(), directions="hessian", plane=Plane(size=3), progress=False)
    assert "have not converged after 3 products" in caplog.text

"""Directions drawn where the model computes; the host stands for a GPU, and torch for NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from distsummary.landscapes.directions import torch_normals, torch_rows
from distsummary.landscapes.directions.normals import BLOCK, random_normals
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.directions.torch_normals import device_normals
from distsummary.landscapes.directions.torch_parameters import OwnState, filter_axes, named_tensors
from distsummary.landscapes.directions.torch_rows import rows_on, whole
from distsummary.landscapes.model import torch_memory
from tests.frameworks.landscape_nets import Cnn, Mlp, Net, Words, make_net
from tests.frameworks.test_torch_inference_engine import (
    INFERENCE,
    assert_equal_bits,
    random_recipe,
    values_of,
)

HOST = torch.device("cpu")
LAST_BITS = 3e-7  # of float32


@pytest.fixture
def drawn_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host as on a GPU, in pieces that even small parameters have several of."""
    for module in (torch_rows, torch_memory):
        monkeypatch.setattr(module, "draws", lambda device: True)
    for module, piece in ((torch_rows, 1 << 10), (torch_normals, 1 << 9)):
        monkeypatch.setattr(module, "PIECE", piece)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (1, 2), (3, 8), (5, 5), (BLOCK - 3, BLOCK + 4), (2 * BLOCK + 1, 7 * BLOCK)]
)
def test_the_normals_are_numpys_but_for_last_bits(seed: int, start: int, stop: int) -> None:
    expected = random_normals(seed, 1, "blocks.0.weight", start, stop)
    found = device_normals(seed, 1, "blocks.0.weight", start, stop, HOST)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=LAST_BITS, atol=1e-12)
    assert np.count_nonzero(found.numpy() != expected) <= 1


@pytest.mark.usefixtures("drawn_there")
@pytest.mark.parametrize("how", ["none", "filter", "layer", "mindspore"])
def test_directions_are_scaled_there_as_on_the_host(how: str) -> None:
    net = nn.ModuleList(
        [nn.Linear(20, 30), nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.LayerNorm(9)]
    )
    tensors = named_tensors(net) | {"scale": torch.tensor(1.5), "still": torch.zeros(5, 4)}
    state = OwnState(tensors)
    recipe = RandomDirections(
        names=tuple(tensors), seed=5, normalization=how, filter_axes=filter_axes(net) | {"still": -1}
    )
    expected = recipe.make(dict(state))
    for axis, direction in enumerate((expected.x, expected.y)):
        for name in tensors:
            rows = recipe.rows(axis, name, rows_on(HOST, state, name))
            np.testing.assert_allclose(
                whole(rows, HOST).numpy(), direction[name], rtol=LAST_BITS, atol=1e-12, err_msg=name
            )


@pytest.mark.usefixtures("drawn_there")
@pytest.mark.parametrize("normalization", ["filter", "layer"])
@pytest.mark.parametrize("kind", [Mlp, Cnn, Words], ids=lambda kind: kind.__name__)
def test_the_engines_that_draw_there_agree_bit_for_bit(kind: type[Net], normalization: str) -> None:
    net = make_net(kind)
    assert_equal_bits(net, net.batches(), random_recipe(net, normalization))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_losses_hang_on_where_directions_are_drawn_in_last_bits_only(dtype, request):
    net = make_net(Mlp).to(dtype)
    batches = [(x.to(dtype), labels) for x, labels in net.batches()]
    before = values_of(net, batches, INFERENCE, random_recipe(net))
    request.getfixturevalue("drawn_there")
    after = values_of(net, batches, INFERENCE, random_recipe(net))
    np.testing.assert_allclose(after, before, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)

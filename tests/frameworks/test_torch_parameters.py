"""What torch modules report about their parameters: filter axes, tied names, subspaces of checkpoints."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary import Compute, Directions, Evaluation, LossGrid, Plane, landscape
from distsummary.checkpoints.safetensors import write_safetensors
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import moving
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.directions.torch_parameters import filter_axes, tied_names
from distsummary.landscapes.model.torch_loan import Loan, portable
from tests.landscape_arguments import grouped


class Language(nn.Module):
    """A head tied to its embedding, attention, LayerNorm, and an adapter next to frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.lora_A = nn.Linear(4, 2, bias=False)
        self.lora_B = nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        return self.head(self.base(h) + self.lora_B(self.lora_A(h))).mean(1)


def language() -> Language:
    torch.manual_seed(0)
    return Language()


def batches() -> list[Any]:
    return [(torch.arange(12).reshape(4, 3) % 7, torch.tensor([0, 1, 2, 3]))]


def draw(model: nn.Module, **more: Any) -> LossGrid:
    grid = landscape(model, nn.CrossEntropyLoss(), batches(), **grouped(size=3, progress=False, **more))
    assert isinstance(grid, LossGrid)
    return grid


def filter_norms(weight: torch.Tensor, axis: int) -> Any:
    return weight.double().movedim(axis, 0).flatten(1).norm(dim=1).numpy()


def test_filters_of_transposed_convolutions_lie_along_axis_one_in_each_group() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.ConvTranspose1d(4, 3, 3)
    )
    assert filter_axes(nn.DataParallel(model)) == {"1.weight": (1, 2), "2.weight": 1}
    state = framework_of(model).state(model)
    names = tuple(state)
    made = RandomDirections(names=names, filter_axes=moving(model, "standard").filter_axes).make(state)
    scaled, weight = torch.tensor(made.x["1.weight"]), model[1].weight.detach()
    for part, w in zip(scaled.chunk(2), weight.chunk(2), strict=True):  # (in / 2, out / 2, 3, 3) of a group
        np.testing.assert_allclose(filter_norms(part, 1), filter_norms(w, 1), rtol=1e-6)
    np.testing.assert_allclose(
        filter_norms(torch.tensor(made.x["2.weight"]), 1),
        filter_norms(model[2].weight.detach(), 1),
        rtol=1e-6,
    )


def test_the_transposed_linear_of_gpt2_is_known_by_its_name() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))  # (in, out)

    assert filter_axes(Conv1D()) == {}
    Conv1D.__module__ = "transformers.pytorch_utils"
    assert filter_axes(nn.Sequential(Conv1D())) == {"0.weight": 1}


def test_the_documented_rule_for_a_language_model() -> None:
    model = language()
    moved = moving(model, "standard")
    assert moved.tied == tied_names(model) == {"head.weight": "embed.weight"}
    assert "head.weight" not in moved.names
    assert not any(name.startswith("base") for name in moved.names)
    made = RandomDirections(names=moved.names).make(framework_of(model).state(model)).x
    for name in ("norm.weight", "norm.bias", "attention.in_proj_bias"):
        assert not made[name].any()
    for name in ("embed.weight", "attention.in_proj_weight", "lora_A.weight"):
        weight = dict(model.named_parameters())[name].detach()
        np.testing.assert_allclose(
            filter_norms(torch.tensor(made[name]), 0), filter_norms(weight, 0), rtol=1e-6
        )


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_a_checkpoint_of_a_wrapped_model_is_that_of_the_model(wrap: Any, tmp_path: Path) -> None:
    trained = language()
    with torch.no_grad():
        trained.norm.bias += 1
    expected = draw(language(), around=trained.state_dict()).z.tobytes()
    state = wrap(trained).state_dict()
    assert set(state).isdisjoint(trained.state_dict())
    assert draw(language(), around=state).z.tobytes() == expected
    assert draw(wrap(language()), around=state).z.tobytes() == expected
    assert draw(wrap(language()), around=trained.state_dict()).z.tobytes() == expected
    write_safetensors(tmp_path / "a.safetensors", {n: t.numpy() for n, t in state.items() if "head" not in n})
    assert draw(language(), around=tmp_path / "a.safetensors").z.tobytes() == expected
    along = {name: np.ones(t.shape, np.float32) for name, t in state.items() if "lora_A" in name}
    other = {name: array.cumsum(1) for name, array in along.items()}
    assert draw(language(), directions=Directions(x=along, y=other)).kind == "given"


def test_a_checkpoint_of_adapters_alone_is_enough_for_their_subspace() -> None:
    model = language()
    adapters = {name: t for name, t in model.state_dict().items() if "lora" in name}
    whole = draw(model, parameters="lora")
    assert draw(model, parameters="lora", around=adapters).z.tobytes() == whole.z.tobytes()
    with pytest.raises(InvalidValueError, match=r"embed\.weight"):
        draw(model, around=adapters)
    with pytest.raises(InvalidValueError, match=r"frozen parameters or buffers: base\.weight"):
        draw(model, parameters="base")


def test_a_direction_may_name_a_tied_parameter_by_its_second_name() -> None:
    from distsummary.landscapes.directions.recipe import Directions

    model = language()
    array = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    grids = [
        draw(model, directions=Directions(x={name: array}, y={name: array[::-1]}), normalization="none")
        for name in ("embed.weight", "head.weight")
    ]
    assert grids[0].z.tobytes() == grids[1].z.tobytes()
    assert grids[0].kind == "given"


def shared() -> Language:
    """Tied by its memory: two parameters that look at one storage."""
    model = language()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    return model


@pytest.mark.parametrize(
    "more",
    [
        {"engine": "row"}, {"engine": "naive"}, {"engine": "graph"}, {"engine": "graph x3"},
        {"memory": "inference"}, {"directions": "hessian", "engine": "row"},
    ],
)  # fmt: skip
def test_parameters_that_share_memory_move_as_one(more: dict[str, Any]) -> None:
    model = shared()
    embed, head = model.embed.weight, model.head.weight
    assert embed is not head
    assert tied_names(model) == {"head.weight": "embed.weight"}
    grid = draw(model, **more)
    assert grid.z.tobytes() == draw(language(), **more).z.tobytes()
    assert model.embed.weight is embed
    assert model.head.weight is head
    assert embed.data_ptr() == head.data_ptr()


def test_views_of_other_parts_or_shapes_are_parameters_of_their_own() -> None:
    whole = torch.randn(4, 4)
    model = nn.ParameterDict({"all": whole, "part": whole[:2], "turned": whole.t(), "again": whole[:]})
    assert tied_names(model) == {"all": "again"}  # the dict is sorted
    empty = nn.ParameterDict({"a": torch.empty(0, 3), "b": torch.empty(0, 3)})
    meta = nn.ParameterDict({"a": torch.empty(3, device="meta"), "b": torch.empty(3, device="meta")})
    assert tied_names(empty) == tied_names(meta) == {}


@pytest.mark.parametrize(
    ("frozen", "dtype"), [("", torch.float32), ("embed", torch.float32), ("head", torch.bfloat16)]
)
def test_a_head_that_is_a_view_of_another_shape_is_refused(frozen: str, dtype: torch.dtype) -> None:
    model = language().to(dtype)
    model.head.weight = nn.Parameter(model.embed.weight.data.t())  # (4, 7)
    if frozen:
        model.get_submodule(frozen).requires_grad_(False)
    with pytest.raises(
        InvalidValueError, match=r"embed\.weight \(7, 4\) and head\.weight \(4, 7\) share memory"
    ):
        moving(model, "standard")
    assert moving(model, "standard", "lora").names == ("lora_A.weight", "lora_B.weight")
    model.head.weight = nn.Parameter(model.head.weight.data.clone())
    assert "norm.weight" in moving(model, "standard").names


def test_only_memory_in_common_is_refused() -> None:
    whole = torch.randn(6, 4)
    apart = {"top": whole[:3], "left": whole[3:, :2], "right": whole[3:, 2:]}
    assert len(moving(nn.ParameterDict(apart), "standard").names) == 3
    assert len(moving(nn.LSTM(3, 4, 2), "standard").names) == 8
    for other in (whole[2:4], whole[5], whole[::2, 1:2], whole.flatten()):
        with pytest.raises(InvalidValueError, match="share memory, and a landscape would move them indep"):
            moving(nn.ParameterDict({**apart, "other": other}), "standard")


def test_shared_memory_reaches_another_process_as_one_parameter() -> None:
    model = shared()
    sent, _ = pickle.loads(pickle.dumps(portable(model, batches())))
    assert sent.head.weight is sent.embed.weight
    assert model.head.weight is not model.embed.weight
    assert portable(language(), [])[0].head.weight is not None
    plain = nn.Linear(2, 2)
    assert portable(plain, [])[0] is plain  # nothing is copied that need not be


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_model_that_shares_memory_is_refused_with_the_remedy() -> None:
    plain = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    plain[1].weight = nn.Parameter(plain[0].weight.data)
    with pytest.raises(InvalidValueError, match=r"0\.weight and 1\.weight of a scripted .* one parameter"):
        landscape(
            torch.jit.script(plain),
            nn.MSELoss(),
            [(torch.ones(2, 3),) * 2],
            plane=Plane(size=3),
            progress=False,
        )


class Normed(nn.Module):
    """With BatchNorm, so that there is something that counts and does not move."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.out = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.layer(x)))


def draw_normed(model: nn.Module, **more: Any) -> Any:
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    return landscape(model, nn.MSELoss(), [(data, data[:, :1])], **grouped(size=3, progress=False, **more))


@pytest.mark.parametrize("directions", ["random", "hessian"])
def test_running_statistics_that_are_nan_are_reported_by_name(directions: str) -> None:
    model = Normed()
    model.norm.running_var[1] = float("nan")
    with pytest.raises(LandscapeError, match=r"norm\.running_var of the centre holds NaN.*recompute"):
        draw_normed(model, directions=directions)
    for bn_mode in ("batch", "recompute"):
        assert np.isfinite(draw_normed(model, evaluation=Evaluation(bn_mode=bn_mode)).z).all()
    state = {n: t for n, t in Normed().state_dict().items() if "running" not in n}
    with pytest.raises(LandscapeError, match=r"running_var of the model \(the checkpoint does not have it\)"):
        draw_normed(model, around=state, directions=directions)


def test_a_buffer_of_another_shape_is_reported_by_name() -> None:
    for shape in (3, 1):
        state = Normed().state_dict() | {"norm.running_mean": torch.zeros(shape)}
        with pytest.raises(InvalidValueError, match=rf"norm\.running_mean of shape \({shape},\), the model"):
            draw_normed(Normed(), around=state)
    loan = Loan(Normed(), [])
    with pytest.raises(InvalidValueError, match=r"norm\.running_mean of shape \(1,\)"):
        loan.place({"norm.running_mean": np.zeros(1)})
    loan.give_back()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_rounding_of_a_half_model_is_its_own_with_checkpoints_of_float32(dtype: torch.dtype) -> None:
    model, data = nn.Linear(3, 1).to(dtype), torch.ones(4, 3, dtype=dtype)
    state = {name: t.float() for name, t in model.state_dict().items()}
    x, y = ({"weight": np.array([[1e-5, sign, 1e-5]])} for sign in (1e-5, -1e-5))
    grid = landscape(
        model, nn.MSELoss(), [(data, data[:, :1])], around=state, directions=Directions(x=x, y=y),
        plane=Plane(size=3, normalization="none"), compute=Compute(workers=0), progress=False,
    )  # fmt: skip
    assert grid.rounding == {"x": 1.0, "y": 1.0}
    assert len(np.unique(grid.z)) == 1


def sparse(*, requires_grad: bool = True) -> nn.Module:
    model = nn.Linear(3, 1)
    model.weight = nn.Parameter(torch.ones(1, 3).to_sparse(), requires_grad=requires_grad)
    return model


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: nn.Linear(3, 1, device="meta"), InvalidValueError, "weight is on the device meta"),
        (lambda: nn.LazyLinear(1), InvalidValueError, "weight is lazy, without a shape"),
        (lambda: nn.Linear(3, 1).to(torch.complex64), InvalidTypeError, "weight is complex64; convert it"),
        (lambda: sparse(), InvalidTypeError, r"weight is sparse \(torch.sparse_coo\), and .*; keep it dense"),
        (lambda: sparse(requires_grad=False), InvalidTypeError, r"weight is sparse \(torch.sparse_coo\)"),
    ],
)
def test_models_without_real_values_are_refused_by_name(make: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        draw_normed(make())
    state = nn.Linear(3, 1).state_dict()
    for mode in ("standard", "mindspore"):
        with pytest.raises(error, match=match):
            draw_normed(make(), around=state, mode=mode)


def test_what_does_not_move_may_be_complex() -> None:
    model = Normed()
    model.register_buffer("frequencies", torch.ones(2, dtype=torch.complex64))
    assert np.isfinite(draw_normed(model).z).all()


def test_a_buffer_that_no_checkpoint_holds_may_be_sparse() -> None:
    model = Normed()
    model.register_buffer("graph", torch.eye(2).to_sparse(), persistent=False)
    assert np.isfinite(draw_normed(model).z).all()


def test_memory_can_be_resized_after_a_landscape_as_fsdp_does() -> None:
    model = nn.Linear(3, 2)
    landscape(
        model, nn.MSELoss(), [(torch.ones(4, 3), torch.ones(4, 2))], plane=Plane(size=3), progress=False
    )
    assert all(p.untyped_storage().resizable() for p in model.parameters())

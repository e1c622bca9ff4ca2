from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.checkpoints.mapped import MappedState
from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.parameters import canonical, moving, near, select
from tests.refusals import refused

NAMES = [
    "model.layers.0.q_proj.weight", "model.layers.0.q_proj.lora_A.weight",
    "model.layers.0.q_proj.lora_B.weight", "model.layers.1.mlp.weight", "lm_head.weight",
]  # fmt: skip


class Tied:
    """A numpy model whose head is its embedding."""

    def __init__(self) -> None:
        embedding = np.arange(6, dtype=np.float32).reshape(3, 2)
        self.parameters = {"embed": embedding, "fc.weight": np.ones((2, 2), np.float32), "head": embedding}
        self.buffers = {"running_mean": np.zeros(2, np.float32)}

    def __call__(self, x: Any) -> Any:
        return x


def test_names_are_chosen_by_text_or_regular_expression_in_the_models_order() -> None:
    assert select(NAMES, "lora") == NAMES[1:3]
    assert select(NAMES, ["lm_head", r"layers\.1\."]) == NAMES[3:]
    assert select(NAMES, [r"lora_A", "lora"]) == NAMES[1:3]
    assert select(NAMES, [r"^lm_head\.weight$"]) == NAMES[4:]


def test_patterns_and_states_that_do_not_fit_are_refused() -> None:
    found = moving(Tied(), "standard")

    def check(running_mean: Any) -> object:
        return found.check("checkpoint 4", Tied().parameters | {"running_mean": running_mean})

    refused(
        InvalidValueError,
        (lambda: select(NAMES, ["lm_head", "lorra_A"]), r"'lorra_A' matches no .*similar .*q_proj\.lora_A"),
        (
            lambda: select(NAMES, "running", others=lambda: ["bn.running_mean"]),
            r"or buffers: bn\.running_mean",
        ),
        (lambda: check(np.zeros(3)), r"has running_mean of shape \(3,\), the model of shape \(2,\)"),
        (lambda: check(np.zeros(2, complex)), "has running_mean as complex128, the model has it as float32"),
    )
    refused(
        InvalidTypeError,
        (lambda: found.check("checkpoint 4", [1, 2]), "checkpoint 4 must be arrays by name, got list"),  # type: ignore[arg-type]
    )


def test_near_names_are_the_likest_first_and_never_none() -> None:
    assert near("lora_b", NAMES)[0] == NAMES[2]
    assert near("lm_heat", NAMES)[0] == "lm_head.weight"
    assert near("zzzz", NAMES) == NAMES


def test_what_moves_is_each_tensor_once_under_its_first_name() -> None:
    found = moving(Tied(), "standard")
    assert found.names == ("embed", "fc.weight")
    assert found.shapes["embed"] == (3, 2)
    assert found.tied == {"head": "embed"}
    assert moving(Tied(), "standard", ["fc"]).names == ("fc.weight",)
    with pytest.raises(InvalidValueError, match=r"frozen parameters or buffers: running_mean"):
        moving(Tied(), "standard", "running")


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_state_may_have_either_name_of_a_tied_parameter_or_both(is_mapped: bool, tmp_path: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)

    def stored(state: dict[str, Any]) -> Any:
        if not is_mapped:
            return state
        write_ckpt(tmp_path / "a.ckpt", state)
        return map_ckpt(tmp_path / "a.ckpt")

    for names in [("embed",), ("head",), ("embed", "head")]:
        state = canonical("checkpoint 1", stored(dict.fromkeys(names, array)), {"head": "embed"})
        assert np.array_equal(state["embed"], array)
        assert isinstance(state, MappedState) is is_mapped
    different = {"embed": array, "head": array + 1}
    with pytest.raises(InvalidValueError, match="checkpoint 1 has different values for embed and head"):
        canonical("checkpoint 1", stored(different), {"head": "embed"})


WRAPPERS = ("module.", "_orig_mod.", "module._orig_mod.", "module.module.")


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("prefix", WRAPPERS)
def test_names_may_have_the_prefix_of_a_wrapper_or_miss_it(prefix: str, is_mapped: bool, tmp_path: Path):
    state: Any = {prefix + name: array for name, array in Tied().parameters.items()}
    if is_mapped:
        write_ckpt(tmp_path / "a.ckpt", state)
        state = map_ckpt(tmp_path / "a.ckpt")
    named = moving(Tied(), "standard").check("checkpoint 1", state)
    assert isinstance(named, MappedState) is is_mapped
    assert {name: array.tolist() for name, array in named.items()} == {
        name: Tied().parameters[name].tolist() for name in ("embed", "fc.weight")
    }
    wrapped = Tied()
    wrapped.parameters = {f"module.{name}": array for name, array in wrapped.parameters.items()}
    wrapped.buffers = {f"module.{name}": array for name, array in wrapped.buffers.items()}
    for given in (state, Tied().parameters, wrapped.parameters):
        assert list(moving(wrapped, "standard").check("it", given)) == ["module.embed", "module.fc.weight"]


@pytest.mark.parametrize("prefix", ["", "module."])
def test_names_may_have_torch_compiles_wrapper_around_a_layer_or_miss_it(prefix: str) -> None:
    plain = Tied().parameters
    partly = {prefix + name.replace("fc.", "fc._orig_mod."): array for name, array in plain.items()}
    assert list(moving(Tied(), "standard").check("it", partly)) == ["embed", "fc.weight"]
    wrapped = Tied()
    wrapped.parameters, wrapped.buffers = partly, {}
    for given in (plain, {f"_orig_mod.{name}": array for name, array in plain.items()}):
        named = moving(wrapped, "standard").check("it", given)
        assert list(named) == [f"{prefix}embed", f"{prefix}fc._orig_mod.weight"]
    both = plain | {"fc._orig_mod.weight": np.full((2, 2), 9.0)}
    named = moving(Tied(), "standard").check("it", both)
    assert named["fc.weight"].tolist() == plain["fc.weight"].tolist()  # two are never made one


def test_names_that_differ_otherwise_are_reported_of_both_sides() -> None:
    found = moving(Tied(), "standard")
    reported = r"\(only in the state: {}; only in the model: {}\); give the model that made"
    some = {f"net.{name}": array for name, array in Tied().parameters.items()}
    half = Tied().parameters | {"module.fc.weight": np.ones((2, 2))}
    del half["fc.weight"]
    for state, only, gone in [
        (some, "net.embed, net.fc.weight, net.head", "embed, fc.weight, running_mean"),
        (half, "module.fc.weight", "fc.weight, running_mean"),
        ({}, "none", "embed, fc.weight, running_mean"),
    ]:
        with pytest.raises(InvalidValueError, match=reported.format(only, gone)):
            found.check("the state", state)


def test_arrays_that_share_memory_in_other_shapes_are_refused() -> None:
    model = Tied()
    model.parameters["head"] = model.parameters["embed"].T
    with pytest.raises(InvalidValueError, match=r"embed \(3, 2\) and head \(2, 3\) share memory.*a clone"):
        moving(model, "standard")
    assert moving(model, "standard", "fc").names == ("fc.weight",)
    model.parameters["head"] = model.parameters["embed"][1:]
    with pytest.raises(InvalidValueError, match=r"embed \(3, 2\) and head \(2, 2\) share memory"):
        moving(model, "standard")
    model.parameters["head"] = model.parameters["embed"].T.copy()
    assert moving(model, "standard").names == ("embed", "fc.weight", "head")


def test_a_model_without_parameters_has_no_landscape() -> None:
    empty = Tied()
    empty.parameters = {}
    with pytest.raises(LandscapeError, match="no trainable parameters"):
        moving(empty, "standard")


def test_a_tied_parameter_may_be_called_by_its_other_name() -> None:
    assert moving(Tied(), "standard", "head").names == ("embed",)
    assert moving(Tied(), "standard", filter_axis={"head": 1}).filter_axes == {"embed": 1}
    with pytest.raises(InvalidValueError, match="filter_axis has both 0 and 1 for embed, a parameter with"):
        moving(Tied(), "standard", filter_axis={"embed": 0, "head": 1})


def test_arrays_that_look_at_one_memory_alike_are_tied() -> None:
    model = Tied()
    whole = model.parameters["embed"]
    model.parameters["head"] = whole[:]
    found = moving(model, "standard")
    assert found.tied == {"head": "embed"}
    assert "head" not in found.own


@pytest.mark.parametrize("kind", [np.int64, np.complex64])
def test_parameters_that_cannot_move_are_refused_by_name(kind: type) -> None:
    model = Tied()
    model.parameters["fc.weight"] = np.ones((2, 2), kind)
    with pytest.raises(InvalidTypeError, match=rf"floating-point .*, but fc\.weight is {np.dtype(kind)}"):
        moving(model, "standard")
    assert moving(model, "standard", "embed").names == ("embed",)


def test_integers_do_not_move_in_mindspores_mode_either() -> None:
    model = Tied()
    model.buffers = {"relative_bias_index": np.arange(4), "bias_mask": np.ones(2, bool)}
    assert moving(model, "mindspore").names == ("fc.weight",)


def test_what_is_known_of_each_parameter_that_moves() -> None:
    found = moving(Tied(), "standard", ["fc", "fc"])
    assert (found.patterns, found.precisions) == (("fc", "fc"), {"fc.weight": "float32"})
    assert set(found.own) == {"embed", "fc.weight", "running_mean"}


def test_a_number_may_be_stored_as_an_array_of_one() -> None:
    model = Tied()
    model.buffers = {"count": np.array(3)}
    moving(model, "standard").check("checkpoint 4", model.parameters | {"count": np.array([5])})

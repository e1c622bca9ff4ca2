import numpy as np
import pytest

from distsummary import Directions
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.planes import Settings, path_axes, prepare_given, prepare_random
from distsummary.landscapes.directions.recipe import Array

RNG = np.random.default_rng(0)
CENTRE = {"w": RNG.normal(size=(3, 4)).astype(np.float32), "b": RNG.normal(size=3).astype(np.float32)}


def given() -> Directions:
    x, y = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    return Directions(x={"w": x}, y={"w": y})


@pytest.mark.parametrize(
    ("mode", "bn_mode", "reads"),
    [
        ("standard", "", True),
        ("standard", "eval", True),
        ("standard", "recompute", False),
        ("mindspore", "", False),
    ],
)
def test_only_layers_in_eval_mode_read_statistics(mode: str, bn_mode: str, reads: bool) -> None:
    assert Settings(size=3, mode=mode, bn_mode=bn_mode).reads_statistics == reads


def test_a_path_without_extent_has_room_on_each_side() -> None:
    x, y = path_axes(np.array([[0.0, 2.0], [1.0, 2.0]]), 3)
    np.testing.assert_allclose(x, [-0.2, 0.5, 1.2])
    np.testing.assert_allclose(y, [1.8, 2.0, 2.2])


def test_given_directions_are_scaled_by_filters_along_their_axes_unless_said_otherwise() -> None:
    directions = given()

    def x_of(settings: Settings) -> Array:
        prepared = prepare_given(CENTRE, None, ["w", "b"], settings, directions)
        return prepared.plane.recipe.make(CENTRE).x["w"]

    usual = x_of(Settings(size=3))
    np.testing.assert_allclose(np.linalg.norm(usual, axis=1), np.linalg.norm(CENTRE["w"], axis=1), rtol=1e-5)
    turned = x_of(Settings(size=3, filter_axes={"w": 1}))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=0), np.linalg.norm(CENTRE["w"], axis=0), rtol=1e-5)
    np.testing.assert_array_equal(x_of(Settings(size=3, normalization="none")), directions.x["w"])


def test_given_directions_may_lie_in_any_order_and_move_nothing_else() -> None:
    directions, state = given(), CENTRE | {"statistics": np.ones(2)}
    turned = Directions(x={"w": np.asfortranarray(directions.x["w"])}, y=directions.y)
    found = [prepare_given(state, None, ["w", "b"], Settings(size=3), d) for d in (directions, turned)]
    one, other = (prepared.plane.recipe.make({n: CENTRE[n] for n in "wb"}).x for prepared in found)
    assert set(one) == {"w", "b"}
    assert not one["b"].any()
    assert one["w"].tobytes() == other["w"].tobytes()


def test_matrices_of_zeros_that_would_leave_the_landscape_flat_are_refused() -> None:
    state = {"a": np.ones((2, 3), np.float32), "b": np.zeros((3, 2), np.float32), "bias": np.zeros(3)}
    for normalization in ("", "layer"):
        settings = Settings(size=3, normalization=normalization)
        with pytest.raises(LandscapeError, match=r"1 of 2 matrices fixed.*: b; .*normalization='none'"):
            prepare_random(state, None, [*state], settings)
    prepare_random(state, None, [*state], Settings(size=3, normalization="none"))
    prepare_random(state, None, [*state], Settings(size=3, mode="mindspore", normalization="layer"))
    prepare_random(state | {"c": state["a"]}, None, [*state, "c"], Settings(size=3))


def test_biases_alone_have_no_filters() -> None:
    with pytest.raises(LandscapeError, match="'filter' leaves random directions without any parameter"):
        prepare_random(CENTRE, None, ["b"], Settings(size=3))

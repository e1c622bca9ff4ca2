from typing import Any

import numpy as np
import pytest

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.finite_weights import refuse_diverged, refuse_not_finite

OWN = {"w": np.ones(3), "bn.running_var": np.ones(2), "mask": np.array([0, -np.inf]), "count": np.array(3)}


def refuse(centre: dict[str, Any], own: dict[str, Any] = OWN, **more: Any) -> None:
    refuse_not_finite("checkpoint 7", centre, own, ["w"], **more)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_moves_must_be_finite(bad: float) -> None:
    with pytest.raises(LandscapeError, match="checkpoint 7: w of the centre holds NaN or Inf"):
        refuse(OWN | {"w": np.array([1, bad, 1])})


def test_what_stays_may_be_infinite_as_masks_are_but_not_nan() -> None:
    refuse(OWN)
    with pytest.raises(LandscapeError, match=r"mask of the centre holds NaN.*although mask is not varied"):
        refuse(OWN | {"mask": np.array([0, np.nan])})


def test_the_models_own_values_are_asked_where_the_checkpoint_has_none() -> None:
    nothing = {"w": OWN["w"]}
    refuse(nothing)
    with pytest.raises(LandscapeError, match=r"bn\.running_var of the model.*bn_mode='recompute'"):
        refuse(nothing, OWN | {"bn.running_var": np.array([1, np.nan])})
    refuse(OWN, {name: np.full(np.shape(array), np.nan) for name, array in OWN.items()})  # it has them all


def test_running_statistics_may_be_anything_where_those_of_batches_are_used() -> None:
    refuse(OWN | {"bn.running_var": np.full(2, np.nan)}, reads_statistics=False)
    with pytest.raises(LandscapeError, match="mask of the centre holds NaN"):
        refuse(OWN | {"mask": np.array([0, np.nan])}, reads_statistics=False)


def test_a_checkpoint_that_diverged_is_called_by_its_label_and_its_parameter() -> None:
    states = [{"w": np.ones(2)}, {"w": np.array([1, np.nan])}]
    refuse_diverged(np.ones((2, 2)), states, ["w"], [])
    with pytest.raises(LandscapeError, match=r"step 9 holds NaN or Inf in w; .*around= .*runs="):
        refuse_diverged(np.diag([1, np.nan]), states, ["w"], ["step 4", "step 9"])
    with pytest.raises(LandscapeError, match="so far apart that float64 overflows"):
        refuse_diverged(np.full((2, 2), np.inf), states[:1] * 2, ["w"], [])

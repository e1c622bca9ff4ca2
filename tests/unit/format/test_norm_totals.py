"""What viewers are shown of norms: those of all parameters together."""

import math

import numpy as np
import pytest

from distsummary.format.norm_totals import norm_totals
from distsummary.format.norms import ParameterNorms, ParameterTable

NAN = float("nan")


def totals(gradients, weights, gradient_nonfinite=0):
    """By tag. Gradients: norms of parameters; None: it has no gradient."""
    n = len(gradients)
    zeros = np.zeros(n, np.int64)
    norms = ParameterNorms(
        ParameterTable(tuple(f"p{row}" for row in range(n)), ((2,),) * n, (2,) * n, (0,) * n),
        np.square(np.array(weights)),
        np.square(np.array([0.0 if one is None else one for one in gradients])),
        np.array([one is not None for one in gradients]),
        zeros,
        zeros + np.array(gradient_nonfinite),
        np.full(n, NAN),
        np.full(n, NAN, np.float32),
    )
    return {value.tag: value.data for value in norm_totals(norms)}


def test_the_totals_are_norms_over_all_parameters():
    found = totals([3.0, 4.0, None], [2.0, 1.0, 2.0])
    assert found == pytest.approx({"zz_norms/gradient": 5.0, "zz_norms/weight": 3.0})
    assert totals([None, None], [3.0, 4.0]) == pytest.approx({"zz_norms/weight": 5.0})


def test_a_total_without_the_part_of_a_rank_is_left_out_but_not_one_with_a_nan():
    assert {*totals([NAN, 1.0], [1.0, 1.0])} == {"zz_norms/weight"}
    assert {*totals([1.0, 1.0], [NAN, 1.0])} == {"zz_norms/gradient"}
    assert math.isnan(totals([NAN, 1.0], [1.0, 1.0], gradient_nonfinite=[1, 0])["zz_norms/gradient"])

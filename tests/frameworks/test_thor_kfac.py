"""THOR's factors next to those of curvlinops' KFAC, which curvlinops 3.0.1 computed (tests/golden)."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.docs.documents import ROOT
from tests.frameworks.kfac import SAMPLES, Compared, cases, least, off, ours

GOLDEN = ROOT / "tests/golden/thor_kfac.npz"


def pairs(samples: int) -> list[tuple[Compared, Tensor]]:
    """Each of our factors and theirs."""
    with np.load(GOLDEN) as golden:
        return [
            (one, torch.from_numpy(golden[f"{samples} {one.layer} {one.factor}"]))
            for case in cases(samples)
            for one in ours(case)
        ]


@pytest.mark.parametrize("samples", SAMPLES)
def test_the_factors_of_each_kind_of_layer_have_their_exact_relation_to_kfac(samples: int) -> None:
    found = pairs(samples)
    layers = ["conv", "grouped.0", "grouped.1", "linear", "embedding", "sequence"]
    assert [(one.layer, one.factor) for one, _ in found] == [(name, of) for name in layers for of in "AG"]
    for one, expected in found:
        assert off(one.related, expected) < 1e-12, one.layer


def test_only_convolutions_of_several_samples_are_no_multiple_of_kfac() -> None:
    for samples in SAMPLES:
        for one, expected in pairs(samples):
            is_multiple = least(one.ours, expected) < 1e-12
            is_conv = one.layer.startswith(("conv", "grouped"))
            assert is_multiple is (samples == 1 or not is_conv), one.layer

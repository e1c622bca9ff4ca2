"""How well sketches of many thousand numbers keep what is asked of them."""

import numpy as np
import pytest

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher
from tests.unit.checkpoints.sketch.test_count_sketch import vectors


@pytest.mark.parametrize("kind", ["normal", "constant", "column", "outer"])
def test_products_and_lengths_are_kept_to_within_a_few_percent(kind):
    u, v = vectors(kind)
    flat_u, flat_v = (np.concatenate([w[name].reshape(-1) for name in w]) for w in (u, v))
    s, t = Sketcher().sketch(u), Sketcher().sketch(v)
    scale = np.linalg.norm(flat_u) * np.linalg.norm(flat_v)
    allowed = 4 * np.sqrt(2 / BUCKETS)
    assert abs(s @ t - flat_u @ flat_v) < allowed * scale
    assert abs(s @ s / (flat_u @ flat_u) - 1) < allowed
    assert abs(t @ t / (flat_v @ flat_v) - 1) < allowed

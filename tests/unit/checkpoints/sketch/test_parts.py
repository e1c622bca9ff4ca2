"""Parts of a model: how the shard of a tensor is cut into runs of the whole."""

import numpy as np
import pytest

from distsummary.checkpoints.sketch.parts import contiguous


@pytest.mark.parametrize(
    ("whole", "offset", "shape"),
    [
        ((6, 4), (2, 0), (3, 4)),
        ((6, 4), (0, 1), (6, 2)),
        ((4, 3, 5), (1, 0, 2), (2, 3, 3)),
        ((4, 3, 5), (2, 1, 0), (1, 2, 5)),
        ((7,), (3,), (4,)),
        ((6, 4), (6, 0), (0, 4)),
        ((), (), ()),
    ],
)
def test_a_slice_of_a_tensor_is_a_few_runs_of_the_whole(whole, offset, shape):
    index = np.arange(int(np.prod(whole))).reshape(whole)
    local = index[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))].reshape(-1)
    found = np.full(len(local), -1)
    for start, run in contiguous(shape, whole, offset):
        found[run] = np.arange(start, start + len(local[run]))
    assert found.tolist() == local.tolist()
    if shape[1:] == whole[1:]:
        assert len(list(contiguous(shape, whole, offset))) == 1

"""Whatever the mesh and however parameters lie on it, the merged norms are those of the whole parameters."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.aggregate.added_norms import AddedNorms
from distsummary.format.norms import ParameterNorms, ParameterTable

Places = dict[
    str, tuple[int, int]
]  # axis -> (dimension of the parameter that it splits, its number of ranks)


MESHES: dict[
    str, tuple[tuple[str, ...], tuple[str, ...]]
] = {  # the axes, and those that may split a parameter
    "ddp": (("dp",), ()),
    "fsdp": (("dp_shard",), ("dp_shard",)),
    "hsdp": (("dp_replicate", "dp_shard"), ("dp_shard",)),
    "hsdp, replicas inside": (("dp_shard", "dp_replicate"), ("dp_shard",)),
    "tp": (("tp",), ("tp",)),
    "dp and tp": (("dp", "tp"), ("tp",)),
    "fsdp and tp": (("dp_shard", "tp"), ("dp_shard", "tp")),
    "everything": (("pp", "dp_replicate", "dp_shard", "tp"), ("dp_shard", "tp")),
}


@st.composite
def models(draw: st.DrawFn) -> Any:  # Any: see its use
    kind = draw(st.sampled_from(sorted(MESHES)))
    axes, splitting = MESHES[kind]
    sizes = [draw(st.integers(1, 3)) for _ in axes]
    ranks = [dict(zip(axes, place, strict=True)) for place in itertools.product(*map(range, sizes))]
    size_of = dict(zip(axes, sizes, strict=True))
    parameters = []
    for number in range(draw(st.integers(1, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 7), min_size=0, max_size=3)))
        split = {}
        for axis in splitting:
            if shape and draw(st.booleans()):
                split[axis] = draw(st.integers(0, len(shape) - 1))
        stage = draw(st.integers(0, size_of["pp"] - 1)) if "pp" in axes else None
        parameters.append((f"layer.{number}.weight", shape, split, stage))
    return ranks, size_of, parameters, draw(st.integers(0, 2**32 - 1))


def start_of(
    shape: tuple[int, ...], split: dict[str, int], size_of: dict[str, int], place: dict[str, int]
) -> int:
    """The place of the first element of a rank's part in the whole parameter; 0 if it holds none."""
    part = part_of(np.arange(math.prod(shape)).reshape(shape), split, size_of, place)
    return int(part.reshape(-1)[0]) if part.size else 0


def part_of(whole: Any, split: dict[str, int], size_of: dict[str, int], place: dict[str, int]) -> Any:
    """As FSDP2 and tensor parallelism cut: even chunks from the front, the last ones smaller or empty."""
    for axis, dimension in split.items():
        length = whole.shape[dimension]
        each = -(-length // size_of[axis]) if length else 0
        first = min(length, place[axis] * each)
        whole = np.take(whole, np.arange(first, min(length, first + each)), axis=dimension)
    return whole


def sums(part: Any, blocks: bool) -> float:
    """Of squares: all in float64, or in float32 blocks that are added in float64."""
    flat = part.reshape(-1)
    if not blocks:
        return float(np.square(flat.astype(np.float64)).sum())
    return float(sum(np.square(flat[at : at + 16]).sum(dtype=np.float32) for at in range(0, flat.size, 16)))


@given(models(), st.booleans())
def test_merged_norms_are_those_of_the_whole_parameters(model: Any, blocks: bool) -> None:
    ranks, size_of, parameters, seed = model
    random = np.random.default_rng(seed)
    tensors = {
        name: [random.normal(0, 10.0 ** random.integers(-4, 4), shape).astype(np.float32) for _ in range(3)]
        for name, shape, _, _ in parameters
    }
    for _, gradient, _ in tensors.values():
        if gradient.size and random.random() < 0.2:
            gradient.reshape(-1)[random.integers(gradient.size)] = random.choice([np.nan, np.inf])
    without_gradient = {name for name in tensors if random.random() < 0.2}
    updated = {name for name in tensors if random.random() < 0.5}  # at this step
    by_rank = {}
    for rank, place in enumerate(ranks):
        held = [one for one in parameters if one[3] is None or one[3] == place["pp"]]
        if not held:
            continue
        parts = [[part_of(one, split, size_of, place) for one in tensors[name]] for name, _, split, _ in held]
        has_gradient = np.array([name not in without_gradient for name, *_ in held])
        is_updated = np.array([name in updated for name, *_ in held])
        table = ParameterTable(
            tuple(name for name, *_ in held),
            tuple(shape for _, shape, _, _ in held),
            tuple(part[0].size for part in parts),
            tuple(start_of(shape, split, size_of, place) for _, shape, split, _ in held),
        )
        bad = [[int((~np.isfinite(one)).sum()) for one in part] for part in parts]
        by_rank[rank] = ParameterNorms(
            table,
            np.array([sums(part[0], blocks) for part in parts]),
            np.where(has_gradient, [sums(part[1], blocks) for part in parts], 0.0),
            has_gradient,
            np.array([one[0] for one in bad]),
            np.where(has_gradient, [one[1] for one in bad], 0),
            np.where(is_updated, [sums(part[2], blocks) for part in parts], np.nan),
            np.where(is_updated, [np.abs(part[2]).max(initial=0) for part in parts], np.nan).astype("f4"),
        )
    added = AddedNorms()
    values = added.values(1, by_rank)
    merged = values[0].data
    exact = 5e-6 if blocks else 1e-12
    assert added.short == 0
    assert {*merged.table.names} == {*tensors}
    for row, name in enumerate(merged.table.names):
        weight, gradient, update = tensors[name]
        assert merged.table.shapes[row] == weight.shape
        assert merged.table.local_sizes[row] == weight.size
        assert np.sqrt(merged.weight_sums[row]) == pytest.approx(
            np.linalg.norm(weight.astype(np.float64)), rel=exact
        )
        assert merged.has_gradient[row] == (name not in without_gradient)
        if merged.has_gradient[row]:
            norm = np.linalg.norm(gradient.reshape(-1).astype(np.float64))
            assert np.sqrt(merged.gradient_sums[row]) == pytest.approx(norm, rel=exact, nan_ok=True)
            assert merged.gradient_nonfinite[row] == (~np.isfinite(gradient)).sum()
        if name in updated:
            norm = np.linalg.norm(update.astype(np.float64))
            assert np.sqrt(merged.update_sums[row]) == pytest.approx(norm, rel=exact)
            assert merged.update_max[row] == np.abs(update).max(initial=0.0)
        else:
            assert np.isnan([merged.update_sums[row], merged.update_max[row]]).all()
    total = [one.data for one in values[1:] if one.tag == "zz_norms/weight"]
    every = np.sqrt(sum(np.square(weight.astype(np.float64)).sum() for weight, _, _ in tensors.values()))
    assert total == [pytest.approx(every, rel=exact)]


@given(models(), st.data())
def test_without_a_rank_nothing_is_wrong_only_missing(model: Any, data: st.DataObject) -> None:
    ranks, size_of, parameters, seed = model
    lost = data.draw(st.sets(st.integers(0, len(ranks) - 1), max_size=len(ranks) - 1))
    random = np.random.default_rng(seed)
    tensors = {name: random.integers(1, 1000, shape).astype(np.float64) for name, shape, _, _ in parameters}
    by_rank = {}
    for rank, place in enumerate(ranks):
        held = [one for one in parameters if one[3] is None or one[3] == place["pp"]]
        if rank in lost or not held:
            continue
        parts = [part_of(tensors[name], split, size_of, place) for name, _, split, _ in held]
        table = ParameterTable(
            tuple(name for name, *_ in held),
            tuple(shape for _, shape, _, _ in held),
            tuple(part.size for part in parts),
            tuple(start_of(shape, split, size_of, place) for _, shape, split, _ in held),
        )
        squares = np.array([np.square(part).sum() for part in parts])
        zeros = np.zeros(len(held), np.int64)
        by_rank[rank] = ParameterNorms(
            table, squares, squares, zeros == 0, zeros, zeros, squares, np.ones(len(held), np.float32)
        )
    added = AddedNorms()
    values = added.values(1, by_rank)
    if not by_rank:
        assert values == []
        return
    merged = values[0].data
    expected = np.array([np.square(tensors[name]).sum() for name in merged.table.names])
    for column in (merged.weight_sums, merged.gradient_sums, merged.update_sums):
        is_there = ~np.isnan(column)
        assert (column[is_there] == expected[is_there]).all()
        assert added.short == (~is_there).sum()
        assert lost or is_there.all()

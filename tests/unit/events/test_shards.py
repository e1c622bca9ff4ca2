"""Histograms of shards add up to that of the whole parameter, bucket for bucket."""

import numpy as np
import pytest

from distsummary.events.shards import AddedShards
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.histogram import coarser, count_histogram
from distsummary.format.pb import mindspore_summary_pb2
from distsummary.format.records import Shard, Value
from tests.unit.format import samples

NAN, INF = float("nan"), float("inf")
WHOLE = np.random.default_rng(0).normal(0, 0.02, (7, 40)).astype(np.float32)
EXACT = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max")


def shards(array, places=((0, 3), (3, 6), (6, 7))):
    """The values of the ranks that have the rows from start to end."""
    return [
        Value("histogram", "w", count_histogram(array[start:end], fixed=True),
              Shard(global_shape=array.shape, offset=(start, 0)))
        for start, end in places
    ]  # fmt: skip


def add_shards(values):
    """What the values of all ranks that have one add up to."""
    added = AddedShards()
    for value in values:
        added.add(value)
    return added.whole()


def assert_same(found, expected):
    assert (found.plugin, found.tag, found.shard) == ("histogram", "w", None)
    for name in ("left", "width", "counts"):
        assert getattr(found.data, name).tobytes() == getattr(expected, name).tobytes()
    for name in EXACT:
        assert getattr(found.data, name) == getattr(expected, name)
    assert found.data.sum == (None if expected.sum is None else pytest.approx(expected.sum, rel=1e-12))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shards_add_up_to_the_whole(order):
    parts = shards(WHOLE)
    assert_same(add_shards([parts[i] for i in order]), count_histogram(WHOLE, fixed=True))


def test_what_is_not_finite_or_empty_is_counted_too():
    array = WHOLE.copy()
    array[0] = 0.0
    array[1, :3] = NAN, INF, -INF
    array[6] = NAN  # a shard without a number
    array[3, 0], array[3, 1] = 3e38, -1e-30
    parts = shards(array, ((0, 3), (3, 6), (6, 7), (7, 7)))  # the last rank has no row
    assert_same(add_shards(parts), count_histogram(array, fixed=True))


def test_copies_of_a_shard_count_once():
    assert_same(add_shards([*shards(WHOLE), *shards(WHOLE)]), count_histogram(WHOLE, fixed=True))


def test_shards_along_two_axes_add_up():
    parts = [
        Value("histogram", "w", count_histogram(WHOLE[rows, columns], fixed=True),
              Shard(global_shape=WHOLE.shape, offset=(rows.start, columns.start)))
        for rows in (slice(0, 4), slice(4, 7)) for columns in (slice(0, 20), slice(20, 40))
    ]  # fmt: skip
    assert_same(add_shards(parts), count_histogram(WHOLE, fixed=True))


def test_without_all_shards_in_fixed_buckets_of_one_parameter_there_is_no_whole():
    parts = shards(WHOLE)
    other = parts[2]._replace(shard=Shard(global_shape=(8, 40), offset=(6, 0)))
    bins = parts[2]._replace(data=count_histogram(WHOLE[6:]))
    for values in ([], parts[:2], [*parts[:2], other], [*parts[:2], bins], [parts[0]._replace(shard=None)]):
        assert add_shards(values) is None
    assert add_shards([Value("tensor", "w", WHOLE[:3], parts[0].shard)]) is None


def through_mindspore(value):
    message = mindspore_summary_pb2.Event.FromString(
        samples.encoded_summary(mindspore_format, 1, 1.0, [value])
    )
    assert len(message.summary.value[0].histogram.buckets) <= 90  # MindInsight drops a histogram with more
    return mindspore_format.decode_event(message.SerializeToString())[1].values[0]


def through_tensorboard(value):
    encoded = samples.encoded_summary(tensorboard_format, 1, 1.0, [value])
    return tensorboard_format.decode_event(encoded)[1].values[0]._replace(shard=value.shard)


@pytest.mark.parametrize("through", [through_mindspore, through_tensorboard])
@pytest.mark.parametrize("scale", [0.02, 1e-14, 1e15])
def test_shards_add_up_as_they_come_from_a_file(through, scale):
    array = WHOLE * np.float32(scale / 0.02)
    assert_same(add_shards(map(through, shards(array))), count_histogram(array, fixed=True))


def test_the_coarser_buckets_hold_the_same_values():
    fine = count_histogram(np.random.default_rng(1).normal(0, 0.02, 100_000), fixed=True)
    shown = coarser(fine, 90)
    assert 80 <= len(shown.left) <= 90
    assert shown.counts.sum() == fine.counts.sum()
    np.testing.assert_allclose(shown.left[1:], (shown.left + shown.width)[:-1], rtol=1e-12)
    assert (shown.left[0], shown.count, shown.min) == (fine.left[0], fine.count, fine.min)
    assert shown.counts.max() < 0.05 * shown.count  # where most values are, buckets stay narrow
    few = count_histogram(np.array([0.1, 0.2, 1e30]), fixed=True)
    assert coarser(few, 90).counts.sum() == 3
    assert coarser(few, 90).left[-1] + coarser(few, 90).width[-1] == 1e30  # not the limit of float64

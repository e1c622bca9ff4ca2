"""Which workers are started."""

import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscapes.run.worker_plan import check_spread, plan_workers, surplus


@pytest.mark.parametrize(
    ("free", "chunks", "asked", "gpus_each", "expected"),
    [
        ({"CPU": 4.0}, 100, None, 1, [{"num_cpus": 1}] * 4),
        ({"CPU": 4.0}, 3, None, 1, [{"num_cpus": 1}] * 3),
        ({"CPU": 0.5}, 100, None, 1, [{"num_cpus": 0}]),
        ({}, 100, None, 1, [{"num_cpus": 0}]),
        ({"CPU": 1.0}, 100, 3, 1, [{"num_cpus": 1}, {"num_cpus": 0}, {"num_cpus": 0}]),
        ({"CPU": 4.0, "GPU": 2.0}, 100, None, 1, [{"num_gpus": 1, "num_cpus": 0}] * 2),
        ({"CPU": 4.0, "GPU": 2.0}, 100, 1, 1, [{"num_gpus": 1, "num_cpus": 0}]),
        ({"CPU": 2.0, "GPU": 2.0}, 100, None, 0, [{"num_cpus": 1}] * 2),
        ({"CPU": 2.0, "GPU": 1.5}, 100, None, 0.25, [{"num_gpus": 0.25, "num_cpus": 0}] * 6),
        ({"CPU": 2.0, "GPU": 0.5}, 100, None, 1, [{"num_cpus": 1}] * 2),  # a training has the rest
        ({"CPU": 2.0, "GPU": 5.0}, 100, None, 2, [{"num_gpus": 2, "num_cpus": 0}] * 2),
    ],
)
def test_workers_start_with_what_is_free(free, chunks, asked, gpus_each, expected):
    assert plan_workers(free, chunks, asked, gpus_each=gpus_each) == expected


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        ([0, 1], 1, "must have as many GPUs as the model lies on .2., got 1"),
        ([0, 1], 0, "got 0; free as many"),
        ([1, 2], 2, r"must be on the first ones \(0, 1, ...\) to use workers, got \[1, 2\]"),
    ],
)
def test_a_model_over_several_gpus_needs_as_many_in_each_worker(own: list[int], given: float, message: str):
    check_spread(list(range(len(own))), len(own))
    check_spread([], 0)
    with pytest.raises(InvalidValueError, match=message):
        check_spread(own, given)


@pytest.mark.parametrize(
    ("count", "whole", "each", "remark"),
    [
        (2, {"CPU": 2.0}, {"num_cpus": 1}, ""),
        (5, {"CPU": 2.0}, {"num_cpus": 1}, "workers=5, but the Ray cluster has 2 cores: they share them"),
        (4, {"CPU": 8.0, "GPU": 1.0}, {"num_gpus": 0.25}, ""),
        (3, {"CPU": 8.0, "GPU": 2.0}, {"num_gpus": 1}, "has 2 GPUs for 1 each: 1 of them wait for a GPU"),
    ],
)
def test_more_workers_than_the_cluster_has_are_remarked(count, whole, each, remark):
    found = surplus(count, whole, each)
    assert remark in found if remark else not found

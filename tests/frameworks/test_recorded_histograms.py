"""Histograms of torch parameters through the collector and its files, counted on the host and on a device."""

import numpy as np
import pytest
import torch
from torch import nn

from distsummary import Run, SummaryCollector, SummaryRecord
from distsummary.events.reader import read_directory
from distsummary.format.compatibility import AS_MINDSPORE, OURS, Compatibility
from distsummary.format.histogram import count_histogram
from distsummary.frameworks import torch as framework

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Where parameters lie; the host plays a device that counts where there is no GPU."""
    if request.param == "host":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr(framework, "_UNCOUNTED_ON", ())
    return "cpu"


def parameter(dtype: torch.dtype, place: str) -> nn.Module:
    """A parameter with all kinds of values, not in C order."""
    values = torch.randn(40, 25, generator=torch.Generator().manual_seed(0)) * 10
    values[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    module = nn.Module()
    module.weight = nn.Parameter(values.to(dtype).to(place).t())
    return module


def as_counted(dtype: torch.dtype, *, compatibility: Compatibility = OURS):
    array = framework.FRAMEWORK.to_numpy(parameter(dtype, "cpu").weight)
    return count_histogram(array, compatibility=compatibility)


def assert_recorded(directory, tag: str, expected) -> None:
    [found] = [v.data for e in read_directory(directory) for v in e.values if v.tag == tag]
    assert found.left.tobytes() == expected.left.tobytes()
    assert found.width.tobytes() == expected.width.tobytes()
    assert found.counts.tolist() == expected.counts.tolist()
    assert (found.nan_count, found.pos_inf_count, found.neg_inf_count) == (1, 1, 1)
    assert (found.count, found.min, found.max) == (1000, expected.min, expected.max)
    assert found.sum == pytest.approx(expected.sum, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameters_histogram_is_that_of_its_values(tmp_path, place, dtype):
    module = parameter(dtype, place)
    with Run(callbacks=SummaryCollector(tmp_path), network=module) as run:
        for _ in run.steps([1]):
            pass
        module.weight.data.fill_(0)
    assert_recorded(tmp_path, "weight/auto", as_counted(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_histogram_added_by_name_is_that_of_its_values(tmp_path, place, dtype):
    with SummaryRecord(tmp_path) as record:
        weight = parameter(dtype, place).weight
        record.add_value("histogram", "h", weight)
        weight.data.fill_(0)
        record.record(1)
    assert_recorded(tmp_path, "h", as_counted(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compatibility_has_edges_in_the_dtype_wherever_the_parameter_lies(tmp_path, place, dtype):
    collector = SummaryCollector(tmp_path, mindspore_compat=True, collect_landscape={})
    with Run(callbacks=collector, network=parameter(dtype, place)) as run:
        for _ in run.steps([1]):
            pass
    expected = as_counted(dtype, compatibility=AS_MINDSPORE)
    assert_recorded(tmp_path, "weight/auto", expected)
    if dtype == torch.float16:
        assert np.array_equal(expected.left, expected.left.astype(np.float16))
        assert expected.left.tobytes() != as_counted(dtype).left.tobytes()


def test_a_sparse_parameter_is_recorded_with_its_zeros_next_to_the_others(tmp_path, place):
    module = nn.Linear(2, 1).to(place)
    module.mask = nn.Parameter(torch.eye(2, device=place).to_sparse())
    collector = SummaryCollector(tmp_path, collect_specified_data={"tensor_regular": ".*"})
    with Run(callbacks=collector, network=module) as run:
        for _ in run.steps([1]):
            pass
    assert collector.health().errors == {}
    values = [value for event in read_directory(tmp_path) for value in event.values]
    histograms = {v.tag: v.data.count for v in values if v.plugin == "histogram"}
    assert histograms == {"mask/auto": 4, "weight/auto": 2, "bias/auto": 1}
    [mask] = [v.data for v in values if v.plugin == "tensor" and v.tag == "mask/auto"]
    assert mask.tolist() == [[1, 0], [0, 1]]


def test_only_the_counts_leave_a_device(place):
    taken = framework.FRAMEWORK.histogram(torch.zeros(1000, 1000, device=place))
    counts_alone = taken.nbytes < 4000
    assert counts_alone == (framework._UNCOUNTED_ON == () or place == "cuda")

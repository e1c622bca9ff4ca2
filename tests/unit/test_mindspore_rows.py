"""Bad input of MindSpore's classes, as far as it belongs to no other test."""

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import InvalidTypeError
from distsummary.events.reader import read_directory, read_lineage

SWITCHES = ("metric", "graph", "train_lineage", "eval_lineage", "input_data", "dataset_graph")


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [None, 1, "True"])
def test_the_six_switches_are_bools(tmp_path, name, value):
    with pytest.raises(InvalidTypeError, match=f"collect_{name}"):
        ds.SummaryCollector(tmp_path / "run", collect_specified_data={f"collect_{name}": value})
    assert not (tmp_path / "run").exists()


def test_lineage_of_any_kind_and_size_ends_no_training(tmp_path):
    custom = {"on": True, "none": None, "list": [1, "a"], "big": 2**40, "huge": 2**80, "text": "x"}
    collector = ds.SummaryCollector(tmp_path, custom_lineage_data=custom)
    with ds.Run(callbacks=collector) as run:
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
    assert run.step == 3
    found = {}
    for entry in read_lineage(tmp_path).custom.user_info:
        found |= {**entry.map_int32, **entry.map_double, **entry.map_str}
    assert found["big"] == 2.0**40
    assert found["huge"] == str(2**80)
    assert found["text"] == "x"
    assert {name.partition("/")[0] for name in found} == set(custom)


def test_no_format_exports_nothing(tmp_path):
    record = ds.SummaryRecord(tmp_path, export_options={"tensor_format": None})
    record.add_value("tensor", "a", np.zeros(2))
    assert record.record(1)
    record.close()
    assert not list(tmp_path.rglob("*.npy"))


def test_a_budget_of_0(tmp_path):
    record = ds.SummaryRecord(tmp_path, max_file_size=0)
    record.add_value("scalar", "a", 1.0)
    record.record(1)
    record.close()
    assert record.health().dropped["scalar"] == 1
    assert not [value for event in read_directory(tmp_path) for value in event.values]


@pytest.mark.parametrize("name", [None, "", 3, "x"])
def test_the_name_of_lineage_does_not_matter(tmp_path, name):
    info = ds.UserDefinedInfo()
    info.user_info.add().map_str["a"] = "b"
    with ds.SummaryRecord(tmp_path) as record:
        record.add_value("custom_lineage_data", name, info)
        record.record(1)
    assert dict(read_lineage(tmp_path).custom.user_info[0].map_str) == {"a": "b"}


def test_arrays_of_size_0_are_recorded(tmp_path):
    with ds.SummaryRecord(tmp_path) as record:
        record.add_value("tensor", "t", np.zeros((0, 2), np.float32))
        record.add_value("histogram", "h", np.zeros(0, np.float32))
        record.record(1)
    found = {value.tag: value.data for event in read_directory(tmp_path) for value in event.values}
    assert found["t"].shape == (0, 2)
    assert found["h"].count == 0

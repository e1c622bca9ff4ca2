"""Trainings recorded by MindSpore's own collector and by ours with `mindspore_compat`: equal, decoded."""

import json
import time
from functools import partial
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn

from distsummary.mindspore import CheckpointConfig, ModelCheckpoint, SummaryCollector
from tests.mindspore.trainings import (
    Lenet,
    Mlp,
    Tapped,
    features,
    images,
    lineage_of,
    model_of,
    pairs,
    values_of,
)

pytestmark = pytest.mark.interop

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tensor_ranges.json").read_text())["cases"]
CASES = [case for case in GOLDEN if not case["sink_mode"]]
NO_LANDSCAPE = {"collect_landscape": None}


@pytest.fixture(autouse=True)
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def both(tmp_path, train):
    """`train(directory, make)` with a maker of MindSpore's collectors, and of ours; the two directories."""
    for name, kind, more in (
        ("theirs", mindspore.SummaryCollector, {}),
        ("ours", SummaryCollector, {"mindspore_compat": True}),
    ):
        mindspore.set_seed(1)
        train(str(tmp_path / name), partial(kind, str(tmp_path / name), **more))
    return tmp_path / "theirs", tmp_path / "ours"


def assert_same(theirs, ours, *, has_lineage=True):
    expected, found = values_of(theirs), values_of(ours)
    assert {key: [step for step, _ in values] for key, values in found.items()} == {
        key: [step for step, _ in values] for key, values in expected.items()
    }
    for key, values in expected.items():
        assert found[key] == values, key
    if has_lineage:
        assert lineage_of(ours) == lineage_of(theirs)


def test_a_lenet_with_operators_pictures_and_checkpoints(tmp_path):
    def train(directory, make):
        create = {"train": True, "result": True}
        interval = {"unit": "step", "intervals": [[1, 2, 3]], "create_landscape": create}
        collector = make(
            collect_freq=3,
            custom_lineage_data={"name": "lenet", "number": 2, "ratio": 0.5},
            export_options={"tensor_format": "npy"},
            collect_specified_data={"collect_landscape": interval},
        )
        config = CheckpointConfig(save_checkpoint_steps=4)
        checkpoints = ModelCheckpoint("lenet", f"{directory}/saved", config)
        model_of(Lenet()).train(4, images(), callbacks=[checkpoints, collector], dataset_sink_mode=False)

    theirs, ours = both(tmp_path, train)
    assert_same(theirs, ours)
    tags = {plugin for plugin, _ in values_of(ours)}
    assert tags == {"graph", "scalar", "image", "histogram", "tensor"}
    for kind in ("export_*/tensor/*.npy", "ckpt_dir/*.ckpt"):
        expected = {path.name: path for path in theirs.glob(kind)}
        found = {path.name: path for path in ours.glob(kind)}
        assert found.keys() == expected.keys() != set()
        for name, path in expected.items():
            if name.endswith(".npy"):
                np.testing.assert_array_equal(np.load(found[name]), np.load(path))
            else:
                their_state, our_state = (mindspore.load_checkpoint(str(one)) for one in (path, found[name]))
                assert list(our_state) == list(their_state)
                for one in their_state:
                    np.testing.assert_array_equal(our_state[one].asnumpy(), their_state[one].asnumpy())
    expected, found = (
        json.loads((one / "ckpt_dir/train_metadata.json").read_text()) for one in (theirs, ours)
    )
    for one in (expected, found):
        files = one["model_params_file_map"]
        one["model_params_file_map"] = {number: Path(path).name for number, path in files.items()}
    assert {key: found[key] for key in expected} == expected


def test_an_mlp_that_fits_and_is_evaluated(tmp_path, monkeypatch):
    tuned = {"custom_lineage_data": {"lr": 0.05, "tuned": 1}}
    monkeypatch.setenv("MINDINSIGHT_HYPER_CONFIG", json.dumps(tuned))

    def train(directory, make):
        own = {"tuned": 2}
        collector = make(collect_freq=1, collect_specified_data=NO_LANDSCAPE, custom_lineage_data=own)
        model = model_of(Mlp())
        model.fit(2, features(), features(), callbacks=[collector], dataset_sink_mode=False)
        time.sleep(1.1)  # MindSpore would empty its first file, which has the same second in its name
        model.eval(features(rows=10), callbacks=[collector])

    theirs, ours = both(tmp_path, train)
    assert_same(theirs, ours)
    assert lineage_of(ours).evaluation.valid_dataset.valid_dataset_size == 12


def test_a_loss_that_becomes_nan(tmp_path):
    def train(directory, make):
        collector = make(collect_freq=1, collect_specified_data=NO_LANDSCAPE)
        model_of(nn.Dense(6, 3)).train(2, features(poison=5), callbacks=[collector], dataset_sink_mode=False)

    theirs, ours = both(tmp_path, train)
    assert_same(theirs, ours, has_lineage=False)
    losses = [np.frombuffer(value, np.float32)[0] for _, value in values_of(ours)["scalar", "loss/auto"]]
    assert np.isfinite(losses).tolist() == [True, *[False] * 7]
    found, expected = lineage_of(ours).train, lineage_of(theirs).train
    assert np.isnan(found.algorithm.loss)
    assert np.isnan(expected.algorithm.loss)
    found.algorithm.loss = expected.algorithm.loss = 0.0
    assert found == expected


def name_of(case):
    return f"{case['epochs']}x{case['batch_num']}-{case['collect_freq']}-{case['collect_tensor_freq']}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_steps_are_those_that_mindspore_records(tmp_path, case):
    collector = SummaryCollector(
        str(tmp_path), collect_freq=case["collect_freq"], collect_tensor_freq=case["collect_tensor_freq"],
        collect_specified_data={"collect_metric": True}, keep_default_action=False, mindspore_compat=True,
    )  # fmt: skip
    model = model_of(Tapped(), loss=nn.MSELoss())
    model.train(case["epochs"], pairs(case["batch_num"]), callbacks=[collector], dataset_sink_mode=False)
    found = {key: [step for step, _ in values] for key, values in values_of(tmp_path).items()}
    assert found["tensor", "Tensor"] == case["tensor_set"]
    assert sorted(found["scalar", "loss/auto"]) == sorted(
        case["other_steps_step_end"] + case["other_steps_epoch_end"]
    )

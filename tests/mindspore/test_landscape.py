"""MindSpore's SummaryLandscape draws from the trajectory of our collector, and the other way round."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Loss

import distsummary as ds
from distsummary.cli.fsck import fsck
from distsummary.errors import InvalidValueError
from distsummary.events.reader import read_values
from distsummary.events.segments import landscape_files
from distsummary.frameworks.mindspore import FRAMEWORK
from distsummary.mindspore import SummaryCollector, SummaryLandscape
from tests.mindspore.trainings import Mlp, features, model_of, values_of
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # in MindSpore
]

CREATE = {"train": True, "result": False}
COLLECTED = {"landscape_size": 4, "unit": "step", "create_landscape": CREATE, "num_samples": 8}
COLLECTED |= {"intervals": [[1, 2, 3, 4]]}


def drawn_from():
    """What SummaryLandscape needs of the training."""
    network, metrics = Mlp(), {"Loss": Loss()}
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return mindspore.Model(network, loss, metrics=metrics), network, features(), metrics


def train(directory, kind, **more):
    mindspore.set_seed(1)
    collector = kind(str(directory), collect_specified_data={"collect_landscape": COLLECTED}, **more)
    model_of(Mlp()).train(2, features(), callbacks=[collector], dataset_sink_mode=False)


def test_mindspores_landscape_of_our_training_is_that_of_its_own(tmp_path):
    found = {}
    for name, kind in (("theirs", mindspore.SummaryCollector), ("ours", SummaryCollector)):
        train(tmp_path / name, kind)
        landscape = SummaryLandscape(str(tmp_path / name))
        landscape.gen_landscapes_with_multi_process(drawn_from, output=str(tmp_path / f"{name}_l"))
        values = values_of(tmp_path / f"{name}_l")
        [[(_, found[name])]] = [listed for (plugin, _), listed in values.items() if plugin == "landscape"]
    np.testing.assert_allclose(found["ours"].z, found["theirs"].z, atol=1e-6)
    np.testing.assert_array_equal(found["ours"].x, found["theirs"].x)


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_our_landscape_of_a_cell_has_mindspores_numbers_and_leaves_the_cell_as_it_was(tmp_path, mode):
    modes = {"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}
    mindspore.set_context(mode=modes[mode])
    try:
        train(tmp_path / "run", SummaryCollector)
        theirs = SummaryLandscape(str(tmp_path / "run"))
        theirs.gen_landscapes_with_multi_process(drawn_from, output=str(tmp_path / "theirs"))
        values = values_of(tmp_path / "theirs")
        [[(_, expected)]] = [listed for (plugin, _), listed in values.items() if plugin == "landscape"]
        network, loss = Mlp(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        network.first.set_train()
        before = FRAMEWORK.state(network)
        grid = ds.landscape(
            network, loss, features(), around=tmp_path / "run", mode="mindspore", plane=ds.Plane(size=4),
            progress=False,
        )  # fmt: skip
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert grid.engine == "mindspore-naive"
    np.testing.assert_allclose(grid.z, expected.z, atol=1e-6)
    np.testing.assert_allclose(grid.x, expected.x, rtol=1e-5)
    assert (network.training, network.first.training, network.second.training) == (False, True, False)
    for name, array in FRAMEWORK.state(network).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_cell_has_random_planes_metrics_and_losses_of_batches(tmp_path):
    network, loss = Mlp(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="none")
    batches = [*features().create_tuple_iterator(num_epochs=1)]
    metrics = {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).astype(np.float32).mean()}
    evaluation = ds.Evaluation(metrics=metrics, stderr=True)
    grid = ds.landscape(
        network, loss, batches, plane=ds.Plane(size=3), evaluation=evaluation, run_dir=tmp_path,
        progress=False,
    )  # fmt: skip
    assert grid.z[1, 1] == pytest.approx(np.mean([loss(network(x), y).asnumpy().mean() for x, y in batches]))
    assert set(np.unique(grid.quantities["accuracy"] * 12)) <= {*range(13)}
    assert np.isfinite(grid.z).all()
    by_batch = ds.landscape(
        network, None, batches, batch_loss=lambda model, batch: loss(model(batch[0]), batch[1]),
        plane=ds.Plane(size=3), progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(by_batch.z, grid.z)
    with pytest.raises(ValueError, match="evaluated in this process, got workers or address 2"):
        ds.landscape(
            network, loss, batches, plane=ds.Plane(size=3), compute=ds.Compute(workers=2), progress=False
        )
    with pytest.raises(ValueError, match="is for torch models"):
        ds.landscape(
            network, loss, batches, plane=ds.Plane(size=3), compute=ds.Compute(memory="inference"),
            progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["train", "result"])
def test_two_processes_compute_the_grid_of_one_to_the_bit(tmp_path, kind):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    changed = {"create_landscape": {"train": False, "result": False} | {kind: True}, "landscape_size": 5}
    try:
        train(tmp_path, SummaryCollector)
        found = []
        for devices in (None, [0, 1]):
            np.random.seed(3)  # of the random directions
            SummaryLandscape(str(tmp_path)).gen_landscapes_with_multi_process(drawn_from, changed, devices)
            [file] = landscape_files(tmp_path)
            [one] = read_values(file)
            found.append(one.value)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    one, two = found
    for points in ("x", "y", "z"):
        np.testing.assert_array_equal(getattr(two, points), getattr(one, points))
    assert repr(two) == repr(one)  # the path and the point of convergence, too


def fails():
    raise ArithmeticError("no data today")


def of_nothing():
    yield  # a generator cannot be sent


@pytest.mark.parametrize(
    ("callback", "error", "message"),
    [
        (fails, ArithmeticError, "no data today"),
        (partial(drawn_from, of_nothing()), InvalidValueError, "callback_fn cannot be sent to worker pro"),
    ],
    ids=["fails", "cannot be sent"],
)
def test_a_callback_that_fails_in_a_worker_or_cannot_be_sent_there_ends_the_call(
    tmp_path, callback, error, message
):
    train(tmp_path, SummaryCollector)
    landscape = SummaryLandscape(str(tmp_path))
    with pytest.raises(error, match=message) as raised:
        landscape.gen_landscapes_with_multi_process(callback, device_ids=[0, 1])
    if callback is fails:
        assert "in fails" in raised.value.__notes__[0]
    landscape.gen_landscapes_with_multi_process(drawn_from)  # the next call works


def test_a_script_draws_by_two_processes_and_ends_also_after_one_died(tmp_path):
    train(tmp_path / "run", SummaryCollector)
    script = Path(__file__).with_name("landscape_script.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"worker \d of 2 of the landscape was ended by SIGKILL before its points were .*device_ids\n",
        done.stdout,
    )
    assert done.stdout.endswith("drawn\n")
    [file] = landscape_files(tmp_path / "run")
    assert [value.tag for value in read_values(file)] == ["landscape_[1, 4]"]


def test_after_an_error_the_next_call_works(tmp_path):
    train(tmp_path, SummaryCollector)
    for wrong, error in (([9], ValueError), ([0, "1"], TypeError), ((0,), TypeError)):
        with pytest.raises(error, match="device"):
            SummaryLandscape(str(tmp_path)).gen_landscapes_with_multi_process(drawn_from, device_ids=wrong)
    for devices in (None, [0]):  # the second takes the place of the first
        SummaryLandscape(str(tmp_path)).gen_landscapes_with_multi_process(drawn_from, device_ids=devices)
    [file] = landscape_files(tmp_path)
    assert [value.tag for value in read_values(file)] == ["landscape_[1, 4]"]
    assert [one.as_line() for one in fsck(tmp_path).findings if one.is_problem] == []

"""The sample of the page on MindSpore, a loop of one's own, and what is refused by name."""

import os
import subprocess
import sys
from importlib.util import find_spec

import mindspore
import numpy as np
import pytest
from mindspore import nn

import distsummary as ds
import distsummary.mindspore
from distsummary.errors import MissingExtraError
from distsummary.mindspore import supported
from tests.docs.documents import ROOT, blocks
from tests.mindspore.trainings import Mlp, features, model_of, values_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop


def test_the_sample_of_the_page_runs_as_it_stands(tmp_path):
    [sample] = [one for one in blocks((ROOT / "docs/mindspore.md").read_text()) if one.language == "py"]
    (tmp_path / "sample.py").write_text(sample.code)
    command = [sys.executable, "sample.py"]
    environment = os.environ | {"GLOG_v": "2"}  # MindSpore's log: warnings, too
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    found = {key: [step for step, _ in values] for key, values in values_of(tmp_path / "runs/one").items()}
    assert found["scalar", "loss/auto"] == [1, *range(2, 17, 2)]
    assert found["scalar", "eval/accuracy"] == [16]


def test_a_loop_of_ones_own_logs_tensors_and_watches_a_cell(tmp_path):
    network = Mlp()
    loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    train = nn.TrainOneStepCell(loss, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    with ds.init(tmp_path / "run", watch=network, histograms="first", quiet=True) as run:
        for x, y in run.steps(features().create_tuple_iterator(num_epochs=1)):
            run.log(loss=train(x, y))
            run.histogram("input", x)
    assert run.health().dropped == {}
    found = values_of(tmp_path / "run")
    assert [step for step, _ in found["scalar", "loss"]] == [1, 2, 3]
    assert {("histogram", "input"), ("histogram", "first.weight/auto")} <= found.keys()
    assert np.isfinite(np.frombuffer(found["scalar", "loss"][-1][1], np.float32)).all()


@pytest.mark.parametrize("option", [{"gradients": ".*"}, {"norms": True}])
def test_options_that_need_torch_are_refused_when_the_training_begins(tmp_path, option):
    from distsummary.mindspore import SummaryCollector
    from tests.mindspore.loop import Loop

    with pytest.raises(TypeError, match="torch"):
        Loop(SummaryCollector(str(tmp_path), **option)).begin()


@pytest.mark.parametrize("version", ["1.10.1", "2.2.14"])
def test_an_old_mindspore_is_refused_with_the_versions_that_work(monkeypatch, version):
    monkeypatch.setattr(supported, "version", lambda name: version)
    with pytest.raises(MissingExtraError, match=rf"needs MindSpore 2\.3 or newer, got {version}; run: pip"):
        supported.require_mindspore()


def test_the_newest_mindspore_is_taken(monkeypatch):
    supported.require_mindspore()
    monkeypatch.setattr(supported, "version", lambda name: "3.0.0rc1")
    supported.require_mindspore()
    assert mindspore.__version__


def test_the_collector_for_torch_says_what_to_import_here(tmp_path, caplog):
    collector = ds.SummaryCollector(tmp_path / "run")
    assert "from distsummary.mindspore import SummaryCollector" in caplog.text
    with pytest.raises(TypeError, match="Callback"):
        model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed, whose operators these are")
def test_an_operator_for_torch_says_where_that_for_cells_is():
    with pytest.raises(MissingExtraError, match=r"in a Cell, .* from distsummary\.mindspore\) needs torch"):
        _ = ds.ScalarSummary
    assert distsummary.mindspore.ScalarSummary is mindspore.ops.ScalarSummary

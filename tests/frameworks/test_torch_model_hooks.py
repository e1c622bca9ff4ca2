"""The hooks of Model come in MindSpore's order and with its parameters: executed by MindSpore 2.10."""

import pytest
import torch

import distsummary as ds
from tests.unit.training.test_mindspore_hooks import GOLDEN, check, parameters_found, watcher


def data(rows=6):
    torch.manual_seed(0)
    labels = torch.tensor([0, 1] * (rows // 2))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.rand(rows, 4), labels), batch_size=2
    )


def model():
    network = torch.nn.Linear(4, 2)
    return ds.Model(
        network,
        torch.nn.CrossEntropyLoss(),
        torch.optim.SGD(network.parameters(), 0.1),
        metrics={"acc": ds.Accuracy(), "Loss": ds.Loss()},
    )


def test_training():
    seen = []
    model().train(2, data(), callbacks=watcher(seen))
    check(seen, GOLDEN["train"])


def test_evaluation():
    seen = []
    model().eval(data(), callbacks=watcher(seen))
    check(seen, GOLDEN["eval"])


def test_fit():
    seen = []
    model().fit(2, data(), data(4), callbacks=watcher(seen))
    check(seen[1:-1], [one for one in GOLDEN["fit"] if one[0] not in ("enter", "exit")])


@pytest.mark.parametrize("case", [case for case in GOLDEN if case.startswith("stop")])
def test_a_requested_stop(case):
    seen = []
    stop = case.split()[1]
    if "train" in stop:
        model().train(2, data(), callbacks=watcher(seen, stop=stop))
    else:
        model().eval(data(), callbacks=watcher(seen, stop=stop))
    check(seen, GOLDEN[case])


def test_a_hook_finds_every_parameter_that_mindspore_gives_it():
    parameters_found("keys of train", lambda callback: model().train(1, data(), callbacks=callback))
    parameters_found("keys of fit", lambda callback: model().fit(1, data(), data(4), callbacks=callback))
    parameters_found("keys of eval", lambda callback: model().eval(data(), callbacks=callback))

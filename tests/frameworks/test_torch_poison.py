"""Values that kill MindSpore's writer process, so that its training then hangs, are recorded here."""

import numpy as np
import pytest
import torch

import distsummary as ds
from distsummary.events.reader import read_directory

POISON = {
    "bool histogram": ("histogram", np.array([True, False, True])),
    "bool histogram of torch": ("histogram", torch.tensor([True, False, True])),
    "bfloat16 tensor": ("tensor", torch.tensor([1.5, 2.0], dtype=torch.bfloat16)),
    "bfloat16 histogram": ("histogram", torch.tensor([1.5, 2.0, 2.0], dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("formats", [("mindspore",), ("tensorboard", "mindspore")])
def test_poison_is_recorded_and_nothing_blocks(tmp_path, formats):
    with ds.SummaryRecord(tmp_path, formats=formats) as record:
        for step in range(1, 21):  # MindSpore's blocks after four more
            for name, (plugin, value) in POISON.items():
                record.add_value(plugin, name, value)
            assert record.record(step)
        assert record.flush()
        assert not record.health().dropped
        assert not record.health().errors
    found: dict[str, list] = {}
    for event in read_directory(tmp_path):
        for value in event.values:
            found.setdefault(value.tag, []).append(value.data)
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(POISON, 20)
    assert found["bool histogram"][0].counts.tolist() == [1, 2]
    assert found["bfloat16 tensor"][0].tolist() == [1.5, 2.0]
    assert found["bfloat16 histogram"][0].count == 3


def test_poison_ends_no_training(tmp_path):
    net = torch.nn.Linear(2, 1)
    net.register_buffer("mask", torch.tensor([True, False]))
    net.small = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    collector = ds.SummaryCollector(tmp_path, collect_freq=1, collect_tensor_freq=1)
    with ds.Run(callbacks=collector, network=net, optimizer=optimizer) as run:
        for _ in run.steps(range(20)):
            for name, (plugin, value) in POISON.items():
                run.add_value(plugin, name, value)
            run.log(loss=torch.tensor(1.5, dtype=torch.bfloat16), flag=torch.tensor(True))
    assert run.step == 20
    assert not run.health().dropped
    found = {(event.step, value.tag) for event in read_directory(tmp_path) for value in event.values}
    assert {(step, name) for step in range(1, 21) for name in (*POISON, "loss", "flag")} <= found

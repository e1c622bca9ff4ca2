"""ModelCheckpoint with torch: a resumed training computes what the uninterrupted one does, bit for bit."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.errors import InvalidValueError
from distsummary.frameworks.torch import FRAMEWORK

OPTIMIZERS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.05),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "plain": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    "groups": lambda model: torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}],
        lr=torch.tensor(0.05),
        foreach=False,
        capturable=False,
        fused=True,
    ),
}


def made(optimizer: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(dtype)
    return model, OPTIMIZERS[optimizer](model)


def train(model, optimizer, steps, *, callbacks=None, initial_step=0):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 4, generator=generator) for _ in range(10)]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5) if initial_step == 0 else None
    with ds.Run(callbacks=callbacks, network=model, optimizer=optimizer, initial_step=initial_step) as run:
        for x in run.steps(batches[initial_step:steps]):
            loss = model(x.to(next(model.parameters()).dtype)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if scheduler is not None and run.step <= 5:
                scheduler.step()


@pytest.mark.parametrize("format", ["safetensors", "ckpt"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_training_continues_where_it_was(tmp_path, name, format, dtype):
    whole = made(name, dtype)
    train(*whole, 10)
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(5, async_save=True, format=format))
    train(*made(name, dtype), 5, callbacks=checkpoint)
    assert checkpoint.failures == 0

    model, optimizer = made(name, dtype)
    parameters = ds.load_checkpoint(checkpoint.latest_ckpt_file_name)
    not_loaded, _ = ds.load_param_into_net(model, parameters)
    assert not_loaded == []
    ds.load_param_into_net(optimizer, parameters)
    train(model, optimizer, 10, initial_step=int(parameters["step_num"]))
    for (key, expected), value in zip(
        whole[0].state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(value, expected), key
    assert [float(group["lr"]) for group in optimizer.param_groups] == [
        float(group["lr"]) for group in whole[1].param_groups
    ]


def test_an_optimizer_of_more_parameters_is_refused(tmp_path):
    model, optimizer = made("adam")
    checkpoint = ds.ModelCheckpoint("a", tmp_path)
    train(model, optimizer, 2, callbacks=checkpoint)
    parameters = ds.load_checkpoint(checkpoint.latest_ckpt_file_name)
    small = torch.optim.Adam(model[0].parameters())
    with pytest.raises(InvalidValueError, match="more parameters than the 2"):
        ds.load_param_into_net(small, parameters)
    assert not small.state


def test_a_state_of_lists_is_kept_as_a_whole():
    model, _ = made("adam")
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=2)
    for _ in range(2):
        optimizer.step(lambda: backward(model, optimizer))
    assert not [name for name in FRAMEWORK.optimizer_entries(optimizer) if "/state/" in name]
    assert FRAMEWORK.optimizer_rest(optimizer)["odd"].keys() == {"0"}
    assert {"func_evals", "old_dirs"} <= FRAMEWORK.optimizer_rest(optimizer)["odd"]["0"].keys()


def backward(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4) * torch.arange(8.0)[:, None]).square().mean()
    loss.backward()
    return loss


def test_tensors_as_values_and_a_wrapped_model(tmp_path):
    model, _ = made("adam")
    other, _ = made("adam")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert ds.load_param_into_net(nn.DataParallel(model), other.state_dict()) == ([], [])
    for value, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_the_lineage_names_the_file(tmp_path):
    model, optimizer = made("adam")
    checkpoint = ds.ModelCheckpoint("a", tmp_path / "ckpt", ds.CheckpointConfig(100))
    run = ds.Run(
        callbacks=[checkpoint, ds.SummaryCollector(str(tmp_path / "run"))], network=model, optimizer=optimizer
    )
    with contextlib.closing(run):
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
    assert checkpoint.latest_ckpt_file_name == str(tmp_path / "ckpt" / "a-1_3.safetensors")
    found = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"a-1_3.safetensors" in path.read_bytes() for path in found)


# An expanded buffer has one element in memory for all along an axis.
def test_an_expanded_buffer_takes_its_saved_values():
    buffer = torch.ones(1, 3).expand(4, 3)
    FRAMEWORK.write(buffer, np.full((4, 3), 2.0, np.float32))
    assert buffer.tolist() == [[2.0] * 3] * 4
    with pytest.raises(InvalidValueError, match=r"shape \(4, 3\) is expanded along axis 0, along which"):
        FRAMEWORK.write(buffer, np.arange(12, dtype=np.float32).reshape(4, 3))

"""Callbacks with torch's optimizers, losses and loops."""

import pytest
import torch

import distsummary as ds
from distsummary.training.callbacks import CallbackParams, RunContext


def sgd(*rates):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def rates_of(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def decay(lr, cur_step_num):
    return lr * 0.5 if cur_step_num % 2 == 0 else lr


def test_each_parameter_group_is_scheduled_by_its_own_rate_and_a_tensor_is_filled():
    rate = torch.tensor(0.5)
    optimizer, seen = sgd(2.0, rate), []
    with ds.Run(callbacks=ds.LearningRateScheduler(decay), optimizer=optimizer) as run:
        for _ in run.steps(range(3)):
            seen.append(rates_of(optimizer))
    assert seen == [[2.0, 0.5], [2.0, 0.5], [1.0, 0.25]]
    assert optimizer.param_groups[1]["lr"] is rate


def test_the_function_may_return_a_tensor_and_a_rate_in_float32_is_left_alone():
    optimizer = sgd(torch.tensor(0.1))
    for result in (torch.tensor(0.5), torch.tensor([0.5])):
        with ds.Run(callbacks=ds.LearningRateScheduler(lambda *_, r=result: r), optimizer=optimizer) as run:
            list(run.steps(range(1)))
        assert rates_of(optimizer) == [0.5]
    group = optimizer.param_groups[0]
    group["lr"] = torch.tensor(0.1)
    version = group["lr"]._version
    ds.LearningRateScheduler(lambda lr, _: lr).step_end(
        RunContext(CallbackParams(optimizer=optimizer, cur_step_num=1))
    )
    assert group["lr"]._version == version


@pytest.mark.parametrize(
    ("outputs", "mean"),
    [
        (torch.tensor([1.0, 2.0], requires_grad=True), 1.5),
        ((torch.tensor([[3.0]], dtype=torch.bfloat16), None), 3.0),
        (torch.eye(2).to_sparse(), 0.5),
        (torch.tensor([True, False]), 0.5),
        (torch.tensor([1j]), None),
    ],
)
def test_history_keeps_the_mean_of_a_tensor(outputs, mean):
    history = ds.History()
    history.epoch_end(RunContext(CallbackParams(net_outputs=outputs, cur_epoch_num=1)))
    assert history.history == {"net_output": [mean]}


@pytest.mark.parametrize("times", [0, 3])
def test_a_nan_in_a_tensor_stops_the_training_at_its_step(tmp_path, times):
    losses = [torch.tensor(1.0), torch.tensor([1.0, float("nan")]).mean(), torch.tensor(1.0)]
    steps = []

    def train():
        with ds.init(tmp_path / "run", callbacks=ds.LossMonitor(times), quiet=True) as run:
            for loss in run.steps(losses):
                steps.append(run.step)
                run.log(loss=loss)

    with pytest.raises(ValueError, match="epoch: 1 step: 2, the loss is nan"):
        train()
    assert steps == [1, 2]

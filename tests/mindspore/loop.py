"""A loop that calls a callback with the parameters of MindSpore's loops, without a network that trains."""

from typing import Any

import mindspore
from mindspore import nn
from mindspore.train.callback import RunContext, _InternalCallbackParam


class Loop:
    """Calls the hooks as `mindspore.Model` does; `params` are those that it gives.

    Args:
        callback: whose hooks are called.
        network: with `optimizer`, what the parameters name; others: further parameters, or other values.
    """

    def __init__(self, callback: Any, *, network: Any = None, **others: Any) -> None:
        network = network or nn.Dense(2, 1)
        params = _InternalCallbackParam()
        params.update(
            mode="train", network=network, train_network=network, loss_fn=None, epoch_num=1, batch_num=10,
            cur_step_num=0, optimizer=nn.SGD(network.trainable_params(), 0.1), parallel_mode="stand_alone",
            device_number=1, train_dataset=None, train_dataset_element=None, dataset_sink_mode=False,
            list_callback=[callback], net_outputs=None, initial_step=0,
        )  # fmt: skip
        params.update(others)
        self.callback, self.params, self.context = callback, params, RunContext(params)

    def call(self, hook: str) -> None:
        getattr(self.callback, hook)(self.context)

    def begin(self) -> None:
        self.callback.__enter__()
        self.call("on_train_begin")

    def epoch(self, number: int, steps: Any) -> None:
        """An epoch with a call of the hooks of a step for each number in `steps`."""
        self.params.cur_epoch_num = number
        self.call("on_train_epoch_begin")
        for step in steps:
            self.step(step)
        self.call("on_train_epoch_end")

    def step(self, number: int) -> None:
        self.params.cur_step_num = number
        self.call("on_train_step_begin")
        self.params.net_outputs = mindspore.Tensor(float(number))
        self.call("on_train_step_end")

    def end(self) -> None:
        self.call("on_train_end")
        self.callback.__exit__(None, None, None)

"""MindSpore's Tensors, Parameters, Cells and optimizers as those of a framework."""

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError
from distsummary.frameworks import base
from distsummary.training.values import mean_of, scalar
from tests.frameworks.suite import FrameworkSuite

pytestmark = pytest.mark.interop


class Dense(nn.Cell):
    def __init__(self):
        super().__init__()
        weight = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
        self.weight = mindspore.Parameter(mindspore.Tensor(weight), name="weight")
        self.bias = mindspore.Parameter(mindspore.Tensor(np.array([0.1, -0.2], np.float32)), name="bias")
        self.count = mindspore.Parameter(mindspore.Tensor(np.array(3)), name="count", requires_grad=False)

    def construct(self, inputs):
        return ops.matmul(inputs, self.weight.T) + self.bias


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = mindspore.Parameter(mindspore.Tensor(np.ones(2, np.float32)), name="first")
        self.second = self.first


class TestMindSpore(FrameworkSuite):
    name = "mindspore"

    def make_tensor(self, array):
        return mindspore.Tensor(array)

    def make_model(self):
        return Dense()

    def make_tied_model(self):
        return Tied()

    def make_optimizer(self, model, learning_rate):
        return nn.SGD(model.trainable_params(), learning_rate)

    def fill(self, tensor, value):
        full = np.full(tensor.shape, value, tensor.asnumpy().dtype)
        tensor.assign_value(mindspore.Tensor(full))

    def test_parameters_are_tensors(self, framework):
        parameter = Dense().weight
        assert framework.is_tensor(parameter)
        assert base.framework_of(parameter) is framework
        assert framework.snapshot(parameter).result().shape == (2, 3)

    def test_small_floats_become_float32(self, framework):
        tensor = mindspore.Tensor(np.array([1.5, -2.0]), mindspore.bfloat16)
        assert framework.array_spec(tensor) == ((2,), np.float32)
        for array in (framework.to_numpy(tensor), framework.snapshot(tensor).result()):
            assert array.dtype == np.float32
            assert array.tolist() == [1.5, -2.0]
        assert scalar("x", mindspore.Tensor(0.25, mindspore.bfloat16)) == 0.25

    def test_an_optimizer_stands_for_the_parameters_that_it_trains(self, framework):
        model = Dense()
        optimizer = nn.Momentum([model.bias], 0.1, 0.9)
        assert [name for name, _ in framework.named_parameters(optimizer)] == ["bias"]

    def test_frozen_parameters_are_those_without_a_gradient(self, framework):
        assert framework.frozen_parameters(Dense()) == ["count"]

    def test_the_rates_of_groups_are_read_and_set(self, framework):
        model = Dense()
        groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.25}]
        optimizer = nn.SGD(groups, 0.1)
        assert framework.learning_rates(optimizer) == [0.5, 0.25]
        framework.set_learning_rates(optimizer, [0.125, 2])
        assert framework.learning_rates(optimizer) == [0.125, 2.0]

    def test_the_rate_of_a_schedule_is_that_of_the_next_step(self, framework):
        model = Dense()
        groups = [{"params": [model.weight], "lr": nn.WarmUpLR(0.5, 4)}, {"params": [model.bias], "lr": 0.25}]
        for optimizer in (nn.SGD(groups, 0.1), nn.SGD(model.trainable_params(), nn.WarmUpLR(0.5, 4))):
            for step in range(3):
                theirs = optimizer.get_lr()
                first = theirs[0] if isinstance(theirs, tuple) else theirs
                assert framework.learning_rate(optimizer) == float(first.asnumpy()) == step / 8
                optimizer.global_step += 1
            assert framework.learning_rates(optimizer) == []  # there is none to set

    def test_what_thor_adds_to_its_layers_is_no_parameter_of_the_model(self, framework):
        class Thor(Dense):
            def __init__(self):
                super().__init__()
                for name in ("matrix_a", "matrix_g_cov", "a_normalizer", "cov_step"):
                    setattr(self, name, mindspore.Parameter(mindspore.Tensor([1.0]), name=name))

        assert [name for name, _ in framework.tensors(Thor())] == ["weight", "bias", "count"]
        assert [name for name, _ in framework.named_parameters(Thor())] == ["weight", "bias"]


def test_values_of_every_plugin_are_copied():
    image = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    for plugin in ("tensor", "histogram", "image"):
        assert checked_value(plugin, "x", mindspore.Tensor(image)).data.result().tobytes() == image.tobytes()
    assert checked_value("scalar", "x", mindspore.Tensor([0.5])).data == 0.5
    assert checked_value("histogram", "x", mindspore.Tensor([True, False])).data.result().tolist() == [1, 0]


def test_the_loss_may_be_the_first_of_several_outputs():
    loss = mindspore.Tensor(np.float32(0.5))
    assert mean_of((loss, mindspore.Tensor(False), mindspore.Tensor(1024.0))) == 0.5


def test_a_complex_tensor_is_no_number():
    with pytest.raises(InvalidTypeError, match="real number"):
        scalar("x", mindspore.Tensor(1j, mindspore.complex64))


def test_a_tensor_of_float8_is_refused():
    with pytest.raises(InvalidTypeError, match="Float8E5M2 has no numbers for NumPy; cast it"):
        checked_value("tensor", "x", mindspore.Tensor([], mindspore.float8_e5m2))


def test_a_graph_that_mindspore_compiled_is_taken_as_it_is():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        model = Dense()
        model.compile(mindspore.Tensor(np.ones((1, 3), np.float32)))
        graph = checked_value("graph", "net", model.get_func_graph_proto())
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert b"MatMul" in graph.data

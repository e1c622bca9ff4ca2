"""MindSpore as a framework: Tensors, Parameters, Cells. Imported only after the user's own MindSpore."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import mindspore
import numpy as np
from mindspore.nn import Cell, CellList, Optimizer

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError
from distsummary.frameworks.base import ArraySpec
from distsummary.frameworks.numpy import Array, HostCopy, NumpyFramework, is_own_real, known, known_numbers
from distsummary.frameworks.staging import staged

logger = guarded_log(__name__)

_TENSORS = mindspore.Tensor.__mro__[-2]  # the class in C++ of Tensors and Parameters; its name varies
_OF_THOR = re.compile(r"(.*\.)?(matrix_[ag]\w*|[ag]_normalizer|cov_step)")  # what THOR adds to its layers


class MindSporeFramework(NumpyFramework):
    """Implements `base.Framework` for MindSpore; a copy waits until the device has computed the tensor.

    A model is a Cell; its parameters have MindSpore's names, without those that THOR's layers add. Where only
    parameters are read, an optimizer stands for those that it trains.
    """

    name = "mindspore"

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a Tensor or a Parameter; sparse tensors are not."""
        return isinstance(value, _TENSORS)

    def array_spec(self, tensor: Any) -> ArraySpec:
        """See `Framework.array_spec`."""
        return ArraySpec(tuple(tensor.shape), known(_dtype(tensor.dtype)))

    def to_numpy(self, tensor: Any) -> Array:
        """See `Framework.to_numpy`."""
        return np.array(known_numbers(tensor.asnumpy()), order="C")

    def number(self, tensor: Any) -> float | None:
        """See `Framework.number`."""
        if tensor.size != 1 or not is_own_real(known(_dtype(tensor.dtype))):
            return None
        return float(tensor.item())

    def snapshot(self, tensor: Any) -> HostCopy:
        """A copy: the array of a tensor on the host shares its memory."""
        array = tensor.asnumpy()
        numbers = known_numbers(array)
        return HostCopy(staged(array) if numbers is array else numbers)

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The trainable parameters; of an optimizer, those that it trains."""
        if isinstance(model, Optimizer):
            return _named(model.parameters)
        return _named(_cell(model).trainable_params())

    def frozen_parameters(self, model: Any) -> list[str]:
        """See `Framework.frozen_parameters`."""
        return [name for name, parameter in self.tensors(model) if not parameter.requires_grad]

    def nbytes(self, model: Any) -> int:
        """The bytes of the trainable parameters: MindSpore's buffers look like frozen ones."""
        return sum(int(parameter.nbytes) for _, parameter in self.named_parameters(model))

    def tensors(self, model: Any) -> Iterable[tuple[str, Any]]:
        """All parameters: MindSpore's buffers are Parameters that are not trained."""
        return _named(_cell(model).get_parameters())

    def learning_rate(self, optimizer: Any) -> float | None:
        """The first rate: the value of a Parameter, or of a schedule at the optimizer's next step."""
        for rate in _rates(optimizer):
            # A schedule is called as in Optimizer.get_lr, which a step calls.
            if isinstance(rate, Cell):
                rate = rate(mindspore.Tensor(optimizer.global_step.asnumpy()))
            return float(rate.asnumpy().reshape(()))
        return None

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The learning rates of all groups; those of schedules, which are Cells, are left out."""
        return [float(rate.asnumpy()) for rate in _constant(_rates(optimizer))]

    def set_learning_rates(self, optimizer: Any, rates: Sequence[float]) -> None:
        """See `Framework.set_learning_rates`."""
        for parameter, rate in zip(_constant(_rates(optimizer)), rates, strict=True):
            self.write(parameter, np.asarray(rate, np.float64))

    def write(self, tensor: Any, array: Array) -> None:
        """Copies into the tensor, in its own dtype."""
        own = np.ascontiguousarray(array).astype(_dtype(tensor.dtype), copy=False).reshape(array.shape)
        tensor.set_data(mindspore.Tensor(own, tensor.dtype))


class CompiledGraph:
    """Waits for the graph that MindSpore compiles of a network: a `collect.values.graph_source.Observer`.

    In PyNative mode there is none; the log says so.
    """

    def __init__(self, network: Cell) -> None:
        self._network, self._graph = network, b""

    @property
    def is_ready(self) -> bool:
        """Whether the network was compiled, or never will be."""
        if not self._graph:
            self._graph = self._network.get_func_graph_proto() or b""
        return bool(self._graph) or mindspore.get_context("mode") == mindspore.PYNATIVE_MODE

    def check_compilations(self) -> None:
        """Does nothing."""

    def graph(self) -> bytes:
        """The bytes of a ModelProto; b"" if there is none."""
        if not self.is_ready or not self._graph:
            logger.warning(
                "no graph is recorded: %s was not compiled, as it is in GRAPH_MODE",
                type(self._network).__name__,
            )
        return self._graph

    def close(self) -> None:
        """Does nothing."""


# Cached, since it is called for every loss.
@lru_cache(maxsize=64)
def _dtype(dtype: Any) -> np.dtype[Any]:
    # From an empty tensor, since dtype_to_nptype is deprecated.
    found: np.dtype[Any] = mindspore.Tensor([], dtype).asnumpy().dtype
    # NumPy gets such numbers as bytes alone, as of float8.
    if found.names is not None:
        raise InvalidTypeError(f"a tensor of {dtype} has no numbers for NumPy; cast it")
    return found


def _cell(model: Any) -> Cell:
    if not isinstance(model, Cell):
        raise InvalidTypeError(f"model must be a mindspore.nn.Cell, got {type(model).__name__}")
    return model


def _named(parameters: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(one.name, one) for one in parameters if not _OF_THOR.fullmatch(one.name)]


def _rates(optimizer: Any) -> list[Any]:
    """What holds the learning rates of an optimizer: a Parameter or a schedule for each of its groups."""
    rates = getattr(optimizer, "learning_rate", None)
    return list(rates) if isinstance(rates, (list, tuple, CellList)) else [rates] if rates is not None else []


def _constant(rates: Iterable[Any]) -> list[Any]:
    return [rate for rate in rates if isinstance(rate, mindspore.Parameter)]


FRAMEWORK = MindSporeFramework()

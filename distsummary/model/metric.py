"""What every metric is: the base class, the inputs that it takes, and arrays of them."""

from abc import abstractmethod
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import is_int
from distsummary.errors import InvalidTypeError, InvalidValueError, NoSamplesError
from distsummary.frameworks.base import framework_of

Array = NDArray[Any]


class Updatable(Protocol):
    """What an evaluation needs of a metric; any object with these methods is one."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all updates."""

    @abstractmethod
    def update(self, *inputs: Any) -> None:
        """Add a batch: the predictions and the labels, or all outputs of the network for evaluation."""

    @abstractmethod
    def eval(self) -> Any:
        """The metric of all batches since `clear`."""


class Metric(Updatable):
    """The base of a metric; derive from it, or write any class with its methods clear, update and eval."""

    _indexes: list[int] | None = None

    @property
    def indexes(self) -> list[int] | None:
        """Which of the inputs `update` takes, and in which order; None: all."""
        return self._indexes

    def set_indexes(self, indexes: list[int]) -> Self:
        """Choose and order the inputs of `update` by their positions; returns the metric itself.

        Raises InvalidValueError unless `indexes` is a list of ints.
        """
        if not isinstance(indexes, list) or not all(map(is_int, indexes)):
            raise InvalidValueError(
                f"indexes must be a list of int, got {indexes!r}; such as [0, 1] for the first two inputs"
            )
        self._indexes = indexes
        return self

    def __call__(self, *inputs: Any) -> Any:
        """The metric of one batch alone."""
        self.clear()
        self.update(*inputs)
        return self.eval()

    def _arrays(self, inputs: tuple[Any, ...], count: int, what: str) -> list[Array]:
        """The inputs that `indexes` chooses, as arrays; raises unless there are `count`."""
        return [array_of(self._name, value) for value in self._chosen(inputs, count, what)]

    def _chosen(self, inputs: tuple[Any, ...], count: int, what: str) -> tuple[Any, ...]:
        """The inputs that `indexes` chooses; raises unless there are `count`."""
        chosen = inputs
        if self._indexes:
            if not all(-len(inputs) <= index < len(inputs) for index in self._indexes):
                raise InvalidValueError(
                    f"{self._name}.update got {len(inputs)} inputs, which do not have all of the indexes "
                    f"{self._indexes}; change set_indexes"
                )
            chosen = tuple(inputs[index] for index in self._indexes)
        if len(chosen) != count:
            raise InvalidValueError(
                f"{self._name}.update takes {what}, got {len(chosen)} inputs; choose among the outputs of "
                "the network by metric.set_indexes([...])"
            )
        return chosen

    def _require(self, samples: object) -> None:
        if not samples:
            raise NoSamplesError(f"{self._name} has no samples; call update before eval")

    @property
    def _name(self) -> str:
        return type(self).__name__


class Mean(Metric):
    """A sum over all updates, divided by the number of samples."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._sum, self._samples = 0.0, 0

    def _add(self, value: float, samples: int) -> None:
        self._sum += value
        self._samples += samples

    def eval(self) -> float:
        """The mean; raises NoSamplesError without any sample."""
        self._require(self._samples)
        return self._sum / self._samples


class LastUpdate(Metric):
    """A metric of the last update alone, as MindSpore's are that do not add up: give all samples at once."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the update."""
        self._held: Any = None

    def _last(self) -> Any:
        """What `update` kept; raises NoSamplesError without one."""
        self._require(self._held is not None)
        return self._held


def array_of(name: str, value: Any) -> Array:
    """A tensor, array, list or number as an array."""
    if isinstance(value, (list, int, float)) and not isinstance(value, bool):
        return np.asarray(value)
    framework = framework_of(value)
    if not framework.is_tensor(value):
        raise InvalidTypeError(
            f"{name}.update takes tensors, arrays or lists, got {type(value).__name__}; pass the network's "
            "tensors, or choose among its outputs by metric.set_indexes([...])"
        )
    return framework.to_numpy(value)


def indices(predicted: Array, true: Array) -> Array:
    """Labels as indices of classes: one-hot labels (N, C, ...) become (N, ...)."""
    is_one_hot = predicted.ndim == true.ndim > 1 and is_binary(true) and bool((true.sum(axis=1) == 1).all())
    return true.argmax(axis=1) if is_one_hot else true


def is_binary(array: Array) -> bool:
    """Whether all elements are 0 or 1."""
    return bool(((array == 0) | (array == 1)).all())

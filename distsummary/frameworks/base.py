"""The interface that each framework implements (torch, MindSpore ...); finds the framework of an object."""

import importlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard

Array = NDArray[Any]
_MAX_DEPTH = 4  # of a batch
# package of a type -> framework; else numpy
_OWNERS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "mindspore": "mindspore"}


class ArraySpec(NamedTuple):
    """The array that a tensor becomes, known before it is copied."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Pending(Protocol):
    """A value that may still be on its way from a device."""

    @property
    def nbytes(self) -> int:
        """The size of the value in bytes."""

    def result(self) -> Any:
        """Wait for the value and return it: an array, unless the maker of this object says otherwise."""


class Computed:
    """A `Pending` whose value is a function of that of another one; `nbytes` is what that one holds."""

    __slots__ = ("_function", "_pending")

    def __init__(self, pending: Pending, function: Callable[[Any], Any]) -> None:
        self._pending, self._function = pending, function

    @property
    def nbytes(self) -> int:
        """The bytes that are held until `result` is called."""
        return self._pending.nbytes

    def result(self) -> Any:
        """Wait for the other value, and compute this one."""
        return self._function(self._pending.result())


class Framework(Protocol):
    """The operations on a framework's tensors and models; `numpy.py` is the reference implementation.

    Each framework is implemented in one module of this folder. To callers, tensors and models are opaque.
    What a method does here is right for models that are whole on each rank.
    """

    name: str

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a tensor of this framework."""

    def array_spec(self, tensor: Any) -> ArraySpec:
        """The shape and dtype of the array that `to_numpy` would return; nothing is copied.

        Raises InvalidTypeError for a tensor that cannot become an array, InvalidValueError if it has
        no values.
        """

    def to_numpy(self, tensor: Any) -> Array:
        """A copy on the host, in the same shape; for a sharded tensor, a copy of the local part.

        The dtype is kept, in native byte order, except that small dtypes unknown to NumPy (bfloat16,
        float8 ...) become float32, which holds all their values.
        """

    def number(self, tensor: Any) -> float | None:
        """The real number that a host tensor of one element holds, found quickly; None for any other tensor.

        None does not mean that the tensor cannot be recorded: the caller then asks `array_spec`.
        """

    def snapshot(self, tensor: Any) -> Pending:
        """A copy that later in-place changes do not affect (or the tensor itself, if it is read-only).

        Does not wait for the device; `nbytes` is the size of the array that `result()` returns.
        """

    def histogram(self, tensor: Any) -> Pending:
        """The histogram of the tensor as it is now, or a copy to count later; does not wait for the device.

        `result()` returns whichever costs less: a Histogram that was counted on the tensor's device (only the
        counts are copied), or a copy of the values. Except for the last bits of its sum, the Histogram equals
        the one that `format.histogram.count_histogram` computes for the same values; for a sharded tensor, of
        the local part in fixed buckets.
        """
        return self.snapshot(tensor)

    def shard(self, tensor: Any) -> Shard | None:
        """The slice of a sharded tensor that this rank holds; None if this rank holds all of it."""
        return None

    def split_axes(self, tensor: Any) -> tuple[str, ...]:
        """The axes of the mesh (see `mesh`) that split the tensor; along other axes, ranks hold copies."""
        return ()

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The trainable parameters of a model, in the model's order."""

    def frozen_parameters(self, model: Any) -> list[str]:
        """The names of the other parameters."""
        return []

    def whole_nbytes(self, tensor: Any) -> int:
        """The bytes of a tensor; of a split one those of all ranks."""
        return int(math.prod(tensor.shape) * tensor.itemsize)

    def nbytes(self, model: Any) -> int:
        """The bytes of all parameters of a model, trained or not; of split ones those of all ranks."""

    def tensors(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The model's own parameters and buffers by name; `state` copies them."""

    def state(self, model: Any) -> dict[str, Array]:
        """Parameters and buffers by name, copied to the host: the content of a checkpoint."""
        return {name: self.to_numpy(tensor) for name, tensor in self.tensors(model)}

    def own_states(self, model: Any) -> dict[str, dict[str, Any]]:
        """What parts of a model keep beyond parameters and buffers: the path of a part -> name -> value."""
        return {}

    def load_own_states(self, model: Any, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give back what `own_states` took; raises InvalidValueError for what the model does not take."""
        return None

    def mesh(self, model: Any) -> dict[str, tuple[int, int]]:
        """The mesh over which the model is distributed, {axis: (coordinate, size)}; empty without one."""
        return {}

    def learning_rate(self, optimizer: Any) -> float | Pending | None:
        """The current learning rate of the first parameter group, None if the optimizer has none.

        A rate on a device is returned as a `snapshot`, so that nothing waits for the device.
        """

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The learning rates of all parameter groups, on the host; empty if the optimizer has none."""

    def initial_learning_rate(self, optimizer: Any) -> float | None:
        """The first group's learning rate before a scheduler changed it, as far as the optimizer knows it."""
        rates = self.learning_rates(optimizer)
        return rates[0] if rates else None

    def set_learning_rates(self, optimizer: Any, rates: Sequence[float]) -> None:
        """Set the learning rates of the parameter groups, as many and in the order of `learning_rates`.

        A rate that is a tensor or an array is written in place.
        """

    def optimizer_entries(self, optimizer: Any) -> dict[str, Any]:
        """The state of an optimizer by name, for a checkpoint: tensors, numbers and tuples of numbers.

        The names begin with `optimizer/`. Empty for an optimizer whose state is unknown.
        """
        return {}

    def optimizer_rest(self, optimizer: Any) -> dict[str, Any]:
        """What else a checkpoint holds of an optimizer, as `object_state` takes it; empty if it is unknown.

        class: its name. shapes: of its parameters, whole, in their order. odd: the whole state of those
        parameters, by their place as a text, that `optimizer_entries` cannot hold.
        """
        return {}

    def load_optimizer(
        self, optimizer: Any, state: Mapping[str, Array], odd: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Write whole arrays, as `optimizer_entries` names them; returns the names that were not used.

        `odd`: that of `optimizer_rest`.

        Raises InvalidTypeError for an optimizer whose state is unknown, InvalidValueError for one that does
        not fit the state.
        """
        raise InvalidTypeError(
            "the state of an optimizer can be loaded for torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}"
        )

    def whole(self, tensor: Any) -> Any:
        """The whole of a sharded tensor: a collective operation. Any other tensor is returned as it is."""
        return tensor

    def agreed(self, value: str) -> str:
        """Rank 0's value, on all ranks of a distributed model: a collective operation."""
        return value

    def write(self, tensor: Any, array: Array) -> None:
        """Write an array into a tensor; a sharded tensor takes its slice of the whole array."""


class Curvature(NamedTuple):
    """What an optimizer that keeps Kronecker factors A and G of its layers reports of them.

    Attributes:
        damping: of the last step. refreshes: how often factors were computed. refresh_s: seconds of the last.
        layers: their names.
        figures: float64 (layers, 4): the traces of A and G, and the conditions of the damped A and G in the
            1-norm; NaN before the first refresh of a layer.
        skipped: how often a refresh left out a layer, by name: without input or gradient, NaN, singular.
    """

    damping: float
    refreshes: int
    refresh_s: float
    layers: tuple[str, ...]
    figures: Array
    skipped: Mapping[str, int]


class CurvatureDirection(NamedTuple):
    """An eigenvector of unit length of the Kronecker product of a layer's damped factors.

    Attributes:
        value: the eigenvalue. layer: the name of the layer.
        vector: float64, by the name of the layer's parameter, in its shape.
    """

    value: float
    layer: str
    vector: Mapping[str, Array]


@runtime_checkable
class CurvatureSource(Protocol):
    """An optimizer that keeps Kronecker factors of the curvature by layer, such as `thor.THOR`.

    Attributes:
        loss_scale: by what the loss is multiplied, a number or the object that divides the gradients itself.
    """

    loss_scale: Any

    def curvature(self) -> Curvature:
        """The figures of its factors as they are now."""

    def largest_curvature(
        self, count: int = 2, names: Collection[str] | None = None
    ) -> list[CurvatureDirection]:
        """The eigenvectors of the largest eigenvalues, descending; fewer if there are fewer.

        `names`: the parameters whose layers are looked at; None: all.
        """


def load(name: str) -> Framework:
    """The framework called `name`; raises MissingExtraError with the pip command if it is not installed."""
    try:
        module = importlib.import_module(f"distsummary.frameworks.{name}")
    except ModuleNotFoundError as error:
        # Either there is no such module of ours, or a package that it imports is missing.
        if error.name is not None and error.name.startswith("distsummary"):
            raise InvalidTypeError(
                f"there is no framework called {name!r}; known are numpy, torch, jax and mindspore"
            ) from error
        from distsummary.base.extras import missing_extra

        raise missing_extra(f"a tensor or model of {name}", error.name or name) from error
    framework: Framework = module.FRAMEWORK
    return framework


def framework_of(value: object) -> Framework:
    """The framework that owns a tensor or model, found by its type; no other framework is imported."""
    return _framework_of_type(type(value))  # type: ignore[arg-type]  # mypy doubts that types are hashable


def tensors_in(batch: object, *, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """The tensors of a batch, also those in nested lists, tuples and mappings, up to `depth` levels deep."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch if depth else ():
            yield from tensors_in(part, depth=depth - 1)
    elif framework_of(batch).is_tensor(batch):
        yield batch


def spec_of(name: str, tensor: Any) -> ArraySpec:
    """`Framework.array_spec` of a tensor; its errors begin with `name`."""
    try:
        return framework_of(tensor).array_spec(tensor)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {error}") from error


# Cached, since it is called for every logged tensor.
@lru_cache(maxsize=256)
def _framework_of_type(owned: type) -> Framework:
    for kind in owned.__mro__:
        package = kind.__module__.split(".")[0]
        if package in _OWNERS:
            return load(_OWNERS[package])
    return load("numpy")


def refuse_without_torch(field: str, network: object) -> None:
    """Raise InvalidTypeError unless `network` is a torch model; `field`: the option that needs one."""
    if framework_of(network).name != "torch":
        raise InvalidTypeError(
            f"{field} looks into a torch.nn.Module, got a network of type {type(network).__name__}; leave "
            f"{field} out"
        )

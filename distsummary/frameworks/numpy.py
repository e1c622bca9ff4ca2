"""NumPy as a framework: the reference implementation of `base.Framework`.

A model is any callable object with `parameters`, a dict of arrays by name, and optionally `buffers`, another
such dict or None.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import ArraySpec, check_state
from distsummary.frameworks.staging import is_frozen, staged

Array = NDArray[Any]


class HostCopy:
    """A `base.Pending` that is complete: an array on the host."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return self._array.nbytes

    def result(self) -> Array:
        """The array."""
        return self._array


class NumpyFramework:
    """Implements `base.Framework`, where the methods are specified, for NumPy."""

    name = "numpy"

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is an array or a NumPy scalar."""
        return isinstance(value, np.ndarray | np.generic)

    def array_spec(self, tensor: Any) -> ArraySpec:
        """The shape, and the dtype after `known_numbers`; raises InvalidTypeError for a masked array."""
        if isinstance(tensor, np.ma.MaskedArray):
            raise InvalidTypeError("a masked array has places without a value; fill them: array.filled(...)")
        return ArraySpec(tensor.shape, known(tensor.dtype))

    def to_numpy(self, tensor: Any) -> Array:
        """A copy in C order."""
        return np.array(tensor, order="C", dtype=known(tensor.dtype))

    def number(self, tensor: Any) -> float | None:
        """`item()` of a NumPy scalar, or of an array of one of NumPy's own dtypes."""
        is_usual = (type(tensor) is np.ndarray or isinstance(tensor, np.generic)) and tensor.size == 1
        return float(tensor.item()) if is_usual and is_own_real(tensor.dtype) else None

    def snapshot(self, tensor: Any) -> HostCopy:
        """A copy; a read-only array is returned as it is."""
        array = np.asarray(tensor)
        known = known_numbers(array)
        return HostCopy(known if known is not array or is_frozen(array) else staged(array))

    def histogram(self, tensor: Any) -> HostCopy:
        """A copy: counting takes 30 times as long as copying and is left to the writer thread."""
        return self.snapshot(tensor)

    def shard(self, tensor: Any) -> Shard | None:
        """None: NumPy arrays are not sharded."""
        return None

    def split_axes(self, tensor: Any) -> tuple[str, ...]:
        """Empty: NumPy arrays are not split."""
        return ()

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The items of `model.parameters`."""
        return _parameters(model).items()

    def frozen_parameters(self, model: Any) -> list[str]:
        """See `Framework.frozen_parameters`: there are none."""
        return []

    def nbytes(self, model: Any) -> int:
        """The bytes of `model.parameters`; an array with two names counts once."""
        return sum(array.nbytes for array in {id(one): one for one in _parameters(model).values()}.values())

    def tensors(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Parameters and buffers; an array with two names is listed once, under the first name."""
        return _entries(model).items()

    def watch(self, model: Any) -> Callable[[], bool]:
        """A check that is always False: listing the parameters is as quick as any check."""
        return lambda: False

    def state(self, model: Any) -> dict[str, Array]:
        """Copies of parameters and buffers."""
        return {name: self.to_numpy(array) for name, array in self.tensors(model)}

    def load_state(self, model: Any, state: Mapping[str, Array]) -> None:
        """Write into the model's own arrays; a state that does not fit changes nothing."""
        entries = _entries(model)
        check_state({name: (array.shape, array.dtype) for name, array in entries.items()}, state)
        for name, array in entries.items():
            np.copyto(array, state[name], casting="same_kind")

    def mesh(self, model: Any) -> dict[str, tuple[int, int]]:
        """Empty: such a model is not distributed."""
        return {}

    def learning_rate(self, optimizer: Any) -> float | None:
        """`optimizer.learning_rate` or `optimizer.lr`: the first of these that is a number, else None."""
        field = _rate_field(optimizer)
        return None if field is None else float(np.asarray(getattr(optimizer, field)).item())

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The one rate of `learning_rate`, if there is one."""
        rate = self.learning_rate(optimizer)
        return [] if rate is None else [rate]

    def initial_learning_rate(self, optimizer: Any) -> float | None:
        """The first rate as it is: the optimizer knows no other."""
        rates = self.learning_rates(optimizer)  # of MindSpore: without those of schedules
        return rates[0] if rates else None

    def set_learning_rates(self, optimizer: Any, rates: Sequence[float]) -> None:
        """Set the attribute that `learning_rate` reads."""
        (rate,) = rates
        field = _rate_field(optimizer)
        assert field is not None
        value = getattr(optimizer, field)
        if isinstance(value, np.ndarray):
            value[...] = rate
        else:
            setattr(optimizer, field, rate)

    def optimizer_entries(self, optimizer: Any) -> dict[str, Any]:
        """Empty: nothing is known of such an optimizer but its rate, which the training sets."""
        return {}

    def load_optimizer(self, optimizer: Any, state: Mapping[str, Array]) -> list[str]:
        """Raises InvalidTypeError."""
        raise InvalidTypeError(
            "the state of an optimizer can be loaded for torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}"
        )

    def whole(self, tensor: Any) -> Any:
        """The array itself: it is not sharded."""
        return tensor

    def agreed(self, value: str) -> str:
        """The value itself: such a model is not distributed."""
        return value

    def write(self, tensor: Any, array: Array) -> None:
        """Copies into the array."""
        np.copyto(tensor, array, casting="same_kind")


def _rate_field(optimizer: Any) -> str | None:
    """The name of the attribute that holds an optimizer's learning rate, None without one."""
    for field in ("learning_rate", "lr"):
        value = getattr(optimizer, field, None)
        if isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.size == 1):
            return field
    return None


def known_numbers(array: Array) -> Array:
    """The array in native byte order; small dtypes of ml_dtypes become float32, which holds their values."""
    return array.astype(known(array.dtype), copy=False)


def is_own_real(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of the real ones that NumPy itself has."""
    return dtype.isbuiltin == 1 and dtype.kind in "biuf"  # 2 is a dtype of another package


def known(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that `known_numbers` gives arrays of a dtype."""
    # isbuiltin == 2: another package registered the dtype; bfloat16, int4 ... can be cast safely to float32
    is_small = dtype.isbuiltin == 2 and np.can_cast(dtype, np.float32, casting="safe")
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    return np.dtype(np.float32) if is_small else native


def _parameters(model: Any) -> dict[str, Array]:
    parameters = getattr(model, "parameters", None)
    if not isinstance(parameters, dict):
        raise InvalidTypeError(
            "model must be a torch.nn.Module, or have parameters: dict[str, ndarray], got "
            f"{type(model).__name__}, whose parameters are {type(parameters).__name__}"
        )
    return parameters


def _entries(model: Any) -> dict[str, Array]:
    parameters, buffers = _parameters(model), getattr(model, "buffers", None)
    if not isinstance(buffers, dict | None):
        raise InvalidTypeError(
            f"buffers of a NumPy model must be dict[str, ndarray] or None, got {type(buffers).__name__}"
        )
    buffers = buffers or {}
    both = sorted(parameters.keys() & buffers.keys())
    if both:
        raise InvalidValueError(
            f"a model's parameters and buffers must have different names, got {both} twice"
        )
    entries: dict[str, Array] = {}
    seen: set[int] = set()
    for name, array in {**parameters, **buffers}.items():
        if not isinstance(array, np.ndarray):
            raise InvalidTypeError(f"{name} of a NumPy model must be ndarray, got {type(array).__name__}")
        if id(array) not in seen:
            seen.add(id(array))
            entries[name] = array
    return entries


FRAMEWORK = NumpyFramework()

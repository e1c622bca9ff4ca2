"""NumPy as a framework: the reference implementation of `base.Framework`.

A model is any callable object with `parameters`, a dict of arrays by name, and optionally `buffers`, another
such dict or None.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import ArraySpec, Framework
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


class NumpyFramework(Framework):
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

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The items of `model.parameters`."""
        return _parameters(model).items()

    def nbytes(self, model: Any) -> int:
        """The bytes of `model.parameters`; an array with two names counts once."""
        return sum(array.nbytes for array in {id(one): one for one in _parameters(model).values()}.values())

    def tensors(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Parameters and buffers; an array with two names is listed once, under the first name."""
        return _entries(model).items()

    def learning_rate(self, optimizer: Any) -> float | None:
        """`optimizer.learning_rate` or `optimizer.lr`: the first of these that is a number, else None."""
        field = _rate_field(optimizer)
        return None if field is None else float(np.asarray(getattr(optimizer, field)).item())

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The one rate of `learning_rate`, if there is one."""
        rate = self.learning_rate(optimizer)
        return [] if rate is None else [rate]

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
    # `isbuiltin` is 2 for the dtypes of other packages.
    return dtype.isbuiltin == 1 and dtype.kind in "biuf"


def known(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that `known_numbers` gives arrays of a dtype."""
    # isbuiltin == 2: another package registered the dtype; bfloat16, int4 ... can be cast safely to float32.
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

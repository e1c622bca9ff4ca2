"""What a framework must tell us: a Protocol of a few functions, and how to find whose an object is."""

import importlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidTypeError, MissingExtraError
from distsummary.format.records import Shard

Array = NDArray[Any]


class ArraySpec(NamedTuple):
    """What array a tensor becomes, known before it is copied."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Framework(Protocol):
    """One module of this folder satisfies it (`numpy.py` is the reference); tensors and models are opaque."""

    name: str

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a tensor of this framework."""

    def array_spec(self, tensor: Any) -> ArraySpec:
        """The shape and dtype of what `to_numpy` would give; nothing is copied.

        Raises InvalidTypeError for a tensor that is no array, InvalidValueError for one without values.
        """

    def to_numpy(self, tensor: Any) -> Array:
        """A host copy of the same shape; of a sharded tensor the local part.

        The dtype stays, in native byte order, but small numbers that NumPy does not know (bfloat16, float8
        ...) become float32, which holds all their values.
        """

    def snapshot(self, tensor: Any) -> Any:
        """A copy that in-place changes do not touch, or what nobody can change; no device is waited for.

        It has `result() -> Array`, which waits, and `nbytes`, the bytes of that array.
        """

    def histogram(self, tensor: Any) -> Any:
        """What the histogram of the tensor as it is now is made of; no device is waited for.

        `result()` waits and gives a Histogram, counted where the tensor lies so that only the counts leave
        it, or the array to count, whichever costs less; `nbytes` is what is held until then. Either way it
        becomes what `events.histogram.count_histogram` makes of the same values.
        """

    def shard(self, tensor: Any) -> Shard | None:
        """The slice that this rank holds, None for a tensor that is whole here."""

    def split_axes(self, tensor: Any) -> tuple[str, ...]:
        """The axes of the mesh (see `mesh`) that split the tensor: along others ranks hold copies."""

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The trainable parameters of a model, in the model's order."""

    def tensors(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Parameters and buffers by name, in place: what `state` copies."""

    def state(self, model: Any) -> dict[str, Array]:
        """Parameters and buffers by name, copied to the host: what a checkpoint holds."""

    def load_state(self, model: Any, state: Mapping[str, Array]) -> None:
        """Put values back by name; raises InvalidValueError naming missing, unknown or misshapen ones."""

    def mesh(self, model: Any) -> dict[str, tuple[int, int]]:
        """The mesh that the model is distributed over: axis name to (coordinate, size); empty for none."""

    def learning_rate(self, optimizer: Any) -> Any:
        """The learning rate now (of the first group), None if the optimizer does not tell.

        A float; one that lies on a device as `snapshot` gives it, since no device is waited for.
        """


def load(name: str) -> Framework:
    """The framework called `name`; raises MissingExtraError with the pip line when it is not installed."""
    try:
        module = importlib.import_module(f"distsummary.frameworks.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("distsummary"):
            raise InvalidTypeError(
                f"there is no framework called {name!r}; known are numpy and torch"
            ) from error
        raise MissingExtraError(
            f"{error.name} is not installed; run: pip install 'distsummary[{name}]'", name=error.name
        ) from error
    framework: Framework = module.FRAMEWORK
    return framework


def framework_of(value: object) -> Framework:
    """The framework that owns a tensor or model, told by its type alone: asking imports no other."""
    return _framework_of_type(type(value))  # type: ignore[arg-type]  # mypy doubts that types are hashable


@lru_cache(maxsize=256)  # asked for every logged tensor
def _framework_of_type(owned: type) -> Framework:
    for kind in owned.__mro__:
        if kind.__module__.split(".")[0] == "torch":
            return load("torch")
    return load("numpy")

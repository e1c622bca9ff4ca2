"""Makes a loader that shuffles and augments give the same batches each time, by fixing its random numbers.

The points of a landscape are compared with each other, so all points must see the same data, in every
worker and when another process resumes the landscape.
"""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint
from typing import Any, TypeVar

import numpy as np
from numpy.random import mtrand  # before NumPy 2.5, `np.random` has only some of its functions

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.model.batches import inside

SEED = 0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Steady:
    """A loader that starts each reading with the same random numbers and leaves the global generators alone.

    The global generators are Python's `random`, NumPy's global one and torch's default one for the CPU. A
    generator that the loader itself holds is not reset between readings, see `refuse_unsteady`.
    """

    loader: Iterable[Any]

    def __iter__(self) -> Iterator[Any]:
        numbers = _Numbers()
        iterator = numbers.apart(lambda: iter(self.loader))
        while (batch := numbers.apart(lambda: next(iterator, _END))) is not _END:
            yield batch

    def __length_hint__(self) -> int:
        known = length_hint(self.loader, -1)
        return NotImplemented if known < 0 else known


def steady(source: Iterable[Any]) -> Iterable[Any]:
    """A source that gives the same batches at each reading: the list or tuple itself, or a `Steady`."""
    return source if isinstance(source, list | tuple | Steady) else Steady(source)


def refuse_unsteady(source: Iterable[Any], name: str = "") -> None:
    """Raise InvalidValueError if the first batches of two readings differ, or if there is no batch."""
    if isinstance(source, list | tuple):
        return
    first, second = (next(iter(steady(source)), _END) for _ in range(2))
    called = f"streamed batches{f' of {name}' if name else ''}"
    if first is _END:
        raise InvalidValueError(f"{called} must hold at least one batch, got none")
    if not _is_same(first, second):
        raise InvalidValueError(
            f"{called} must be the same each time they are read, got "
            "a loader whose first batch changes: it draws from a generator that continues from one reading "
            "to the next (generator=, persistent_workers=True); leave these out, use shuffle=False, or give "
            "a list of batches"
        )


@contextmanager
def numbers_kept() -> Iterator[None]:
    """Restore the global generators when the block ends."""
    others = _states()
    try:
        yield
    finally:
        _set_states(others)


class _Numbers:
    """The random numbers of one reading, put into the global generators while the loader runs."""

    def __init__(self) -> None:
        # A state belongs to one kind of bit generator, so the seeded one is of the kind that is in use.
        generator = mtrand.get_bit_generator()
        own = np.random.RandomState(type(generator)(SEED))
        self._own = {
            "random": random.Random(SEED).getstate(),
            "numpy": (generator, own.get_state(legacy=False)),
        }
        if (torch := sys.modules.get("torch")) is not None:
            self._own["torch"] = torch.Generator().manual_seed(SEED).get_state()

    def apart(self, read: Callable[[], T]) -> T:
        """Call `read` with the random numbers of this reading; then the global generators are restored."""
        with numbers_kept():
            _set_states(self._own)
            try:
                return read()
            finally:
                self._own = _states()


def _states() -> dict[str, Any]:
    """The states of the global generators; torch's state only if torch is loaded already."""
    generator: Any = mtrand.get_bit_generator()  # MT19937, or one that the user has set
    states = {"random": random.getstate(), "numpy": (generator, np.random.get_state(legacy=False))}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
    return states


def _set_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["random"])
    generator, state = states["numpy"]
    mtrand.set_bit_generator(generator)
    np.random.set_state(state)
    if "torch" in states:
        sys.modules["torch"].set_rng_state(states["torch"])


def _is_same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same values; objects without comparable parts count as the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(_is_same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    if isinstance(one, str | bytes | int | float):
        # NaN, which is not equal to itself, counts as the same.
        return one == other or (one != one and other != other)
    framework = framework_of(one)
    if not framework.is_tensor(one):
        return _is_same(_comparable(one), _comparable(other))
    try:
        arrays = framework.to_numpy(one), framework.to_numpy(other)
    except (InvalidTypeError, InvalidValueError):
        # The values have no array form, such as those of a nested tensor, and cannot be compared.
        return True
    # The bytes of an array of objects are addresses, so its elements are compared instead.
    if any(array.dtype.hasobject for array in arrays):
        return _is_same(*(array.tolist() for array in arrays))
    return arrays[0].shape == arrays[1].shape and arrays[0].tobytes() == arrays[1].tobytes()


def _comparable(value: Any) -> list[Any]:
    """The parts of an object that can be compared."""
    return [
        part
        for part in inside(value)
        if isinstance(part, str | bytes | int | float) or framework_of(part).is_tensor(part)
    ]


_END = object()

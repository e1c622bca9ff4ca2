"""A loader that shuffles and augments gives the same batches each time, and leaves the generators alone."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscapes.model.repeatable_loader import Steady, numbers_kept, refuse_unsteady, steady


class Shuffling:
    """Batches in another order each time, with noise."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(5))
        random.shuffle(order)
        for number in order:
            yield number, np.random.normal(size=3).tolist(), random.gauss()

    def __len__(self) -> int:
        return 5


class Own:
    """Batches from a generator of its own, as `make` wraps them."""

    def __init__(self, make: Any = lambda values: values) -> None:
        self.numbers, self.make = np.random.default_rng(0), make

    def __iter__(self) -> Iterator[Any]:
        yield self.make(self.numbers.normal(size=3))


def states() -> list[Any]:
    random_state, numpy_state = random.getstate(), np.random.get_state()
    return [random_state, numpy_state[1].tobytes(), *numpy_state[2:]]  # type: ignore[index]  # of two kinds


def test_every_reading_gives_the_same_whatever_others_draw_in_between() -> None:
    source = Shuffling()
    assert list(source) != list(source)
    first = list(Steady(source))
    random.seed(3)
    second = []
    for batch in steady(source):
        np.random.normal(size=7)
        random.random()
        second.append(batch)
    assert first == second
    assert first == list(pickle.loads(pickle.dumps(Steady(source))))  # as another worker reads it
    assert len({str(noise) for _, noise, _ in first}) == 5


def test_readings_that_overlap_do_not_disturb_each_other() -> None:
    source = Steady(Shuffling())
    next(iter(source))
    assert [one for pair in zip(source, source, strict=True) for one in pair][::2] == list(source)


def test_the_generators_of_others_are_as_if_nothing_had_been_read() -> None:
    np.random.normal()  # a second number of the pair waits in it
    before = states()
    list(Steady(Shuffling()))
    assert states() == before
    for _ in Steady(Shuffling()):  # a reading that is given up
        break
    assert states() == before

    class Broken:
        def __iter__(self) -> Iterator[Any]:
            random.random()
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk"):
        list(Steady(Broken()))
    assert states() == before


def test_a_generator_that_somebody_puts_in_the_place_of_numpys_is_put_back() -> None:
    first = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in NumPy's own list
    before = states()
    with numbers_kept():
        np.random.set_bit_generator(np.random.PCG64(1))  # type: ignore[attr-defined]  # as above
        np.random.normal()
    assert np.random.get_bit_generator() is first  # type: ignore[attr-defined]  # as above
    assert states() == before


def test_lists_stay_lists_and_a_length_is_reported() -> None:
    batches = [1, 2]
    assert steady(batches) is batches
    assert steady(found := Steady(Shuffling())) is found
    assert length_hint(found) == 5
    assert length_hint(Steady(Own())) == 0


@dataclass
class Both:
    inputs: Any


class Held:
    def __init__(self, values: Any) -> None:
        self.values, self.me = [values], self


@pytest.mark.parametrize(
    "make",
    [
        lambda values: values, Held, lambda values: Both(values), lambda values: float(values[0]),
        lambda values: values.astype(object), lambda values: values[: 1 + int(abs(values[0]) * 1e6) % 2],
        lambda values: {str(values): 0}, lambda values: 1 if values[0] < 0.12 else 1.0,
    ],
)  # fmt: skip
def test_a_loader_with_a_generator_of_its_own_is_refused(make: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"of test must be the same .* shuffle=False, or give a list"):
        refuse_unsteady(Own(make), "test")


def test_others_are_not_refused() -> None:
    class Plain:
        def __iter__(self) -> Iterator[Any]:
            yield {"x": (np.full(2, np.nan), float("nan"), "a", None, Own(), np.array(["a", None], object))}

    for source in (Plain(), Shuffling(), [Own()]):
        refuse_unsteady(source)

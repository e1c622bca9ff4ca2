import pickle

import numpy as np
import pytest

from distsummary import Directions
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.model.user_code import hint
from distsummary.landscapes.run.worker_failures import place, user_errors

PLANE = PlanePlan(
    states=[{}] * 9, names=(), recipe=Directions(x={}, y={}), x=np.linspace(-1, 1, 5),
    y=np.linspace(0, 1, 3), points=np.zeros((9, 2)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "row", "columns", "planes", "expected"),
    [
        ("grid", 1, (1, 2, 3), 1, "y = 0.5, x = -0.5 to 0.5"),
        ("grid", 0, (4,), 1, "y = 0, x = 1"),
        ("path", 0, (0, 1, 2), 1, "point 1 to 3 of the path"),
        ("checkpoint", 0, (8,), 2, "checkpoint 9 of the path of landscape 1 of 2"),
    ],
)
def test_a_chunk_is_named_by_its_coordinates(kind, row: int, columns, planes: int, expected: str) -> None:
    assert place(Chunk(plane=0, kind=kind, row=row, columns=columns), [PLANE] * planes) == expected


def test_what_the_users_code_raises_is_named_in_one_line_and_is_the_cause() -> None:
    with (
        pytest.raises(LandscapeError, match=r"raised KeyError: 'more' when it was asked$") as failed,
        user_errors("when it was asked"),
    ):
        raise KeyError("more")
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises(LandscapeError, match="raised AssertionError when"), user_errors("when it was asked"):
        raise AssertionError


def test_hints_are_reported_behind_the_error_and_other_notes_are_not() -> None:
    error = TypeError("no\nmore")
    error.add_note("someone else's")
    hint(error, "name it")
    with (
        pytest.raises(LandscapeError, match=r"raised TypeError: no \(hint: name it\) when$") as failed,
        user_errors("when"),
    ):
        raise pickle.loads(pickle.dumps(error))
    assert "someone" not in str(failed.value)


def test_own_errors_and_interrupts_pass() -> None:
    with pytest.raises(InvalidValueError), user_errors("anywhere"):
        raise InvalidValueError("ours")
    with pytest.raises(KeyboardInterrupt), user_errors("anywhere"):
        raise KeyboardInterrupt

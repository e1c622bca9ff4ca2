"""Whether a state fits a model: the check that every framework makes before it loads one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidValueError

Array = NDArray[Any]


def refuse_misfit(
    expected: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], state: Mapping[str, Array]
) -> None:
    """Raise InvalidValueError unless `state` has `expected`'s names and shapes, and dtypes that cast to its.

    A cast may change the precision (float32 to float16) but not the kind (float to integer).
    """
    faults = [f"{name} is missing" for name in expected if name not in state]
    faults += [f"{name} is unknown to the model" for name in state if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name not in state:
            continue
        value = np.asarray(state[name])
        if value.shape != shape:
            faults.append(f"{name} has the shape {value.shape} instead of {shape}")
        elif not np.can_cast(value.dtype, dtype, casting="same_kind"):
            faults.append(f"{name} has the dtype {value.dtype}, which does not become {dtype}")
    if faults:
        more = f" and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise InvalidValueError(
            f"the state does not fit the model: {'; '.join(faults[:10])}{more}; "
            "load the state of the same model"
        )

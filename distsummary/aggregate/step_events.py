"""Divides the values of one step into events that are not too large for readers."""

from collections.abc import Iterable, Iterator

import numpy as np

from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import Event, Histogram, Image, Landscape, Value, nbytes_of

EVENT_BUDGET = MAX_PAYLOAD // 2  # bytes in one event; further values of the same step go into another event
_BIN_BYTES = 30
_SMALL_BYTES = 64


def step_events(step: int, wall_time: float, given: Iterable[Value]) -> Iterator[Event]:
    """The values in one event or, if they exceed EVENT_BUDGET bytes, in several; none without values."""
    values: list[Value] = []
    left = EVENT_BUDGET
    for value in given:
        left -= _size(value)
        if left < 0 and values:
            yield Event(step, wall_time, values)
            values, left = [], EVENT_BUDGET - _size(value)
        values.append(value)
    if values:
        yield Event(step, wall_time, values)


def recorded_by(value: Value, step: int, rank: int) -> Value:
    """The value of a rank for the merged run, where TensorBoard says whose it is; it shows a tag's first."""
    description = (
        f"Step {step} was recorded by rank {rank}; so were later steps, unless ranks take turns or end."
    )
    return value._replace(description=description)


def _size(value: Value) -> int:
    """An upper estimate of how many bytes a value takes in a file."""
    match value.data:
        case np.ndarray():
            body = 4 * value.data.size
        case Histogram():
            body = _BIN_BYTES * len(value.data.left)
        case Image():
            body = len(value.data.encoded)
        case str():
            body = len(value.data.encode())
        case Landscape():
            body = 4 * (
                value.data.z.size + value.data.x.size + value.data.y.size + 3 * value.data.path_x.size
            )
        case _:
            body = nbytes_of(value.data)
    return body + len(value.tag.encode()) + len(value.description) + _SMALL_BYTES

"""Values of a run that are no scalars as tables; the shards of a value are put together."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from distsummary.errors import DamagedFileError
from distsummary.events.recorded import EventPlace
from distsummary.events.shards import AddedShards
from distsummary.runs.rank_files import noting
from distsummary.runs.table import Labels, ValueTable, labels


def value_table(
    found: Sequence[tuple[int, EventPlace]],
    join: Callable[[list[EventPlace]], Callable[[], Any] | None] | None,
    title: str,
) -> ValueTable:
    """A table of values; `join` makes one of the shards of a tag at a step, None if that cannot be.

    Args:
        found: rank and place of each value. join: None: shards stay as they are.
    """
    rows: list[tuple[int, EventPlace, Callable[[], Any]]] = []
    shards: dict[tuple[str, int], list[tuple[int, EventPlace]]] = {}
    for number, place in found:
        if place.shard is not None and join is not None:
            shards.setdefault((place.tag, place.step), []).append((number, place))
        else:
            rows.append((number, place, partial(_data, place)))
    for parts in shards.values():
        assert join is not None
        whole = join([place for _, place in parts])
        if whole is None:
            rows += [(number, place, partial(_data, place)) for number, place in parts]
        else:
            rows.append((*min(parts, key=lambda part: part[0]), whole))
    # The joined values came last: bring them to their ranks and steps.
    if shards:
        rows.sort(key=lambda row: (row[0], row[1].step))
    places = [place for _, place, _ in rows]
    columns: dict[str, Any] = {
        "rank": np.array([number for number, _, _ in rows], np.int32),
        "attempt": np.array([place.attempt for place in places], np.int64),
        "step": np.array([place.step for place in places], np.int64),
        "wall_time": np.array([place.wall_time for place in places], np.float64),
        "tag": labels([place.tag for place in places]) if places else Labels(np.empty(0, np.int32), ()),
    }
    return ValueTable(columns, lambda row: rows[row][2](), title=title)


def _data(place: EventPlace) -> Any:
    return place.read().data


def readable(place: EventPlace, problems: dict[str, None]) -> Iterator[Any]:
    """The data of a value, or nothing but a line about why not."""
    with noting(problems):
        yield _data(place)


MOST_CLAIMED = 1 << 12  # a whole tensor is at most so many times as large as its shards that are there


def added(places: list[EventPlace]) -> Callable[[], Any] | None:
    """The histogram of a parameter from those of its shards; None if shards are missing."""
    shards = AddedShards()
    for place in places:
        shards.add(place.read())
    whole = shards.whole()
    return None if whole is None else lambda: whole.data


def assembled(places: list[EventPlace]) -> Callable[[], Any]:
    """A tensor from its shards; what none holds is masked."""
    return partial(_assemble, places)


def _assemble(places: list[EventPlace]) -> Any:
    whole: Any = None
    missing = np.ones((), np.bool_)
    for place in places:
        value = place.read()
        assert value.shard is not None
        part = np.asarray(value.data)
        # A damaged shard may claim any size, for which memory would be taken.
        if whole is None:
            claimed = math.prod(value.shard.global_shape) * part.dtype.itemsize
            if claimed > MOST_CLAIMED * len(places) * max(1, part.nbytes):
                raise DamagedFileError(
                    f"a shard of {place.tag!r} at step {place.step} has {part.shape} of a tensor of "
                    f"{value.shard.global_shape}, which is not believed; read it with rank="
                )
            whole = np.zeros(value.shard.global_shape, part.dtype)
            missing = np.ones(whole.shape, np.bool_)
        box = tuple(slice(at, at + size) for at, size in zip(value.shard.offset, part.shape, strict=True))
        if value.shard.global_shape != whole.shape or whole[box].shape != part.shape:
            raise DamagedFileError(
                f"the shards of {place.tag!r} at step {place.step} do not fit together: {part.shape} at "
                f"{value.shard.offset} of {value.shard.global_shape}; read those of each rank with rank="
            )
        whole[box] = part
        missing[box] = False
    return np.ma.MaskedArray(whole, missing) if missing.any() else whole

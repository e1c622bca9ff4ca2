"""The data sets that losses are computed from: one, or several with names; kept in memory or streamed."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_type
from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.model.batches import inside, shape_of
from distsummary.landscapes.model.quantities import BatchFacts
from distsummary.landscapes.model.repeatable_loader import refuse_unsteady, steady
from distsummary.landscapes.model.user_code import batch_name

Data = Mapping[str, Iterable[Any]]

# Files with the memory limit of a container (cgroup versions 2 and 1): "max" or a number of bytes.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_log = guarded_log(__name__)


def host_bytes(limits_at: Iterable[str | os.PathLike[str]] = CONTAINER_LIMITS) -> int:
    """The memory of this machine in bytes, or the container's memory limit if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in limits_at:
        try:
            limit = Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if limit.isdecimal():
            limits.append(int(limit))
    return min(limits)


def read_data(batches: Iterable[Any] | Data, *, streamed: bool | None, limit: int) -> tuple[Any, bool]:
    """Read the batches; returns (one data set, or a dict of several by name; whether they are streamed).

    The data sets are lists unless they are streamed. With `streamed=None` all are streamed if the sources
    that can be read again, such as loaders, would take more than `limit` bytes in memory. Raises
    InvalidValueError for a loader that would be streamed but gives different data each time.
    """
    named = _named(batches)
    if streamed is None:
        held: dict[str, Iterable[Any]] = {}
        total, streamed = 0, False
        for name, source in named.items():
            # Lists and tuples are in memory already, and `data_sets` refuses what cannot be iterated over.
            if not isinstance(source, Iterable) or isinstance(source, list | tuple):
                held[name] = source
                continue
            held[name] = read = []
            for batch in steady(source):
                read.append(batch)
                total += batch_bytes(batch)
                # The batches not read yet are expected to be as large as this one. An iterator can be read
                # only once, so its own size never leads to streaming.
                unread = max(0, length_hint(source) - len(read))
                expected = total + unread * batch_bytes(batch)
                if expected > limit and not isinstance(source, Iterator):
                    streamed = True
                    break
            if streamed:
                break
        # If the data is streamed, the batches read so far are dropped, and every source is read again.
        named = named if streamed else held
    found = data_sets(named, streamed=streamed)
    if streamed:
        for name, source in found.items():
            refuse_unsteady(source, name)
    return (found if isinstance(batches, Mapping) else found[""]), streamed


def data_sets(batches: Iterable[Any] | Data, *, streamed: bool | None = False) -> dict[str, Iterable[Any]]:
    """The data sets by name ("" for a single one): lists or, if `streamed`, sources to read repeatedly."""
    named = _named(batches)
    if not named:
        raise InvalidValueError("batches must hold at least one data set, got none")
    if streamed:
        for name, source in named.items():
            if not isinstance(source, Iterable) or isinstance(source, Iterator):
                raise InvalidTypeError(
                    f"streamed {_called(name)} are read repeatedly: "
                    f"give a list or a loader, got {type(source).__name__}"
                )
            _refuse_empty(source, name)
        return {name: steady(source) for name, source in named.items()}
    return {name: check_batches(source, name) for name, source in named.items()}


def _named(batches: Iterable[Any] | Data) -> dict[str, Iterable[Any]]:
    if not isinstance(batches, Mapping):
        return {"": batches}
    for name, source in batches.items():
        check_type("the name of a data set", name, str)
        if shape_of(source) is not None:
            raise InvalidTypeError(
                "a mapping given as batches must map names to data sets, each a list of batches or a loader, "
                f"got a {type(source).__name__} for {name!r}; if the mapping is a batch, give [batch]"
            )
    return dict(batches)


def _called(name: str) -> str:
    return f"batches of {name}" if name else "batches"


def _refuse_empty(batches: Iterable[Any], name: str) -> None:
    """Raise InvalidValueError for a source that reports a length of 0."""
    if length_hint(batches, 1) == 0:
        raise InvalidValueError(f"{_called(name)} must hold at least one batch, got none")


def check_batches(batches: Iterable[Any], name: str = "") -> list[Any]:
    """The batches as a list; raises InvalidValueError if there is none, LandscapeError if one has no rows."""
    if not isinstance(batches, Iterable):
        raise InvalidTypeError(
            f"{_called(name)} must be iterable, got {batches!r}; give a list of batches or a loader"
        )
    found = list(steady(batches))
    _refuse_empty(found, name)
    for number, batch in enumerate(found, 1):
        _refuse_no_rows(batch_rows(batch), batch_name(number, name))
    return found


def _refuse_no_rows(rows: int, name: str) -> None:
    if rows <= 0:
        raise LandscapeError(f"{name} holds no rows; give batches with data")


def batch_bytes(batch: Any) -> int:
    """The size of all arrays in a batch, in bytes."""
    return sum(int(value.nbytes) for value in inside(batch) if hasattr(type(value), "nbytes"))


def batch_rows(batch: Any) -> int:
    """The number of rows of a batch: the length of the first axis of its first array that has axes.

    If there is no such array, it is the length of the batch's first list of strings; without such a list, 1.
    """
    rows = _rows(batch)
    return 1 if rows is None else rows


def _rows(batch: Any) -> int | None:
    for value in inside(batch):
        if shape := shape_of(value):
            return int(shape[0])
    for value in inside(batch):
        if isinstance(value, tuple | list) and value and all(isinstance(v, str | bytes) for v in value):
            return len(value)
    return None


def warn_unweighted(batches: Iterable[Any] | Data) -> None:
    """Warn if there are several batches and their rows cannot be counted."""
    for name, source in _named(batches).items():
        if length_hint(source, 2) > 1 and _rows(next(iter(steady(source)), None)) is None:
            _log.warning(
                "%s hold no array whose rows could be counted: each batch counts the same in the loss; "
                "give batches of equal size, or batches with an array that has a row for each sample",
                _called(name),
            )


def mindspore_batches(batches: Sequence[Any], num_samples: int) -> list[Any]:
    """The batches that MindSpore would use: the first `num_samples // batch size`."""
    count = num_samples // max(1, batch_rows(batches[0]))
    if count < 1:
        raise InvalidValueError(
            f"collect_landscape['num_samples'] must be at least the batch size {batch_rows(batches[0])}, got "
            f"{num_samples}; give smaller batches or more samples"
        )
    return list(batches[:count])


def batch_facts(batch: Any, mode: str, name: str = "a batch") -> BatchFacts:
    """The weight of a batch and its number of rows; raises LandscapeError for a batch without rows."""
    rows = batch_rows(batch)
    _refuse_no_rows(rows, name)
    return BatchFacts(weight=rows if mode == "standard" else 1.0, rows=rows)

"""Digests: what a collector sends the aggregator for each batch, to merge while the ranks train."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from distsummary.format.encode import finish_value
from distsummary.format.records import LINEAGE_PLUGINS, TENSORBOARD_PLUGINS, Batch, Scalars, Value, is_part
from distsummary.format.scalar_rows import row_struct


class BulkName(NamedTuple):
    """A value that is no scalar, or a part of one; a digest only names it, its data are in the rank's files.

    `is_shard`: whether it is a part, see `records.is_part`.
    """

    step: int
    plugin: str
    tag: str
    is_shard: bool
    wall_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What the events `first_seq` to `last_seq` of one rank hold; small, and can be pickled.

    `scalars` are in recording order, with numbers as float64; the files hold them rounded to float32. `bulk`
    names everything else, in recording order, except for lineage and what a merge makes again. `file` is the
    name of the rank's event file that was written last, in MindSpore's dialect if the rank has such files,
    and `end` its length (bytes) after these events; a digest without them is as true, but its bulk values
    have to be searched for.
    """

    role: str
    rank: int
    attempt: int
    run_id: str
    first_seq: int
    last_seq: int
    scalars: tuple[Scalars, ...]
    bulk: tuple[BulkName, ...]
    file: str = ""
    end: int = 0


def digest_of(batch: Batch, role: str, file: str = "", end: int = 0) -> Digest:
    """The digest of a batch; packed scalars are referenced, not copied.

    A scalar that is not a number is left out, as it is from the files. A bulk value is named even if the
    files do not have it, because its data were refused or the disk was nearly full.
    """
    scalars: list[Scalars] = []
    bulk: list[BulkName] = []
    for item in batch.events:
        if isinstance(item, Scalars):
            scalars.append(item)
            continue
        tags, numbers = [], []
        for value in item.values:
            if value.plugin in LINEAGE_PLUGINS or value.plugin in TENSORBOARD_PLUGINS:
                continue
            if value.plugin != "scalar" or value.shard is not None:
                bulk.append(BulkName(item.step, value.plugin, value.tag, is_part(value), item.wall_time))
            elif (number := _number(value)) is not None:
                tags.append(value.tag)
                numbers.append(number)
        if tags:
            row = row_struct(len(tags)).pack(item.wall_time, item.step, *numbers)
            scalars.append(Scalars(tuple(tags), row))
    return Digest(
        role=role,
        rank=batch.rank,
        attempt=batch.attempt,
        run_id=batch.run_id,
        first_seq=batch.first_seq,
        last_seq=batch.last_seq,
        scalars=tuple(scalars),
        bulk=tuple(bulk),
        file=file,
        end=end,
    )


def joined_digests(digests: Iterable[Digest]) -> list[Digest]:
    """The digests of one rank, in order, with those joined that follow each other in one file."""
    found: list[list[Digest]] = []
    for digest in digests:
        last = found[-1][-1] if found else None
        if last is not None and last.file == digest.file and last.last_seq + 1 == digest.first_seq:
            found[-1].append(digest)
        else:
            found.append([digest])
    return [
        replace(
            parts[-1],
            first_seq=parts[0].first_seq,
            scalars=_joined_scalars(scalars for part in parts for scalars in part.scalars),
            bulk=tuple(name for part in parts for name in part.bulk),
        )
        for parts in found
    ]


def _joined_scalars(scalars: Iterable[Scalars]) -> tuple[Scalars, ...]:
    """The same rows, with neighbours of the same tags in one object."""
    return tuple(
        Scalars(tags, b"".join(rows for _, rows in neighbours))
        for tags, neighbours in groupby(scalars, key=itemgetter(0))
    )


def _number(value: Value) -> float | None:
    """The number of a scalar; None if the files refuse it."""
    if type(value.data) is float:
        return value.data
    try:
        return float(finish_value(value).data)
    except Exception:  # another library's array may raise anything
        return None

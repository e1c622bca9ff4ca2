"""Finds the table of norms that are read from the middle of a file, where it was written earlier."""

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from distsummary.errors import DamagedFileError
from distsummary.events.segments import dialect_of, segments
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.frames import read_frames
from distsummary.format.norms import ParameterTable, UnnamedNorms, known_table
from distsummary.format.records import TENSORBOARD, Event

_MAX_MISSING = 1024
_HAS_TABLE = b"\x12"  # the key of the field after the digest, if it is the table
_missing: "OrderedDict[tuple[Path, bytes], None]" = OrderedDict()  # searched in vain, once in a process


def named(event: Event, file: Path) -> Event:
    """The event with the names of its norms, from its own file or an older one of the directory.

    Norms remain UnnamedNorms if no file has their table.
    """
    values = event.values
    for place, value in enumerate(values):
        if isinstance(value.data, UnnamedNorms) and (table := _found(file, value.data.digest)) is not None:
            with suppress(DamagedFileError):  # a table of another length names nothing
                values[place] = value._replace(data=value.data.named(table))
    return event


def _found(file: Path, digest: bytes) -> ParameterTable | None:
    table = known_table(digest)
    if table is not None or (file, digest) in _missing:
        return table
    dialect = dialect_of(file)
    decode = tensorboard_format.decode_event if dialect == TENSORBOARD else mindspore_format.decode_event
    try:
        older = segments(file.parent, dialect)
        files = [file, *reversed(older[: older.index(file) if file in older else 0])]
        for candidate in files:
            for frame in read_frames(candidate, resync=True):
                if digest + _HAS_TABLE not in frame.payload or frame.damage is not None:
                    continue
                with suppress(DamagedFileError):
                    decode(frame.payload)  # remembers the table
                if (table := known_table(digest)) is not None:
                    return table
    except OSError:
        return None  # removed meanwhile, or not to be read: whoever reads the events reports it
    _missing[file, digest] = None
    if len(_missing) > _MAX_MISSING:
        _missing.popitem(last=False)
    return None

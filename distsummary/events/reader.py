"""Reads events and lineage (what a model was made from) from one event file or all files of a directory."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BytesIO
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.base.checks import check_choice, check_int
from distsummary.base.guard import guarded_log
from distsummary.errors import DamagedFileError, MissingFileError
from distsummary.events.deduplicate import Seen
from distsummary.events.scalar_columns import ScalarColumns, read_pieces
from distsummary.events.segments import dialect_of, lineage_files, segments
from distsummary.format import mindspore_format, tensorboard_format, wire
from distsummary.format.frames import Frame, read_frames
from distsummary.format.lineage import Lineage, decode_lineage_event, updated_lineage
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, EventIds, Value
from distsummary.format.scalar_decoder import decode_scalars
from distsummary.format.wire import Descriptor, refuse_bad_text, refuse_bombs

MODES = ("strict", "skip", "tail")
MAX_DAMAGE = 1000  # damaged places of one file that are listed one by one
_MAX_LOGGED = 10  # damaged places of one file that are logged one by one


class _Decoder(NamedTuple):
    decode: Callable[[bytes], tuple[EventIds, Event] | None]
    message: Descriptor


_DECODERS = {
    MINDSPORE: _Decoder(mindspore_format.decode_event, summary_pb2.Event.DESCRIPTOR),
    "lineage": _Decoder(decode_lineage_event, lineage_pb2.LineageEvent.DESCRIPTOR),
    TENSORBOARD: _Decoder(tensorboard_format.decode_event, tensorboard_pb2.Event.DESCRIPTOR),
}

_logger = guarded_log(__name__)


class ReadEvent(NamedTuple):
    """An event of a file; `run_id` is empty and `attempt` and `seq` are 0 if another program wrote the event.

    `values` hold decoded data: float, array in its source dtype, Histogram, Image, Landscape,
    ParameterNorms, the bytes of a graph, a lineage message.
    `wall_time`: seconds since the epoch. `offset`, `end`: the bytes at which the event's frame begins and
    ends in the file.
    """

    run_id: str
    attempt: int
    seq: int
    step: int
    wall_time: float
    values: list[Value]
    file: Path
    offset: int
    end: int


class ReadValue(NamedTuple):
    """One value of an event; `value` is its data, as in `ReadEvent`."""

    attempt: int
    seq: int
    step: int
    wall_time: float
    tag: str
    value: Any  # float, array, Histogram, Image, Landscape, ParameterNorms, bytes or a lineage message


# These take half the time of a NamedTuple's own constructor.
_new_value = partial(tuple.__new__, Value)
_new_event = partial(tuple.__new__, ReadEvent)
_new_read_value = partial(tuple.__new__, ReadValue)
Piece: TypeAlias = ScalarColumns | ReadEvent


class Damage(NamedTuple):
    """A damaged place of a file that a reader skipped, and the reason."""

    file: Path
    offset: int
    reason: str


def read_file(
    path: str | os.PathLike[str],
    mode: str = "strict",
    *,
    start: int = 0,
    skipped: list[Damage] | None = None,
) -> Iterator[ReadEvent]:
    """The events of one file, in the file's order; records without values (versions, sessions) are left out.

    An incomplete last frame does not count as damage: the file may be growing.

    Args:
        path: the file; its name determines the dialect, see `segments.dialect_of`.
        mode: "strict" raises at damage. "skip" continues at the next intact frame, wherever it begins. "tail"
            does the same, but reports damage only when something intact follows it, as `contents.scan` needs.
        start: the byte to begin at: 0, or the `end` of an event that was read before.
        skipped: receives the damage that was skipped, at most MAX_DAMAGE places; None logs it.

    Raises:
        DamagedFileError: damage, with the file and the offset. MissingFileError: there is no such file.
    """
    file = Path(path)
    pieces = read_pieces_of(file, mode, start=start, skipped=skipped)
    return chain.from_iterable(events_of(piece, file) for piece in pieces)


def read_pieces_of(
    path: Path,
    mode: str = "strict",
    *,
    start: int = 0,
    skipped: list[Damage] | None = None,
    bulk: bool = True,
) -> Iterator[Piece]:
    """The same as `read_file`, but a long run of scalar events comes as one ScalarColumns.

    `bulk`: False: the data of other values than scalars, graphs and lineage may be None, which saves time.
    """
    check_choice("mode", mode, MODES)
    start = check_int("start", start, low=0)
    return _read_file(path, start, _Skipping(path, mode, skipped), bulk)


def _read_file(path: Path, start: int, skipping: "_Skipping", bulk: bool = True) -> Iterator[Piece]:
    dialect = dialect_of(path)
    resync = skipping.mode != "strict"
    try:
        for piece in read_pieces(path, dialect, start=start, resync=resync):
            if isinstance(piece, ScalarColumns):
                skipping.report()
                yield piece
                continue
            if piece.damage is None and (fields := decode_scalars(piece.payload, dialect)) is not None:
                skipping.report()
                yield _new_event((*fields, path, piece.offset, piece.end))
                continue
            try:
                decoded = _decode(piece, dialect, path, bulk)
            except DamagedFileError as error:
                skipping.skip(piece.offset, str(error))
                continue
            skipping.report()
            if decoded is not None:
                ids, event = decoded
                yield ReadEvent(*ids, *event, path, piece.offset, piece.end)
        skipping.end()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no event file {path}; it was removed or never written") from error


def events_of(piece: Piece, path: Path) -> Iterable[ReadEvent]:
    """The events of a piece of the file `path`, which it names in each."""
    if isinstance(piece, ReadEvent):
        return (piece,)
    numbers = piece.numbers.tolist()
    tags = piece.tag_texts()
    columns = zip(repeat("scalar"), tags, numbers, repeat(None), repeat(""), strict=False)
    values = map(_new_value, columns)
    # All events take their values from the one iterator `values`, each as many as it has.
    fields = (
        repeat(piece.run_id),
        repeat(piece.attempt),
        *(column.tolist() for column in (piece.seqs, piece.steps, piece.wall_times)),
        map(list, map(islice, repeat(values), piece.counts.tolist())),
        repeat(path),
        *(column.tolist() for column in (piece.offsets, piece.ends)),
    )
    return map(_new_event, zip(*fields, strict=False))


def values_of(piece: Piece) -> Iterable[ReadValue]:
    """The values of one event, or of all events of a ScalarColumns, one by one."""
    if isinstance(piece, ReadEvent):
        ids = (piece.attempt, piece.seq, piece.step, piece.wall_time)
        return [ReadValue(*ids, value.tag, value.data) for value in piece.values]
    events = (column.repeat(piece.counts).tolist() for column in (piece.seqs, piece.steps, piece.wall_times))
    fields = (repeat(piece.attempt), *events, piece.tag_texts(), piece.numbers.tolist())
    return map(_new_read_value, zip(*fields, strict=False))


def decode_frame(frame: Frame, dialect: str, file: Path) -> tuple[EventIds, Event] | None:
    """The event in a frame of `file`, which is in `dialect`; None for a record without values.

    Raises DamagedFileError.
    """
    if frame.damage is None and (fields := decode_scalars(frame.payload, dialect)) is not None:
        return EventIds(*fields[:3]), Event(*fields[3:])
    return _decode(frame, dialect, file)


def values_in(file: Path, start: int, end: int, step: int) -> list[Value]:
    """The values of the event of a step whose frame is the bytes `start` to `end` of a file; none if another
    event, or no frame, is there: the file has been replaced.

    Raises DamagedFileError or OSError.
    """
    with open(file, "rb") as opened:
        opened.seek(start)
        frame = next(read_frames(BytesIO(opened.read(end - start))), None)
    decoded = None if frame is None else decode_frame(frame, dialect_of(file), file)
    is_same = frame is not None and frame.end == end - start and decoded and decoded[1].step == step
    return decoded[1].values if decoded and is_same else []


def _decode(frame: Frame, dialect: str, file: Path, bulk: bool = True) -> tuple[EventIds, Event] | None:
    if frame.damage is not None:
        raise DamagedFileError(frame.damage)
    decoder = _DECODERS[dialect]
    # Before it is parsed: the parser may need many times the memory of the payload.
    refuse_bombs(frame.payload, decoder.message)
    try:
        # Whatever numbers the file holds, decoding does not warn.
        with np.errstate(all="ignore"):
            if bulk or dialect != MINDSPORE:
                decoded = decoder.decode(frame.payload)
            else:
                decoded = mindspore_format.decode_event(frame.payload, bulk=False)
        if decoded is not None:
            refuse_bad_text(decoded[1].values)
        return decoded
    except RecursionError as error:
        raise DamagedFileError("the event is nested too deeply") from error


def newer_version(path: Path) -> str:
    """Which newer format a file is in, by its first record, in words; "" if it is in none."""
    dialect = dialect_of(path)
    known = {MINDSPORE: mindspore_format.VERSION, TENSORBOARD: tensorboard_format.VERSION}.get(dialect)
    first = next(read_frames(path), None)
    # Files of lineage have no version that could be newer.
    if known is None or first is None or first.damage is not None:
        return ""
    try:
        if dialect == TENSORBOARD:
            version = tensorboard_pb2.Event.FromString(first.payload).file_version
        else:
            version = summary_pb2.Event.FromString(first.payload).version
    except DecodeError:
        return ""
    # Protobuf gives bytes that are no UTF-8 as they are.
    if not isinstance(version, str):
        return ""
    (name, _, number), (known_name, _, known_number) = version.rpartition(":"), known.rpartition(":")
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    if name != known_name or not is_number or int(number) <= int(known_number):
        return ""
    return (
        f"the file is of the format {version}, which is newer than {known}; a newer version of distsummary "
        "may read more of it"
    )


class _Skipping:
    """Raises, lists or logs the damage of one file; lists and logs a bounded number of places."""

    def __init__(self, path: Path, mode: str, skipped: list[Damage] | None) -> None:
        self.path, self.mode, self._skipped = path, mode, skipped
        self._waiting: list[Damage] = []
        self._left = MAX_DAMAGE if skipped is not None else _MAX_LOGGED
        self._more = 0
        self._last_offset = 0

    def skip(self, offset: int, reason: str) -> None:
        damage = Damage(self.path, offset, reason)
        if self.mode == "strict":
            raise DamagedFileError(f"{_described(damage)}; read it with mode='skip' to leave that out")
        self._last_offset = offset
        if not self._left:
            self._more += 1
            return
        self._left -= 1
        self._waiting.append(damage)

    def report(self) -> None:
        """Report the damage so far; called when something intact follows it, or the file ends."""
        for damage in self._waiting:
            if self._skipped is not None:
                self._skipped.append(damage)
            else:
                _logger.warning("%s; left out", _described(damage))
        self._waiting.clear()

    def end(self) -> None:
        if self.mode == "tail":
            # Damage at the end may be a frame that is still being written.
            return
        if self._more:
            self._waiting.append(
                Damage(self.path, self._last_offset, f"{self._more} more places are damaged up to here")
            )
        self.report()


def _described(damage: Damage) -> str:
    return f"{damage.file} is damaged at byte {damage.offset}: {damage.reason}"


def read_directory(
    path: str | os.PathLike[str],
    dialect: str = MINDSPORE,
    mode: str = "strict",
    *,
    skipped: list[Damage] | None = None,
) -> Iterator[ReadEvent]:
    """The events of a directory's files in one dialect, in the order of the stamps (seconds) in the names.

    An event that was written twice, with the same (run id, attempt, seq), is returned once; all events of
    other programs are returned, since these have no seq. Errors and `skipped` are as in `read_file`.
    """
    check_choice("dialect", dialect, DIALECTS)
    check_choice("mode", mode, MODES)
    pieces = read_once(segments(_directory(path), dialect), mode, skipped)
    return chain.from_iterable(events_of(piece, file) for file, piece in pieces)


def read_once(files: list[Path], mode: str, skipped: list[Damage] | None) -> Iterator[tuple[Path, Piece]]:
    """(file, piece) for the events of the files, each event once.

    A long run of scalar events comes as one ScalarColumns.
    """
    seen = Seen()
    for file in files:
        for piece in _read_file(file, 0, _Skipping(file, mode, skipped)):
            if isinstance(piece, ScalarColumns):
                is_new = seen.add_all(piece.run_id, piece.attempt, piece.seqs)
                yield file, piece if is_new.all() else piece.chosen(is_new)
            elif seen.add(piece.run_id, piece.attempt, piece.seq):
                yield file, piece


def read_values(
    path: str | os.PathLike[str],
    dialect: str | None = None,
    mode: str = "strict",
    *,
    skipped: list[Damage] | None = None,
) -> Iterator[ReadValue]:
    """The values of a file, or of a directory's files in the order of their stamps, one by one.

    An event that was written twice is returned once, as in `read_directory`.

    Args:
        path: an event file, whose name says the dialect, or a directory.
        dialect: the dialect of a directory's files; None reads MindSpore's files if there are any,
            otherwise TensorBoard's.
        mode, skipped: as in `read_file`, which raises the same errors.
    """
    files = files_of(path, dialect, mode)
    return chain.from_iterable(values_of(piece) for _, piece in read_once(files, mode, skipped))


def files_of(path: str | os.PathLike[str], dialect: str | None, mode: str) -> list[Path]:
    """The files that `read_values` reads; raises InvalidValueError for an unknown dialect or mode."""
    check_choice("mode", mode, MODES)
    if dialect is not None:
        check_choice("dialect", dialect, DIALECTS)
    if not os.path.isdir(path):
        return [Path(path)]
    dialects = DIALECTS if dialect is None else (dialect,)
    return next((found for name in dialects if (found := segments(Path(path), name))), [])


def read_last_seq(directory: str | os.PathLike[str], dialect: str, run_id: str, attempt: int) -> int:
    """The highest seq of an attempt in the files of one dialect, 0 if there is none; damage is skipped."""
    for segment in reversed(segments(_directory(directory), dialect)):
        last = 0
        for piece in read_pieces(segment, dialect, resync=True):
            if isinstance(piece, Frame) and piece.damage is not None:
                continue
            try:
                if isinstance(piece, ScalarColumns):
                    ids = EventIds(piece.run_id, piece.attempt, int(piece.seqs.max()))
                else:
                    ids = wire.read_identity(piece.payload)
            except ValueError:
                break
            if ids[:2] != (run_id, attempt):
                # The first frame, the version record, already shows that the file is another attempt's.
                break
            last = max(last, ids.seq)
        # Newer files have higher seqs, so older ones need not be read.
        if last:
            return last
    return 0


def read_last_step(directory: str | os.PathLike[str]) -> int:
    """The highest step in the newest event file that has any step, 0 if none has; damage is skipped."""
    for dialect in DIALECTS:
        for segment in reversed(segments(_directory(directory), dialect)):
            pieces = read_once([segment], "skip", [])
            steps = (int(p.steps.max()) if isinstance(p, ScalarColumns) else p.step for _, p in pieces)
            if (last := max(steps, default=None)) is not None:
                return last
    return 0


def read_lineage(
    path: str | os.PathLike[str],
    mode: str = "skip",
    *,
    attempt: int = 0,
    skipped: list[Damage] | None = None,
) -> Lineage:
    """The lineage in a file, or in all lineage files of a directory; an empty Lineage if there is none.

    As in MindInsight, the last event of each kind counts and custom information is merged; a later file with
    the lineage of a training or a dataset graph replaces all earlier lineage. What attempts before `attempt`
    wrote is left out, but not what other programs wrote. Errors and `skipped` are as in `read_file`.
    """
    files = [Path(path)] if not os.path.isdir(path) else lineage_files(Path(path))
    lineage = Lineage()
    for file in files:
        events = read_file(file, mode, skipped=skipped)
        counting = (event for event in events if event.attempt >= attempt or not event.run_id)
        values = [value for event in counting for value in event.values]
        if any(value.plugin in ("train_lineage", "dataset_graph") for value in values):
            lineage = Lineage()
        for value in values:
            lineage = updated_lineage(lineage, value)
    return lineage


def _directory(path: str | os.PathLike[str]) -> Path:
    if not os.path.isdir(path):
        raise MissingFileError(
            f"there is no directory {os.fspath(path)}; name the directory of a rank or run"
        )
    return Path(path)

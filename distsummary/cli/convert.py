"""Converts event files from one dialect to the other: MindSpore's to TensorBoard's, or the reverse."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from distsummary.base.checks import check_choice
from distsummary.base.publish import ensure_directory, replacing
from distsummary.base.terminal import doing
from distsummary.errors import MissingFileError, RunDirError
from distsummary.events.files import Files
from distsummary.events.reader import Damage, ReadEvent, read_directory
from distsummary.events.segment import is_live
from distsummary.events.segments import SegmentName, segments, source_of, stamp_of
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.mindspore_format import MAX_BUCKETS
from distsummary.format.records import (
    DIALECTS,
    MINDSPORE,
    SUMMARY_PLUGINS,
    TENSORBOARD,
    TENSORBOARD_PLUGINS,
    Event,
    EventIds,
    Histogram,
    Value,
)
from distsummary.rundir.run_dir import RunDir

_FORMATS = {MINDSPORE: mindspore_format, TENSORBOARD: tensorboard_format}


@dataclass(slots=True, kw_only=True)
class Converted:
    """The result of converting one directory; `file` is None if none of its values could be converted.

    `left_out` counts, by plugin (kind of value), the values that the target dialect cannot hold. `refused`
    counts the values that could not be encoded.
    """

    directory: Path
    file: Path | None = None
    events: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    """What a conversion did; `already`: directories skipped because they have files in the dialect `to`."""

    to: str
    converted: tuple[Converted, ...]
    already: tuple[Path, ...]

    def as_lines(self) -> list[str]:
        """The report as lines for a terminal."""
        lines = []
        for one in self.converted:
            what = f"{one.events} events" if one.file is None else f"{one.events} events in {one.file.name}"
            lost = [f"{count} {plugin}" for plugin, count in sorted(one.left_out.items())]
            lost += [f"{one.refused} refused"] if one.refused else []
            lost += [f"{len(one.damage)} damaged places"] if one.damage else []
            lines.append(f"{one.directory}: {what}" + (f"; left out: {', '.join(lost)}" if lost else ""))
        return lines + [f"{path}: has {self.to} files already" for path in self.already]


def convert(
    path: str | os.PathLike[str],
    *,
    to: str = TENSORBOARD,
    out: str | os.PathLike[str] | None = None,
    files: Files | None = None,
) -> ConvertReport:
    """Convert the event files of a directory, and of its direct children, to the dialect `to`.

    Each directory gets one file, which appears complete or not at all. Times, steps and the identities of the
    events are kept. TensorBoard's dialect holds scalars, histograms, images, texts, graphs and norms; other
    values are left out and counted. Damaged places are skipped and listed. MindInsight drops histograms of
    more than 90 buckets: for MindSpore's dialect, adjacent buckets of such histograms are merged. A directory
    whose output directory already has files of the target dialect is skipped, so nothing is duplicated.

    Args:
        path: a run dir or a rank's directory.
        to: the dialect to write, "tensorboard" or "mindspore".
        out: the directory to write to; it gets the same children as `path`. None: next to the source files.
        files: the file operations to use; None means the real ones. Tests pass a test double.

    Raises:
        MissingFileError: there are no files of the source dialect. RunDirError: all directories have been
            converted already, a live writer is using one of them, or the output cannot be written.
    """
    check_choice("to", to, DIALECTS)
    base = Path(path)
    source = MINDSPORE if to == TENSORBOARD else TENSORBOARD
    if not base.is_dir():
        raise MissingFileError(f"there is no directory {base}; name a run dir or a rank's directory")
    children = sorted(p for p in base.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != ".")
    directories = [directory for directory in (base, *children) if segments(directory, source)]
    if not directories:
        raise MissingFileError(
            f"there are no {source} event files in {base}; name the directory that has them"
        )
    target_base = base if out is None else Path(out)
    ensure_directory(target_base)
    # Two conversions at once would each find no files of the other.
    with RunDir(target_base).locked("convert"):
        targets = {directory: target_base / directory.relative_to(base) for directory in directories}
        already = tuple(
            directory for directory, target in targets.items() if target.is_dir() and segments(target, to)
        )
        for directory in already:
            del targets[directory]
        if not targets:
            raise RunDirError(
                f"{base} has {to} event files already, and a second copy would double every point; "
                "move those files away to convert the directory again"
            )
        for directory in targets:
            live = [file for file in segments(directory, source) if is_live(file)]
            if live:
                raise RunDirError(f"{live[0]} is being written; convert it when its writer has ended")
        done: list[Converted] = []
        for directory, target in targets.items():
            doing("converting directory", len(done) + 1, len(targets))
            done.append(_convert(directory, target, source, to, files or Files()))
    return ConvertReport(to=to, converted=tuple(done), already=already)


def _convert(directory: Path, target: Path, source: str, to: str, files: Files) -> Converted:
    done = Converted(directory=directory)
    payloads = _payloads(read_directory(directory, source, "skip", skipped=done.damage), to, done)
    first = next(payloads, None)
    if first is not None:
        # The name of the new file takes its stamp (a time) and its writer from the oldest source file.
        oldest = segments(directory, source)[0].name
        writer = re.sub(r"[^0-9A-Za-z-]", "-", source_of(oldest) or "0")
        name = SegmentName(source=writer, host=files.host(), pid=files.pid())
        ensure_directory(target)
        done.file = target / name.file_name(to, stamp_of(oldest) or 0)
        with replacing(done.file) as temporary, open(temporary, "xb") as file:
            for payload in chain((first,), payloads):
                file.write(frame(payload))
    return done


def _payloads(events: Iterable[ReadEvent], to: str, done: Converted) -> Iterator[bytes]:
    """Yield a version record, then the events in the dialect `to`; nothing if it can hold no value.

    `done` counts them, and the values that the dialect cannot hold.
    """
    attempts: dict[str, int] = {}  # run id -> the highest attempt so far
    for event in events:
        kept: list[Value] = []
        for value in event.values:
            if to == MINDSPORE and value.plugin not in TENSORBOARD_PLUGINS:
                is_wide = value.plugin == "histogram" and value.data.left.size > MAX_BUCKETS
                kept.append(value._replace(data=widened(value.data, MAX_BUCKETS)) if is_wide else value)
            elif value.plugin in SUMMARY_PLUGINS and tensorboard_format.value_parts(value) is not None:
                kept.append(value)
            else:
                done.left_out[value.plugin] += 1
        if not kept:
            continue
        ids = EventIds(event.run_id, event.attempt, event.seq) if event.run_id else None
        encoded, refused = encode_event(Event(event.step, event.wall_time, kept), ids, (to,))
        done.refused += len(refused)
        payload = encoded[to]
        if payload is None or len(refused) == len(kept):
            continue
        owner = ids and ids._replace(seq=0)
        # The version record has the time of the first event that is kept.
        if not attempts:
            yield _FORMATS[to].encode_version(event.wall_time, owner)
        # This makes TensorBoard forget the steps that a later attempt repeats.
        if event.attempt > attempts.setdefault(event.run_id, event.attempt) and to == TENSORBOARD:
            yield tensorboard_format.encode_session_start(event.step, event.wall_time, owner)
        attempts[event.run_id] = max(attempts[event.run_id], event.attempt)
        done.events += 1
        yield payload


def widened(histogram: Histogram, most: int) -> Histogram:
    """Merge groups of adjacent buckets, so that at most `most` remain; only the last group may be smaller."""
    size = -(-histogram.left.size // most)
    starts = np.arange(0, histogram.left.size, size)
    ends = np.minimum(starts + size, histogram.left.size) - 1
    right = histogram.left[ends] + histogram.width[ends]
    left = histogram.left[starts]
    return replace(histogram, left=left, width=right - left, counts=np.add.reduceat(histogram.counts, starts))

"""Landscapes into a run dir: events for MindInsight, pictures for TensorBoard, and the grids themselves."""

import logging
import secrets
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from distsummary.errors import DamagedFileError, MissingExtraError
from distsummary.events.reader import read_directory
from distsummary.events.records import DIALECTS, MINDSPORE, TENSORBOARD, Batch, Event, Image, Value
from distsummary.events.segment import segments
from distsummary.events.writer import RankWriter
from distsummary.landscape.grid import LossGrid
from distsummary.publish import ensure_directory
from distsummary.run_dir import RunDir

LOSS_TAGS = ("loss", "loss/auto")  # ours, MindSpore's
SHOWN_LOSS_TAG = "loss/auto"  # the only one that MindInsight's landscape page asks for

_log = logging.getLogger(__name__)


def write_landscapes(run_dir: RunDir, grids: Sequence[LossGrid]) -> list[Path]:
    """Write `landscape/` of a run; returns the files made. A landscape replaces an older one of its tag.

    The MindSpore dialect holds the grids and a copy of the run's loss curve, nothing else: MindInsight's page
    wants that scalar in the same job. The TensorBoard dialect holds the pictures.
    """
    directory = run_dir.landscape_dir
    ensure_directory(directory)
    older = [path for dialect in DIALECTS for path in segments(directory, dialect)]
    pictures = _draw_all(grids)
    curve = read_loss_curve(run_dir)
    now = time.time()
    landscapes = [Event(0, now, [Value("landscape", grid.tag, grid.to_record())]) for grid in grids]
    images = [Event(0, now, [Value("image", tag, picture)]) for tag, picture in pictures.items()]
    replaced = {grid.tag for grid in grids}
    _write_events(run_dir, MINDSPORE, [*_kept(directory, MINDSPORE, replaced), *landscapes, *curve])
    _write_events(run_dir, TENSORBOARD, [*_kept(directory, TENSORBOARD, replaced), *images])
    for path in older:  # the new ones are complete
        path.unlink(missing_ok=True)
    made = [path for dialect in DIALECTS for path in segments(directory, dialect)]
    for grid in grids:
        made.append(run_dir.landscape_file(grid.tag, ".npz"))
        grid.save(made[-1])
    for tag, picture in pictures.items():
        made.append(run_dir.landscape_file(tag, ".png"))
        made[-1].write_bytes(picture.encoded)
    return made


def _kept(directory: Path, dialect: str, replaced: set[str]) -> list[Event]:
    """The landscapes, or their pictures, that stand there already and that nothing new replaces."""
    kept = {
        value.tag: Event(0, event.wall_time, [value])
        for event in read_directory(directory, dialect, mode="skip")
        for value in event.values
        if value.plugin in ("landscape", "image") and value.tag not in replaced
    }
    return list(kept.values())


def read_loss_curve(run_dir: RunDir) -> list[Event]:
    """The loss of the run by step, as MindInsight's page wants it: the merged one, else the first rank's."""
    for directory in (run_dir.base, *run_dir.rank_dirs().values()):
        try:
            events = list(read_directory(directory, mode="skip"))
        except (OSError, DamagedFileError) as error:
            _log.warning("no loss curve from %s: %s", directory, error)
            continue
        for tag in LOSS_TAGS:
            curve = {  # by step: a later attempt has taken an earlier one's steps again
                event.step: Event(event.step, event.wall_time, [Value("scalar", SHOWN_LOSS_TAG, value.data)])
                for event in events
                for value in event.values
                if value.plugin == "scalar" and value.tag == tag
            }
            if curve:
                return [curve[step] for step in sorted(curve)]
    return []


def _write_events(run_dir: RunDir, dialect: str, events: list[Event]) -> None:
    if not events:
        return
    run_id = str(run_dir.read_manifest()["run_id"]) or secrets.token_hex(8)  # MindSpore's runs have none
    writer = RankWriter(run_dir.landscape_dir, run_id=run_id, dialects=(dialect,))
    try:
        first = writer.last_seq + 1  # those of an older landscape are still there
        writer.write(Batch(run_id=run_id, attempt=0, rank=0, first_seq=first, events=events))
        writer.flush()
    finally:
        writer.close()


def _draw_all(grids: Sequence[LossGrid]) -> dict[str, Image]:
    """Pictures by tag; none, and a line in the log, without matplotlib."""
    from distsummary.landscape.draw import draw

    try:
        return {grid.tag: _image(draw(grid)) for grid in grids}
    except MissingExtraError as error:
        _log.warning("no pictures: %s", error)
        return {}


def _image(png: bytes) -> Image:
    width, height = struct.unpack(
        ">II", png[16:24]
    )  # the first chunk of a PNG: length, "IHDR", width, height
    return Image(height=height, width=width, encoded=png)

"""Writes landscapes to a run dir: events for MindInsight, pictures for TensorBoard, and the grids."""

import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.base.publish import ensure_directory, publish
from distsummary.base.terminal import doing
from distsummary.errors import (
    DamagedFileError,
    InvalidValueError,
    MissingExtraError,
    MissingFileError,
    RunDirError,
)
from distsummary.events.files import Files
from distsummary.events.reader import read_directory, read_file, read_values
from distsummary.events.segments import (
    LANDSCAPE,
    SegmentName,
    all_event_files,
    landscape_files,
    next_stamp,
    segments,
    stamp_of,
)
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.mindspore_format import encode_version
from distsummary.format.own_tags import LOSS_TAG
from distsummary.format.records import MINDSPORE, TENSORBOARD, Batch, Event, Image, Landscape, Value
from distsummary.landscapes.directions.prepare import readable
from distsummary.landscapes.output.describe import end_step
from distsummary.landscapes.output.draw import draw
from distsummary.landscapes.output.grid import finite_bounds, make_finite
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run

LOSS_TAGS = ("loss", LOSS_TAG)  # distsummary's tag and MindSpore's
# A picture in TensorBoard is a card about 400 pixels wide: small in inches, so that the fonts are large.
CARDS: dict[str, dict[str, Any]] = {  # 640 pixels wide
    "contour": {"size": (4.0, 3.8), "dpi": 160},
    "surface": {"size": (5.0, 4.7), "dpi": 128},
    "curve": {"size": (4.0, 3.8), "dpi": 160},
}

_log = guarded_log(__name__)


def write_landscapes(
    run_dir: RunDir,
    grids: Sequence[LossGrid],
    *,
    loss_of: RunDir | None = None,
    journal: Path | None = None,
) -> list[Path]:
    """Write grids to a run, replacing grids with the same tags; returns the files written.

    A grid without computed points is not written, and a partial grid does not replace a complete one with the
    same tag; both cases are logged.

    The grids, their pictures and TensorBoard's events, which show the pictures, are in `landscape/`. The
    events for MindInsight are in the run dir itself, as it shows a landscape with the loss curve, the network
    and the optimizer of the same directory: the planes (its format has no lines) and, unless the run has its
    own `loss/auto`, a copy of a run's loss curve. The grids are saved first, so that they are not lost if a
    later step fails.

    Args:
        run_dir: the run to write to.
        grids: the grids, with different tags because viewers show one landscape for each tag. If a line,
            triangle or joint plane of other runs has the tag already, the names of the grid's runs are added
            to its tag.
        loss_of: the run whose loss curve to copy, `run_dir` itself by default.
        journal: the file with the computed points, for log messages.

    Raises InvalidValueError for equal tags.
    """
    tags = [grid.tag for grid in grids]
    if twice := sorted({tag for tag in tags if tags.count(tag) > 1}):
        raise InvalidValueError(
            f"grids must have different tags, got {', '.join(twice)} twice; give them different labels"
        )
    ensure_directory(run_dir.landscape_dir)
    with run_dir.locked("landscape"):
        worthy: list[LossGrid] = []
        for grid in grids:
            grid = beside_other_runs(run_dir, grid)
            path = run_dir.landscape_file(grid.tag, ".npz")
            older = saved(path) if grid.is_partial else None
            if not grid.computed.any():
                _log.warning("%s is not written: no point of it was computed", path)
            elif older is not None and not older.is_partial:
                kept_in = f"saved in {journal}; the same call resumes from there" if journal else "not saved"
                _log.warning(
                    "%s holds a complete landscape, so it is not replaced by one with %d of %d points; these "
                    "are %s",
                    path,
                    grid.computed.sum(),
                    grid.computed.size,
                    kept_in,
                )
            else:
                worthy.append(grid)
        if not worthy:
            return []
        made = [run_dir.landscape_file(grid.tag, ".npz") for grid in worthy]
        for path, grid in zip(made, worthy, strict=True):
            grid.save(path)

        files: dict[str, bytes] = {}  # by tag
        cards: list[Event] = []
        now = time.time()
        try:
            for grid in worthy:
                doing(f"drawing the pictures of {grid.tag}")
                for tag, kind in picture_tags(grid).items():
                    card = draw(grid, kind, **CARDS[kind])
                    # A PNG has its signature, a length and "IHDR" before its width and height.
                    width, height = struct.unpack(">II", card[16:24])
                    image = Image(height=height, width=width, encoded=card)
                    cards.append(Event(end_step(grid), now, [Value("image", tag, image)]))
                    files[tag] = draw(grid, kind)
        except MissingExtraError as error:
            _log.warning("no pictures are drawn: %s", error)
            files, cards = {}, []
        replaced = {tag for grid in worthy for tag in (grid.tag, *picture_tags(grid))}
        for tag in sorted(replaced):
            path = run_dir.landscape_file(tag, ".png")
            if tag in files:
                publish(path, files[tag])
                made.append(path)
            else:
                # The picture of an older grid does not fit the new one.
                path.unlink(missing_ok=True)

        # Write new files in both dialects; the older ones are removed once the new ones are complete.
        directory = run_dir.landscape_dir
        mindspore = landscape_files(run_dir.base)
        tensorboard = segments(directory, TENSORBOARD)
        planes = [grid for grid in worthy if min(grid.z.shape) > 1]
        landscapes = _kept(mindspore, replaced)
        landscapes += [
            Event(0, now, [Value("landscape", grid.tag, landscape_record(grid))]) for grid in planes
        ]
        if landscapes:
            curve = [] if shows_loss(run_dir.base) else read_loss_curve(loss_of or run_dir)
            _publish_for_mindinsight(run_dir, [*landscapes, *curve])
        _write_pictures(run_dir, [*_kept(tensorboard, replaced), *cards])
        for path in (*mindspore, *tensorboard):
            path.unlink(missing_ok=True)
        return [*landscape_files(run_dir.base), *segments(directory, TENSORBOARD), *made]


def saved(path: Path) -> LossGrid | None:
    """The grid in a file; None if there is none, or a damaged one, which may be replaced."""
    try:
        return LossGrid.load(path)
    except (MissingFileError, DamagedFileError):
        return None


def beside_other_runs(run_dir: RunDir, grid: LossGrid) -> LossGrid:
    """The grid, with its runs' names added to its tag if a landscape of other runs already has that tag."""
    if grid.kind not in ("joint", "triangle", "line"):
        return grid
    older = saved(run_dir.landscape_file(grid.tag, ".npz"))
    if older is None or older.runs == grid.runs:
        return grid
    own = f"of_{readable(grid.runs)}" if grid.runs else "of_one"
    return replace(grid, label="_".join(word for word in (grid.label, own) if word))


def landscape_record(grid: LossGrid) -> Landscape:
    """The grid as a record for event files.

    Viewers cannot show NaN and Inf. NaN and +Inf become the largest finite loss of grid and path, -Inf the
    smallest (0 if no loss is finite); all losses are clipped to the range of float32. Only the record of a
    PCA plane has a path; with several runs it is the path of the last run.
    """
    is_path = grid.decomposition == "PCA" and grid.kind in ("", "pca", "joint")
    shown = slice(-grid.run_lengths[-1] if grid.run_lengths else 0, None)
    bounds = finite_bounds(grid.z, grid.path_loss)
    px, py, pz = grid.convergence_point
    return Landscape(
        x=grid.x,
        y=grid.y,
        z=make_finite(grid.z, bounds),
        decomposition=grid.decomposition,
        unit=grid.unit,
        step_per_epoch=grid.step_per_epoch,
        convergence_point=(px, py, float(make_finite(np.array(pz), bounds))),
        intervals=grid.numbers[shown] if is_path else (),
        path_x=grid.path[shown, 0] if is_path else np.empty(0),
        path_y=grid.path[shown, 1] if is_path else np.empty(0),
        path_z=make_finite(grid.path_loss[shown], bounds) if is_path else np.empty(0),
    )


def publish_landscapes(run_dir: RunDir, found: Mapping[str, Landscape]) -> None:
    """Have MindInsight show landscapes, by tag, that were computed elsewhere; older ones of their tags go."""
    with run_dir.locked("landscape"):
        older, now = landscape_files(run_dir.base), time.time()
        new = [Event(0, now, [Value("landscape", tag, one)]) for tag, one in found.items()]
        _publish_for_mindinsight(run_dir, [*_kept(older, {*found}), *new])
        for path in older:
            path.unlink(missing_ok=True)


def _kept(files: Sequence[Path], replaced: set[str]) -> list[Event]:
    """The events in some files that hold landscapes or pictures whose tags are not in `replaced`."""
    kept = {
        value.tag: Event(event.step, event.wall_time, [value])
        for file in files
        for event in read_file(file, mode="skip")
        for value in event.values
        if value.plugin in ("landscape", "image") and value.tag not in replaced
    }
    return list(kept.values())


def shows_loss(directory: Path) -> bool:
    """Whether a training in a directory recorded the loss that MindInsight's landscape page shows."""
    try:
        values = read_values(directory, MINDSPORE, mode="skip")
        return any(value.tag == LOSS_TAG for value in values)
    except (OSError, DamagedFileError) as error:
        _log.warning("the loss curve of %s cannot be read: %s", directory, error)
        return False


def read_loss_curve(run_dir: RunDir) -> list[Event]:
    """The loss curve, with MindInsight's tag, of the merged run or else of the first rank that has one."""
    for directory in (run_dir.base, *run_dir.rank_dirs().values()):
        try:
            events = list(read_directory(directory, mode="skip"))
        except (OSError, DamagedFileError) as error:
            _log.warning("the loss curve of %s cannot be read: %s", directory, error)
            continue
        for tag in LOSS_TAGS:
            # The last event of each step counts: a later attempt repeats steps of an earlier one.
            curve = {
                event.step: Event(event.step, event.wall_time, [Value("scalar", LOSS_TAG, value.data)])
                for event in events
                for value in event.values
                if value.plugin == "scalar" and value.tag == tag
            }
            if curve:
                return [curve[step] for step in sorted(curve)]
    return []


def _publish_for_mindinsight(run_dir: RunDir, events: Sequence[Event]) -> None:
    """Write events to a new file in the run dir, where a training may be recording.

    The events have no run id, attempt and seq, as those of the training identify its events. MindInsight
    follows only the newest file of a directory: while a training runs, the file is the oldest one.
    """
    files = Files()
    payloads = [encode_version(files.now())]
    for event in events:
        encoded, refused = encode_event(event, None, (MINDSPORE,))
        payloads += [payload for payload in encoded.values() if payload is not None]
        for refusal in refused:
            _log.warning("MindInsight does not get %s: %s", refusal.tag, refusal.reason)
    stamp = next_stamp(run_dir.base, files.now())
    if _is_recorded(run_dir):
        known = (stamp_of(path.name) for path in all_event_files(run_dir.base))
        stamp = min((one for one in known if one is not None), default=stamp + 1) - 1
        _log.info("the run is still training: MindInsight shows the landscapes when it is started again")
    name = SegmentName(source=LANDSCAPE, host=files.host(), pid=files.pid())
    data = b"".join(frame(payload) for payload in payloads)
    publish(run_dir.base / name.file_name(MINDSPORE, stamp), data)


def _is_recorded(run_dir: RunDir) -> bool:
    """Whether a training of the run runs now, as far as its files show."""
    try:
        return read_run(run_dir).state == "running"
    except (RunDirError, DamagedFileError):
        return False


def _write_pictures(run_dir: RunDir, events: list[Event]) -> None:
    if not events:
        return
    # Runs of MindSpore have no id.
    run_id = str(run_dir.read_manifest()["run_id"]) or secrets.token_hex(8)
    spec = WriterSpec(directory=run_dir.landscape_dir, run_id=run_id, formats=(TENSORBOARD,))
    writer = RankWriter(spec)
    try:
        # Segments of an older landscape are still there.
        first = writer.last_seq + 1
        writer.write(Batch(run_id=run_id, attempt=0, rank=0, first_seq=first, events=events))
        writer.flush()
    finally:
        writer.close()


def picture_tags(grid: LossGrid) -> dict[str, str]:
    """A dict from the tag of each picture of a grid to the picture's kind."""
    tags = {grid.tag: "contour"}
    if min(grid.z.shape) > 1:
        tags[f"{grid.tag}/surface"] = "surface"
        if len(grid.path) > 1:
            tags[f"{grid.tag}/curve"] = "curve"
    return tags

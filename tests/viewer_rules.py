"""What MindInsight and TensorBoard would not show of event files, by their rules for the order of events."""

from collections.abc import Iterator
from pathlib import Path

from distsummary.events.deduplicate import Seen
from distsummary.events.reader import read_file
from distsummary.events.segments import segments
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS, TENSORBOARD


def lost_points(base: Path) -> list[str]:
    """The points of a run or a directory that a viewer would erase, hide or double: our writers leave none.

    Both viewers erase a tag's older points where a newer file has a lower step; TensorBoard also does so
    within a file. A newer point at an equal step takes the place of the older one, which only a later
    evaluation may want. A new attempt may begin again at lower steps. MindInsight stops at an event of no
    bytes.
    """
    places = [base, *sorted(path for path in base.rglob("*") if path.is_dir())]
    return [line for place in places for dialect in DIALECTS for line in _lost(place, dialect)]


def _lost(directory: Path, dialect: str) -> Iterator[str]:
    reached: dict[tuple[str, str], tuple[int, int, Path]] = {}  # plugin and tag -> attempt, step, file
    seen, run_ids = Seen(), set()
    for path in segments(directory, dialect):
        if not all(frame.payload for frame in read_frames(path)):
            yield f"{path}: an event of no bytes"
        for event in read_file(path):
            run_ids.add(event.run_id)
            if not seen.add(event.run_id, event.attempt, event.seq):
                yield f"{path}: event {event.seq} is there twice"
            for value in event.values:
                if value.plugin == "graph":  # it has no step
                    continue
                key, now = (value.plugin, value.tag), (event.attempt, event.step, path)
                attempt, step, file = reached.setdefault(key, now)
                is_erased = event.attempt == attempt and event.step < step
                if is_erased and (file != path or dialect == TENSORBOARD):
                    yield f"{path}: {value.tag!r} at step {event.step}, after {step} in {file.name}"
                reached[key] = max(reached[key], now)
    if len(run_ids) > 1:
        yield f"{directory}: events of the runs {sorted(run_ids)}"

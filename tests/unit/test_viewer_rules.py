"""The rules of the viewers that other tests hold recorded files to: each breach of one is found."""

from pathlib import Path

import pytest

from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.records import Event, EventIds, Value
from tests.unit.events.test_reader import MINDSPORE, RUN, TENSORBOARD, write
from tests.viewer_rules import lost_points

NAMES = {"mindspore": MINDSPORE, "tensorboard": TENSORBOARD}


def frames(dialect: str, *steps: int, run_id: str = RUN, attempt: int = 0, first_seq: int = 0) -> list[bytes]:
    found = []
    for place, step in enumerate(steps):
        ids = EventIds(run_id, attempt, first_seq + place if first_seq else step)
        event = Event(step, 100.0, [Value("scalar", "loss", 0.5)])
        found.append(frame(encode_event(event, ids, (dialect,))[0][dialect] or b""))
    return found


@pytest.mark.parametrize("dialect", NAMES)
def test_what_a_viewer_would_not_show_is_found(nasty_tmp_path: Path, dialect: str):
    def lost(*files: list[bytes]) -> int:
        for path in nasty_tmp_path.iterdir():
            path.unlink()
        for number, content in enumerate(files):
            write(nasty_tmp_path, NAMES[dialect].format(1_700_000_000 + number), content)
        return len(lost_points(nasty_tmp_path))

    begun = frames(dialect, 1, 2, 3)
    assert lost(begun, frames(dialect, 3, 4, first_seq=4)) == 0
    assert lost(begun, frames(dialect, 2, 3, first_seq=4)) == 1
    assert lost(begun, frames(dialect, 2, 3, attempt=1)) == 0
    assert lost(begun, frames(dialect, 3, 4)) == 1  # event 3 is there twice
    assert lost(begun, frames(dialect, 4, run_id="f" * 16)) == 1
    assert lost([*begun, frame(b""), *frames(dialect, 4)]) == 1
    assert lost([*begun, *frames(dialect, 2, first_seq=4)]) == (dialect == "tensorboard")

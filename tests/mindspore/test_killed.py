"""A training that is killed at some step has everything in its files that was acknowledged.

As a script, `python -m tests.mindspore.test_killed KILLS` prints what ours and MindSpore's own lose.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from distsummary.events.reader import read_directory

pytestmark = pytest.mark.interop

KILLS = 3


def killed(whose: str, directory: Path, steps: int) -> tuple[int, int, int]:
    """Kill a training after some steps; how many it made, acknowledged, and how many are in its files."""
    command = [sys.executable, Path(__file__).with_name("killed_training.py"), whose, directory]
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    line = ""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{steps} "):
            break
    process.kill()
    process.wait()
    time.sleep(1.0)  # MindSpore's writer process ends by itself
    with process.stdout as rest:
        *_, line = [line, *(one for one in rest if len(one.split()) == 2)]  # the last may be cut
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    made, acknowledged = map(int, line.split())
    events = read_directory(directory, mode="tail")
    found = {event.step for event in events for value in event.values if value.tag == "loss/auto"}
    assert sorted(found) == [*range(1, len(found) + 1)]
    return made, acknowledged, len(found)


@pytest.mark.parametrize("seed", range(KILLS))
def test_nothing_that_was_acknowledged_is_lost(tmp_path, seed):
    made, acknowledged, found = killed("ours", tmp_path / "run", random.Random(seed).randrange(20, 1500))
    assert acknowledged <= found <= made


if __name__ == "__main__":
    for whose in sys.argv[2:] or ("ours", "theirs"):
        lost = []
        for number in range(int(sys.argv[1])):
            with tempfile.TemporaryDirectory() as place:
                steps = random.Random(number).randrange(20, 1500)
                made, acknowledged, found = killed(whose, Path(place, "run"), steps)
                lost.append((made - found, max(0, acknowledged - found)))
        behind, gone = zip(*lost, strict=True)
        print(f"{whose}: made but not in the files {behind}; acknowledged and lost {sum(gone)}", flush=True)

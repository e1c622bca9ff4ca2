"""`distsummary run`: a command whose trainings are recorded, by the door that torch opens."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

from distsummary.base.columns import quoted
from distsummary.base.terminal import printed
from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.rundir.run_dir import TIME, RunDir
from distsummary.rundir.states import RunState, read_run
from distsummary.rundir.topology import LISTED, RUN_DIR

INTO = "runs/{time}"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
CLOCKS_S = 2.0  # by which the clocks of this machine and of the disk may differ


def run_command(command: Sequence[str], into: str | None) -> int:
    """Run a command with the door open, and print which runs it has recorded; returns its exit code.

    Args:
        command: the program and its arguments.
        into: the run dir; None: the one that the environment names, else INTO.

    Raises InvalidValueError if there is no command or the door is closed, OSError if it cannot be started.
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words:
        raise InvalidValueError("the command is missing; write: distsummary run -- python train.py")
    if os.environ.get(AUTOLOAD, "1") != "1":
        raise InvalidValueError(
            f"{AUTOLOAD}={os.environ[AUTOLOAD]} closes the door by which torch loads distsummary; unset it"
        )
    if not any(point.name == "distsummary" for point in entry_points(group="torch.backends")):
        raise InvalidValueError(
            "this installation of distsummary has no entry point torch.backends, by which torch loads it; "
            "install its wheel again"
        )
    run_dir = into or os.environ.get(RUN_DIR) or INTO
    begun = time.time() - CLOCKS_S
    with tempfile.NamedTemporaryFile() as listed:
        code = _run(words, os.environ | {RUN_DIR: run_dir, LISTED: listed.name})
        # Runs that the script names itself are in other places.
        named = {Path(os.fsdecode(one)) for one in listed.read().split(b"\0") if one}
    asked = _places(run_dir)
    found = [*_recorded(sorted(asked | named))]
    # Earlier runs may stand in the same place: only those that began after the command are its own.
    found = [(path, run) for path, run in found if run.newest and run.newest.started >= begun]
    for path, run in found:
        state = run.state
        if code and run.state in ("finished", "running"):
            state += f", but the command ended with exit code {code}"
        if path not in asked:
            state += " (the script itself names this run dir)"
        printed(f"distsummary: {path}: {state}; distsummary status {quoted(path)}", file=sys.stderr)
    if not found:
        printed(
            "distsummary: nothing was recorded: no process that imports torch with this distsummary made a "
            "step of an optimizer",
            file=sys.stderr,
        )
    return code


def _run(words: list[str], environment: dict[str, str]) -> int:
    """The exit code of a command, as a shell reports it; SIGTERM is passed on, a terminal sends it Ctrl-C."""
    process = subprocess.Popen(words, env=environment)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = [(number, signal.signal(number, pass_on)) for number in (signal.SIGTERM, signal.SIGHUP)]
    # A terminal sends Ctrl-C to the command as well: this process only waits for its end.
    before.append((signal.SIGINT, signal.signal(signal.SIGINT, lambda number, frame: None)))
    try:
        code = process.wait()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    # A shell reports 128 + n for a command that was ended by the signal n.
    return code if code >= 0 else 128 - code


def _places(run_dir: str) -> set[Path]:
    """The directories for which a path, which may have {time} in it, stands."""
    pattern = RunDir(run_dir.replace(TIME, "time")).base
    name = Path(run_dir).name
    places = pattern.parent.glob(f"{name.replace(TIME, '*')}*") if TIME in name else ()
    return {pattern, *places, *pattern.parent.glob(f"{pattern.name}-*")}


def _recorded(places: Iterable[Path]) -> Iterator[tuple[Path, RunState]]:
    """The runs among directories."""
    for place in places:
        # A run.json may not be one of ours.
        with suppress(DistSummaryError, OSError):
            if (place / "run.json").is_file():
                yield place, read_run(place)

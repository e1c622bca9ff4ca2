"""L1: a process that writes is killed with SIGKILL at random times and restarted with the same attempt."""

import os
import random
import signal
import time
import traceback
from pathlib import Path

import psutil

from tests.torture.async_client import AsyncClient
from tests.torture.client import Client
from tests.torture.judge import Verdict, run_judge
from tests.torture.ledger import read_account
from tests.torture.level0 import client_of, open_case, options_of
from tests.torture.rounds import Rounds

KILLS_PER_RUN = 25
BULK = 500_000  # elements of the rare large tensors: SIGKILL tears a write(2) of 2 MB
LARGEST_BATCH = 16
PAUSE_S = 0.004  # longest pause between batches
ENDLESS = 1 << 40
EARLY_S, LATE_S = (
    0.02,
    0.15,
)  # a kill comes within the first, while the files are opened, or within the second
WIDE = 5  # times later a kill comes if events have many tags: they take longer
MORE = 5  # events of the last life, which closes


def kill_loop(root: Path, kills: int, seed: int, tags: int = 0) -> Verdict:
    """Runs of up to 25 kills each until `kills` are done; each run ends with a clean life and is judged.

    `tags`: how many more scalars an event of scalars has.
    """
    rounds = Rounds(root)
    for number in range(-(-kills // KILLS_PER_RUN)):
        if number in rounds:
            continue
        place, case, verdict = root / f"run-{number:03d}", seed + number, Verdict()
        generator = random.Random(f"{seed}/{number}")
        open_case(place, case, bulk=BULK, tags=tags)
        for _ in range(min(KILLS_PER_RUN, kills - number * KILLS_PER_RUN)):
            kill_one(place, case, _delay_s(generator) * (WIDE if tags else 1), verdict, tags)
        _end_cleanly(place, case, verdict, tags)
        verdict.add(run_judge(place, tensorboard=True))
        rounds.add(number, verdict)
    return rounds.total()


def _delay_s(generator: random.Random) -> float:
    early = generator.random() < 0.3
    return generator.uniform(0.0, EARLY_S) if early else generator.uniform(EARLY_S, LATE_S)


def kill_one(place: Path, case: int, delay_s: float, verdict: Verdict, tags: int = 0) -> None:
    """One life, killed after `delay_s` seconds."""
    pid = start(place, case, ENDLESS, tags)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    verdict.kills += 1
    if not os.WIFSIGNALED(status):
        verdict.violations.append(f"{place.name}: it ended before it was killed: {_errors(place)}")
    _count_orphans(pid, place, verdict)


def start(place: Path, case: int, total: int, tags: int = 0) -> int:
    """A life in a new process and session; its pid. What it prints goes to the run's `stderr`."""
    pid = os.fork()
    if pid:
        return pid
    try:  # the child: it must not return into the harness
        os.setsid()
        descriptor = os.open(place / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 2)
        _live(place, case, total, tags)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _live(place: Path, case: int, total: int, tags: int) -> None:
    client: type[Client] | type[AsyncClient] = client_of(case)
    client(
        place, seed=case, total=total, options=options_of(case, rotate_bytes=1 << 20), bulk=BULK, tags=tags,
        largest_batch=LARGEST_BATCH, pause_s=PAUSE_S,
    ).run()  # fmt: skip


def _end_cleanly(place: Path, case: int, verdict: Verdict, tags: int) -> None:
    pid = start(place, case, read_account(place / "ledger").next_number + MORE, tags)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        verdict.violations.append(f"{place.name}: the last life failed: {_errors(place)}")
    _count_orphans(pid, place, verdict)


def _count_orphans(session: int, place: Path, verdict: Verdict) -> None:
    """Processes of the dead one's session that are still there."""
    for pid in orphans_of(session):
        verdict.orphans += 1
        verdict.violations.append(f"{place.name}: process {pid} outlives the killed one")


def orphans_of(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _errors(place: Path) -> str:
    text = (place / "stderr").read_text() if (place / "stderr").exists() else ""
    return text.strip().splitlines()[-1] if text.strip() else "no word"

"""The same judge on the peers: a child logs scalars with a peer's writer and is killed at random times.

python tests/torture/peers.py CASE PEER      the child, in the interpreter that has the peer
"""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # in another interpreter, in which nothing of ours is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.torture.ledger import ACKED, SENT, Ledger, read_account
from tests.torture.workload import MINDSPORE, SCALAR, TENSORBOARD, event

if TYPE_CHECKING:
    from tests.torture.judge import Verdict

SEED_STEP = 1_000_003
DIALECT = {"torch": TENSORBOARD, "tensorboardX": TENSORBOARD, "mindspore": MINDSPORE}
START_S = 120.0  # an interpreter with a framework takes its time
LATE_S = 0.5
GRACE_S = 3.0  # for the peer's own processes to follow the one that was killed
PACE_S = (
    0.001  # pause after each event of every second life, as a quick step of a training; the others have none
)


def open_peer(name: str, directory: Path) -> tuple[Callable[[int, float], Any], Callable[[], Any]]:
    """The peer's (log(step, value), close())."""
    if name == "mindspore":
        return _open_mindspore(directory)
    module = importlib.import_module("torch.utils.tensorboard" if name == "torch" else name)
    writer = module.SummaryWriter(str(directory))
    return (lambda step, value: writer.add_scalar(SCALAR, value, step)), writer.close


def _open_mindspore(directory: Path) -> tuple[Callable[[int, float], Any], Callable[[], Any]]:
    mindspore = importlib.import_module("mindspore")
    record = mindspore.SummaryRecord(str(directory))

    def log(step: int, value: float) -> None:
        record.add_value("scalar", SCALAR, mindspore.Tensor(value, mindspore.float32))
        if not record.record(step):
            raise RuntimeError("record() refused")

    return log, record.close


def main() -> int:
    """The child: log until killed, or TORTURE_EVENTS events, then close."""
    place, name = Path(sys.argv[1]), sys.argv[2]
    facts = json.loads((place / "case.json").read_text())
    account = read_account(place / "ledger")
    log, close = open_peer(name, place / "events")
    ledger = Ledger(place / "ledger")
    pace_s = float(os.environ["TORTURE_PACE_S"])
    n, last = account.next_number, account.next_number + int(os.environ["TORTURE_EVENTS"])
    while n < last:
        values = [
            value.data for value in event(facts["seed"], n, facts["bulk"]).values if value.tag == SCALAR
        ]
        if values:
            ledger.enter(SENT, n, n)
            started = time.monotonic()
            log(n, values[0])
            ledger.enter_block(time.monotonic() - started)
            ledger.enter(ACKED, n, n)
            time.sleep(pace_s)
        n += 1
    close()
    return 0


def kill_peer(
    root: Path, name: str, python: str, kills: int, seed: int, *, with_group: bool = False
) -> "Verdict":
    """The verdict on a peer after `kills` kills; every life logs into the same directory.

    `with_group`: kill what it started with it, as a scheduler and the end of a container do.
    """
    from tests.torture.judge import Verdict, run_judge

    verdict = Verdict()
    place = root / f"peer-{name}"
    (place / "events").mkdir(parents=True)
    facts = {"seed": seed, "bulk": 1, "dialects": [DIALECT[name]], "peer": name, "seq_is_number": False}
    (place / "case.json").write_text(json.dumps(facts))
    generator = random.Random(seed * SEED_STEP)
    for number in range(kills):
        process = _start(place, name, python, pace_s=PACE_S * (number % 2))
        try:
            _await_ack(place, process)
            time.sleep(generator.uniform(0.0, LATE_S))
        finally:
            os.killpg(process.pid, signal.SIGKILL) if with_group else process.kill()
            process.wait()  # reaped at once, as by a launcher
        verdict.kills += 1
        verdict.orphans += _end_orphans(process.pid)
    last = _start(place, name, python, events=5)
    if last.wait(START_S) != 0:
        verdict.violations.append(
            f"{place.name}: the last life failed: {(place / 'stderr').read_text()[-300:]}"
        )
    verdict.add(run_judge(root, tensorboard=True))
    return verdict


def _start(
    place: Path, name: str, python: str, events: int = 1 << 40, pace_s: float = 0.0
) -> subprocess.Popen[bytes]:
    environment = os.environ | {"TORTURE_EVENTS": str(events), "TORTURE_PACE_S": str(pace_s)}
    with (place / "stderr").open("ab") as errors:
        return subprocess.Popen(
            [python, __file__, str(place), name],
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def _await_ack(place: Path, process: subprocess.Popen[bytes]) -> None:
    ledger = place / "ledger"
    before = ledger.stat().st_size if ledger.exists() else 0
    deadline = time.monotonic() + START_S
    while not ledger.exists() or ledger.stat().st_size <= before:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the peer did not start: {(place / 'stderr').read_text()[-500:]}")
        time.sleep(0.02)


def _end_orphans(session: int) -> int:
    """Count what outlives the killed process by more than the grace, and end it."""
    from tests.torture.level1 import orphans_of

    deadline = time.monotonic() + GRACE_S
    while (left := orphans_of(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


if __name__ == "__main__":
    sys.exit(main())

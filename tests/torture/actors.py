"""L1 with a collector's actor: it is killed and stopped, and so is the process that sends to it.

python -m tests.torture.actors PLACE CASE TOTAL ADDRESS      the sender, a process on Ray
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.torture.async_client import AsyncClient
from tests.torture.cluster import RayCluster, collectors, own_processes, prepare_environment, ray_cluster
from tests.torture.judge import ROOT, Verdict, run_judge
from tests.torture.ledger import read_account
from tests.torture.level0 import open_case, options_of
from tests.torture.rounds import Rounds

BULK = 20_000  # elements of the rare large tensors
LARGEST_BATCH = 16
PAUSE_S = 0.02  # longest pause between batches
FAULTS_PER_RUN = 10
IN_A_ROW = 5  # deaths, after which the sender writes the files itself
UP_S = 60.0  # a sender, or a collector, is up within this
ACKED_S = 60.0  # and has acknowledged something within this after a fault
MORE = 5  # events of the last life, which closes
ENDLESS = 1 << 40
FAULTS = ("kill", "kill in a row", "stop", "kill the sender", "kill the sender early")


def kill_actors(root: Path, kills: int, seed: int) -> Verdict:
    """Runs of up to ten faults each until `kills` are done; each ends with a clean life and is judged."""
    prepare_environment()
    rounds = Rounds(root)
    with ray_cluster() as cluster:
        for number in range(-(-kills // FAULTS_PER_RUN)):
            if number not in rounds:
                faults = min(FAULTS_PER_RUN, kills - number * FAULTS_PER_RUN)
                made = _Run(root / f"run-{number:03d}", seed + number, cluster)
                verdict = made.play(faults, random.Random(f"{seed}/{number}"))
                verdict.add(run_judge(made.place, tensorboard=True))
                rounds.add(number, verdict)
                print(f"{made.place.name}: {', '.join(made.done)}", flush=True)
    return rounds.total()


class _Run:
    """The lives of one sender, and what is done to them."""

    def __init__(self, place: Path, case: int, cluster: RayCluster) -> None:
        self.place, self._case, self._cluster = place, case, cluster
        self.done: list[str] = []
        self._before = {process.pid for process in own_processes()}
        self._sender: subprocess.Popen[bytes] | None = None

    def play(self, faults: int, generator: random.Random) -> Verdict:
        """Do so many faults, then let the last life end cleanly."""
        verdict = Verdict()
        open_case(self.place, self._case, bulk=BULK, seq_is_number=False)
        for _ in range(faults):
            sender = self._alive() or self._start(ENDLESS)
            name = generator.choice(FAULTS)
            if name == "kill the sender early":
                time.sleep(generator.uniform(0.0, 4.0))
            elif not self._await_acked():
                self._complain(verdict, f"nothing acknowledged before {name}: {self._words()}")
            time.sleep(generator.uniform(0.0, 0.3))
            match name:
                case "kill" | "kill in a row":
                    for _ in range(IN_A_ROW if name == "kill in a row" else 1):
                        self._signal_collectors(signal.SIGKILL)
                case "stop":
                    stopped = self._signal_collectors(signal.SIGSTOP)
                    time.sleep(generator.uniform(0.5, 4.0))
                    _send(stopped, signal.SIGCONT)
                case _:
                    sender.kill()
                    sender.wait()
            self.done.append(name)
            verdict.kills += 1
        if sender := self._alive():
            sender.kill()
            sender.wait()
        last = self._start(read_account(self.place / "ledger").next_number + MORE)
        if last.wait(UP_S + ACKED_S) != 0:
            self._complain(verdict, f"the last life failed: {self._words()}")
        self._end_orphans(verdict)
        return verdict

    def _start(self, total: int) -> "subprocess.Popen[bytes]":
        words = [str(self.place), str(self._case), str(total), self._cluster.address]
        with (self.place / "stderr").open("ab") as log:
            self._sender = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.actors", *words], cwd=ROOT, stdout=log, stderr=log
            )
        return self._sender

    def _alive(self) -> "subprocess.Popen[bytes] | None":
        return self._sender if self._sender is not None and self._sender.poll() is None else None

    def _await_acked(self) -> bool:
        """Whether something is acknowledged from now on, in time."""
        before, deadline = len(read_account(self.place / "ledger").acked), time.monotonic() + UP_S + ACKED_S
        while time.monotonic() < deadline and self._alive():
            if len(read_account(self.place / "ledger").acked) > before:
                return True
            time.sleep(0.05)
        return False

    def _signal_collectors(self, number: int) -> list[psutil.Process]:
        """Signal the collectors of this run; before, wait a little for one that starts."""
        deadline = time.monotonic() + 5.0
        while not (found := self._collectors()) and time.monotonic() < deadline:
            time.sleep(0.02)
        _send(found, number)
        if number == signal.SIGKILL:
            psutil.wait_procs(found, timeout=2.0)
        return found

    def _collectors(self) -> list[psutil.Process]:
        fresh = [process for process in own_processes() if process.pid not in self._before]
        pids = collectors(fresh)
        return [process for process in fresh if process.pid in pids]

    def _end_orphans(self, verdict: Verdict) -> None:
        """A collector ends with its sender; in the end none is left."""
        _, left = psutil.wait_procs(self._collectors(), timeout=UP_S)
        for process in left:
            verdict.orphans += 1
            self._complain(verdict, f"collector {process.pid} outlives its sender")
            process.kill()

    def _complain(self, verdict: Verdict, what: str) -> None:
        verdict.violations.append(f"{self.place.name}: {what}")

    def _words(self) -> str:
        return (self.place / "stderr").read_text(errors="replace")[-600:].replace("\n", " | ")


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def main() -> None:
    """The sender: events until it is killed, or up to TOTAL."""
    import ray

    from distsummary.collect.remote.actor_writer import RemoteWriter

    place, case, total, address = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    ray.init(address=address, log_to_driver=False, logging_level="error")
    facts = json.loads((place / "case.json").read_text())
    scope = ("rank", "node")[case % 2]
    AsyncClient(
        place, seed=facts["seed"], total=total, options=options_of(case, rotate_bytes=1 << 20),
        bulk=facts["bulk"], largest_batch=LARGEST_BATCH, pause_s=PAUSE_S,
        opened=lambda spec: RemoteWriter(spec, scope=scope),
    ).run()  # fmt: skip
    os._exit(0)  # what the disconnection from Ray takes is no part of it


if __name__ == "__main__":
    main()

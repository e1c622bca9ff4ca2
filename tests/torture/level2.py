"""L2: four ranks train, and collectors, trainers, aggregator, driver and raylet are killed or stopped.

A round is one job: faults that a job survives, then one of many ends. The ledgers of the ranks are outside of
the system; the judge compares them with the files. Here stand the faults and what the states have to say.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.torture.cluster import (
    RANKS,
    RayCluster,
    collectors,
    is_alive,
    own_processes,
    prepare_environment,
    ray_cluster,
    title,
)
from tests.torture.judge import ROOT, Verdict, run_judge
from tests.torture.ledger import ACKED
from tests.torture.rounds import Rounds

ACKED_EACH = 100  # acknowledged steps, of all ranks, after each fault
UP_S = 120.0  # a job is up within this
ALIVE_S = 60.0  # a job acknowledges again within this after a fault
END_S = 60.0  # a job ends within this
RESTART_S = 5.0  # Ray starts an actor that was killed again within this
GONE_S = 100.0  # the last process of a run ends within this: an aggregator waits a minute for silent ranks
IN_A_ROW, ROW_S = (
    5,
    20.0,
)  # deaths of a rank's collector, within this time, after which it is not started again
DISK_BYTES = 96 << 20


@dataclass(frozen=True)
class Ending:
    """How a job ends, and what its states have to say then.

    `run`: states that the run may have; `culprit`: those of the rank that ended; `others`: those of the other
    ranks, under `ds.launch` and torchrun; `words`: some of which the attempt's failure says.
    """

    how: str
    run: tuple[str, ...]
    culprit: tuple[str, ...]
    others: tuple[str, ...]
    words: tuple[str, ...] = ()


FINISHED = ("finished",)
# torchrun stops the other ranks with SIGTERM; `ds.launch` lets them run for a while, and so they finish
STOPPED = ("finished", "interrupted")
ENDINGS = {
    ending.how: ending
    for ending in (
        Ending("finish", FINISHED, FINISHED, FINISHED),
        Ending("exception", ("failed",), ("failed",), STOPPED, ("OSError: no data",)),
        Ending("sys.exit", ("failed",), ("failed",), STOPPED, ("3",)),
        Ending("handler", ("interrupted",), ("interrupted",), STOPPED),
        Ending("os._exit", ("lost", "interrupted"), ("lost",), STOPPED, ("exit", "gone")),
        Ending("SIGKILL", ("lost", "interrupted"), ("lost",), STOPPED, ("signal 9", "gone")),
        Ending("SIGSEGV", ("lost", "interrupted"), ("lost",), STOPPED, ("signal 11", "gone")),
        Ending("SIGTERM", ("interrupted",), ("interrupted",), STOPPED),
        Ending("Ctrl-C", ("interrupted",), ("interrupted",), ("interrupted",)),
        Ending("driver", ("lost", "finished"), ("lost", "finished"), ("lost", "finished")),
        Ending("raylet", ("lost",), ("lost", "finished"), ("lost", "finished")),
        Ending("full disk", ("lost", "finished"), ("incomplete", "lost"), ("incomplete", "lost")),
    )
}


def torture_runs(
    root: Path, kills: int, seed: int, *, mode: str, endings: str = "", only: str = ""
) -> Verdict:
    """Rounds until `kills` faults are done; every way to end comes as often as another.

    `endings`, `only`: the endings and the faults before them, divided by commas; empty: all.
    """
    prepare_environment()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else jobs of `make torture &` ignore Ctrl-C
    rounds, waiting = Rounds(root), list[Round]()

    def settle(wait_s: float) -> None:
        for one in [*waiting]:
            if one.settle(wait_s=wait_s):
                waiting.remove(one)
                if one.reported:
                    verdict = run_judge(one.place, tensorboard=True)
                    verdict.kills = one.faults
                    rounds.add(one.number, verdict)

    with ray_cluster() if mode != "torchrun" else nullcontext() as cluster:
        try:
            plan = _plan(mode, endings.split(",") if endings else list(ENDINGS), random.Random(seed))
            for number, (place, ending) in enumerate(plan):
                if rounds.total().kills + sum(one.faults for one in waiting) >= kills:
                    break
                if number not in rounds:
                    made = Round(root / f"run-{number:03d}", number, seed, place, ending, only)
                    made.play(cluster)
                    waiting.append(made)
                    settle(0.0)
                    print(made.line(), flush=True)
            settle(GONE_S)
        finally:
            for one in waiting:
                one.leave_the_disk()
    return rounds.total()


def _plan(mode: str, names: list[str], generator: random.Random) -> Iterator[tuple[str, Ending]]:
    """Mode and ending of each round, without end: a shuffled deck of all of them again and again."""
    modes = ("ray", "torchrun") if mode == "both" else (mode,)
    deck = [
        (one, ending)
        for one in modes
        for ending in map(ENDINGS.__getitem__, names)
        if (one, ending.how) != ("torchrun", "raylet")
    ]
    while True:
        generator.shuffle(deck)
        yield from deck


@dataclass
class Round:
    """One job and what is done to it."""

    place: Path
    number: int
    level_seed: int
    mode: str
    ending: Ending
    only: str = ""  # the faults before the end, divided by commas; empty: all
    faults: int = 0
    orphans: int = 0
    complaints: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)  # what was done, in order
    known: dict[int, psutil.Process] = field(default_factory=dict)  # processes of the run that were seen
    looked_s: float = 0.0
    log: Path = field(init=False)
    seed: int = field(init=False)
    generator: random.Random = field(init=False)
    culprit: int = field(init=False)
    is_collective: bool = field(init=False)

    def __post_init__(self) -> None:
        self.seed = self.level_seed + self.number
        self.generator = random.Random(f"{self.level_seed}/{self.number}")
        self.culprit = self.generator.randrange(RANKS)
        # Ranks that wait for each other fail with the culprit: then only the culprit's state and name count.
        self.is_collective = self.generator.random() < 0.3
        self.log = self.place / "log"
        self.run = self.place / "disk" / "run"

    # --- the job

    def play(self, ray: RayCluster | None) -> None:
        """Start the job, disturb it, end it."""
        self.started_s = time.monotonic()
        if self.place.exists():  # of a call that was interrupted
            if (self.place / "disk").is_mount():
                _unmount(self.place / "disk")
            shutil.rmtree(self.place)
        (self.place / "disk").mkdir(parents=True)
        self.is_mounted = _mount(self.place / "disk")
        if not self.is_mounted and self.ending.how == "full disk":
            return  # only root may mount
        self.before = {process.pid for process in own_processes()}
        cluster = ray if self.mode == "ray" else None
        if cluster is not None and self.ending.how == "raylet":
            cluster.add_doomed()
        self.job = self._start(cluster)
        try:
            if self._await_acked(ACKED_EACH, UP_S, "to begin") and (
                cluster is None or self._await_collectors()
            ):
                for _ in range(self.generator.randrange(2, 5)):
                    self._disturb()
                self._end(cluster)
            self._await_end()
        finally:
            self._look(at_once=True)
            self._kill_job()
            if cluster is not None:
                cluster.remove_doomed()
        self.ended_s = self.left_s = time.monotonic()  # and when a process of the run was last seen

    def _start(self, cluster: RayCluster | None) -> "subprocess.Popen[bytes]":
        collective = str(int(self.is_collective))
        if cluster is None:
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m",
                       "tests.torture.rank", str(self.place), str(self.seed), collective]  # fmt: skip
        else:
            resource = "half" if self.ending.how == "raylet" else "whole"
            command = ["-m", "tests.torture.driver", cluster.address, str(self.place), str(self.seed),
                       collective, str(RANKS), resource]  # fmt: skip
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def _await_acked(self, count: int, timeout_s: float, what: str) -> bool:
        goal, deadline = self.acked() + count, time.monotonic() + timeout_s
        while self.acked() < goal or len(list(self.place.glob("ledger_*"))) < RANKS:
            self._look()
            if self.job.poll() is not None:
                self.complaints.append(f"the job ended by itself ({what}): {self._last_words()}")
                return False
            if time.monotonic() > deadline:
                self.complaints.append(
                    f"no acknowledgement for {timeout_s:g} s ({what}): {self._last_words()}"
                )
                return False
            time.sleep(0.05)
        return True

    def _await_collectors(self) -> bool:
        """The ranks begin without their collectors."""
        deadline = time.monotonic() + UP_S
        while not collectors(self._fresh()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.complaints += [] if collectors(self._fresh()) else [f"no collector after {UP_S:g} s"]
        return not self.complaints

    def acked(self) -> int:
        """The steps that the ranks have acknowledged."""
        total = 0
        for path in self.place.glob("ledger_*"):
            for line in path.read_text().split("\n")[:-1]:
                kind, *numbers = line.split()
                total += int(numbers[1]) - int(numbers[0]) + 1 if kind == ACKED else 0
        return total

    # --- faults that a job survives

    def _disturb(self) -> None:
        time.sleep(self.generator.uniform(0.0, 0.7))
        kinds = {
            "kill aggregator": self._kill_aggregator,
            "stop aggregator": self._stop_aggregator,
            "kill collectors": self._kill_collectors,
            "kill collectors in a row": self._kill_collectors_in_a_row,
            "stop collectors": self._stop_collectors,
        }
        if self.is_mounted:
            kinds["full disk for a while"] = self._fill_for_a_while
        names = self.only.split(",") if self.only else list(kinds)
        self.generator.shuffle(names)
        for name in names:
            if kinds[
                name
            ]():  # jobs of torchrun have no collectors; the aggregator may be coming back just now
                self.faults += 1
                self.reported.append(name)
                self._await_acked(ACKED_EACH, ALIVE_S, name)
                break

    def _kill_aggregator(self) -> bool:
        return self._signal([self._aggregator()], signal.SIGKILL)

    def _stop_aggregator(self) -> bool:
        return self._pause([self._aggregator()], self.generator.uniform(0.5, 4.0))

    def _kill_collectors(self) -> bool:
        return self._signal(self._some_collectors(), signal.SIGKILL)

    def _kill_collectors_in_a_row(self) -> bool:
        """Kill each collector as soon as it is seen, so often that the ranks write their files themselves."""
        deadline, killed = time.monotonic() + ROW_S, 0
        most = IN_A_ROW * len(collectors(self._fresh()))
        while killed < most and time.monotonic() < deadline:
            found = collectors(self._fresh())
            killed += len(found) if self._signal(found, signal.SIGKILL) else 0
            time.sleep(0.05)
        return killed > 0

    def _stop_collectors(self) -> bool:
        return self._pause(self._some_collectors(), self.generator.uniform(0.5, 4.0))

    def _fill_for_a_while(self) -> bool:
        self._fill()
        time.sleep(self.generator.uniform(0.3, 2.0))
        (self.place / "disk" / "filler").unlink()
        return True

    def _fill(self) -> None:
        with (self.place / "disk" / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(1 << 16))
        with (self.place / "disk" / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(512))

    def _some_collectors(self) -> list[int]:
        found = collectors(self._fresh())
        return self.generator.sample(found, self.generator.randint(1, len(found))) if found else []

    def _aggregator(self) -> int:
        """The pid of the process that the run's manifest names; 0 if none lives."""
        with suppress(OSError, ValueError):
            pid = int(json.loads((self.run / "run.json").read_text()).get("aggregator", {}).get("pid", 0))
            trainers = {int(path.read_text() or 0) for path in self.place.glob("pid_*")}
            if pid not in trainers and psutil.pid_exists(pid):
                return pid
        return 0

    def _signal(self, pids: list[int], number: int) -> bool:
        hit = [pid for pid in pids if pid]
        self._look(at_once=True)
        for pid in hit:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(hit)

    def _pause(self, pids: list[int], seconds: float) -> bool:
        if not self._signal(pids, signal.SIGSTOP):
            return False
        time.sleep(seconds)
        return self._signal(pids, signal.SIGCONT)

    def _fresh(self) -> list[psutil.Process]:
        """The processes that have come since this round began."""
        return [process for process in own_processes() if process.pid not in self.before]

    # --- the end

    def _end(self, cluster: RayCluster | None) -> None:
        how = self.ending.how
        self._look(at_once=True)
        self.reported.append(how)
        self.faults += how != "finish"
        trainer = int((self.place / f"pid_{self.culprit}").read_text())
        match how:
            case "finish":
                self._order(how)
            case "exception" | "sys.exit" | "os._exit" | "handler":
                self._order(how, rank=self.culprit)
            case "SIGKILL" | "SIGSEGV" | "SIGTERM":
                os.kill(trainer, getattr(signal, how))
                self._order("finish", after_s=0.5)
            case "Ctrl-C" if cluster is None:
                os.killpg(self.job.pid, signal.SIGINT)  # as a terminal does
            case "Ctrl-C":
                self.job.send_signal(signal.SIGINT)
            case "driver":
                self.job.kill()
                self._order("finish", after_s=0.5)
            case "raylet":
                cluster.kill_raylet()
                self._order("finish", after_s=0.5)
            case "full disk":
                self._fill()
                self._order("finish", after_s=1.0)

    def _order(self, how: str, rank: int | None = None, after_s: float = 0.0) -> None:
        time.sleep(after_s)
        path = self.place / "order"
        path.with_suffix(".new").write_text(json.dumps({"how": how, "rank": rank}))
        path.with_suffix(".new").rename(path)

    def _await_end(self) -> None:
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            if self.job.poll() is not None and not any(map(is_alive, self._trainers())):
                return
            self._look()
            time.sleep(0.05)
        left = [pid for pid in self._trainers() if is_alive(pid)]
        self._signal(left, signal.SIGUSR1)  # they write their stacks
        states = [Path(f"/proc/{pid}/stat").read_text()[:60] for pid in left]
        driver = "has ended" if self.job.poll() is not None else f"runs: {self._last_words()}"
        self.complaints.append(f"not over after {END_S:g} s: ranks {states}, the driver {driver}")

    def _trainers(self) -> list[int]:
        return [int(path.read_text() or 0) for path in self.place.glob("pid_*")]

    def _kill_job(self) -> None:
        if self.job.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait()

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-600:].replace("\n", " | ")

    # --- afterwards

    def settle(self, *, wait_s: float) -> bool:
        """Once no process of the run is left, check states and merged run; False: not yet."""
        deadline = max(time.monotonic() + wait_s, 0.0)
        while True:
            left, now_s = self._left(), time.monotonic()
            if left:
                self.left_s = now_s
            elif now_s - self.left_s > RESTART_S:
                break
            if left and now_s - self.ended_s > GONE_S:
                for process in left:
                    self.orphans += 1
                    self.complaints.append(f"left behind: {process.pid} {title(process)}")
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                break
            if now_s > deadline:
                return False
            time.sleep(0.2)
        self.leave_the_disk()
        if not self.reported:  # not played
            shutil.rmtree(self.place)
            return True
        from tests.torture.ended_run import check_merged, check_states

        try:
            self.complaints += check_states(self)
            self.complaints += check_merged(self.run)
        except Exception as error:
            self.complaints.append(f"cannot be judged: {error!r}")
        facts = {
            "ranks": RANKS, "seed": self.seed, "mode": self.mode, "reported": self.reported,
            "culprit": self.culprit,
            "collective": self.is_collective, "complaints": self.complaints, "orphans": self.orphans,
        }  # fmt: skip
        (self.place / "case.json").write_text(json.dumps(facts))
        return True

    def _look(self, *, at_once: bool = False) -> None:
        """Remember the run's processes: those whose parents are killed are no one's children afterwards."""
        if at_once or time.monotonic() > self.looked_s + 0.5:
            self.looked_s = time.monotonic()
            self.known |= {process.pid: process for process in self._fresh() if is_ours(process)}

    def _left(self) -> list[psutil.Process]:
        """Those of the run's processes that still run; the aggregator may be a new one."""
        with suppress(psutil.NoSuchProcess):
            if pid := self._aggregator():
                self.known.setdefault(pid, psutil.Process(pid))
        return [process for process in self.known.values() if process.is_running() and is_alive(process.pid)]

    def leave_the_disk(self) -> None:
        """What a small file system holds moves to the large one."""
        if self.is_mounted:
            self.is_mounted = False
            (self.place / "disk" / "filler").unlink(missing_ok=True)
            shutil.copytree(self.place / "disk", self.place / "kept", symlinks=True)
            _unmount(self.place / "disk")
            (self.place / "disk").rmdir()
            (self.place / "kept").rename(self.place / "disk")

    def line(self) -> str:
        """What was done, in a line."""
        name = f"{self.place.name} {self.mode}{' collective' * self.is_collective} {self.culprit}"
        return f"{name}: {', '.join(self.reported)} ({time.monotonic() - self.started_s:.0f} s)"


def is_ours(process: psutil.Process) -> bool:
    """Whether a process is the run's: a collector, an aggregator, a trainer."""
    words = title(process)
    return words.startswith(("ray::CollectorActor", "ray::_Aggregator", "ray::_Rank")) or (
        "tests.torture.rank" in words or "distsummary.aggregate.follow" in words
    )


def _mount(place: Path) -> bool:
    options = f"size={DISK_BYTES},mode=0755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )
    return done.returncode == 0


def _unmount(place: Path) -> None:
    for _ in range(50):
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "-l", str(place)], check=True)

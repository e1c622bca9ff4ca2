"""Trainings that hang: which rank and which collective is named, and after how many seconds.

`python -m benchmarks.zoo.hangs RUN KIND CULPRIT AT`, under torchrun or, without it, by `ds.launch`: DDP on
four ranks, of which rank CULPRIT does at step AT what KIND says. Before that, at step QUIET, rank 0 alone
evaluates for longer than a step may take, which is no hang.
"""

import ctypes
import os
import queue
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds
from benchmarks.zoo.launch import LAUNCHERS, command, environ
from benchmarks.zoo.verdicts import reported, why
from distsummary.diagnosis.alerts import HANGS

RANKS, QUIET, STEPS = 4, 10, 400
FOREVER_S, EVALUATION_S = 3600, 4.0
START_S, PATIENCE_S, ENDING_S = 600.0, 90.0, 30.0  # until it hangs, is reported, and ends
ALLOWED_S = 6.0  # 5 s, and one until a step is late
# What the culprit does, and how many episodes of it there are.
KINDS = {
    "sleep": 8,  # it sleeps in the body of the loop
    "loader": 8,  # its loader waits for a batch that never comes
    "order": 8,  # it broadcasts where the others reduce
    "exit": 8,  # it exits
    "stop": 8,  # it is stopped by a signal
    "native": 8,  # native code keeps the interpreter's lock
    "skip": 8,  # it leaves out a collective and goes on: each rank, under each launcher
    "size": 4,  # it reduces a tensor of another size
}
ENDED = ("exit",)  # it has ended, and may be reported as one of GONE in place of hanging
GONE = ("lost", "failed")
WITH_LINE = ("sleep", "loader", "order")  # of these, the line can be had
GRADIENTS = 513 * 256 + 257 * 8  # elements that DDP reduces at once
# what the others wait for, or what the culprit began in its place
EVIDENCE = {
    "order": "broadcast of 4 elements",
    "skip": "all_reduce of 1 element",
    "size": "all_reduce of 5 elements",
}


def cases() -> Iterator[tuple[str, str, int]]:
    """The kind, the launcher and the number of each episode."""
    for kind, count in KINDS.items():
        for number in range(count):
            yield kind, LAUNCHERS[number % 2], number


def train(run_dir: str, kind: str, culprit: int, at: int) -> None:
    """Train, until one rank hangs."""
    rank = dist.get_rank()
    pid_at(run_dir, rank).write_text(str(os.getpid()))
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 8))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    begun = begun_at(run_dir)
    with ds.init(run_dir, watch=model) as run:
        for step, batch in enumerate(run.steps(batches(kind, culprit, rank, at)), 1):
            if rank == culprit and step == at - (kind == "loader"):
                begun.touch()
            if rank == culprit and step == at:
                hang(kind)
            if step == at and rank != culprit and kind in ("order", "size"):
                dist.all_reduce(torch.zeros(4))
            if step == QUIET and rank == 0:
                with run.eval() as evaluation:
                    time.sleep(EVALUATION_S)
                    evaluation.log(accuracy=0.5)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            if not (kind == "skip" and rank == culprit and step == at):
                dist.all_reduce(mean)
            run.log(loss=mean / RANKS)


def batches(kind: str, culprit: int, rank: int, at: int) -> Iterator[Tensor]:
    """Random batches; in the loader's deadlock, the culprit's never comes."""
    missing: queue.Queue[Tensor] = queue.Queue()
    for step in range(1, STEPS + 1):
        if kind == "loader" and rank == culprit and step == at:
            yield missing.get()  # HERE: loader
        yield torch.randn(384, 512)


def hang(kind: str) -> None:
    """What the culprit does instead of a step."""
    if kind == "sleep":
        time.sleep(FOREVER_S)  # HERE: sleep
    if kind == "order":
        dist.broadcast(torch.zeros(4), 0)  # HERE: order
    if kind == "size":
        dist.all_reduce(torch.zeros(5))
    if kind == "exit":
        os._exit(0)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "native":
        ctypes.PyDLL(None).sleep(FOREVER_S)  # PyDLL keeps the interpreter lock


def begun_at(run_dir: str) -> Path:
    """The file that the culprit makes when it hangs."""
    return Path(run_dir + ".begun")


def pid_at(run_dir: str, rank: int) -> Path:
    """The file with the process of a rank."""
    return Path(f"{run_dir}.pid{rank}")


# --- what is said of it -------------------------------------------------------------------------------------


def episode(kind: str, launcher: str, number: int, directory: Path) -> dict[str, Any]:
    """One training that hangs, and what was reported of it, live and by `distsummary why` afterwards."""
    chance = random.Random(f"{kind} {number}")
    culprit = number // 2 % RANKS if kind in ("skip", "size") else chance.randrange(RANKS)
    at = chance.randrange(30, 60)
    run_dir = str(directory / "run")
    with training(run_dir, kind, culprit, at, launcher) as process:
        until_s = time.monotonic() + START_S
        while not begun_at(run_dir).exists():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"it did not hang:\n{Path(run_dir + '.log').read_text()[-3000:]}")
            time.sleep(0.1)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and process.poll() is None and not hangs_in(run_dir, kind):
            time.sleep(0.1)
        time.sleep(1.0)  # for alerts that follow
    alerts = reported(run_dir)
    named = hangs_in(run_dir, kind)
    first = next((one for one in named if one["cause"] in HANGS), named[0] if named else None)
    said = why(run_dir)["verdicts"]
    afterwards = [one for one in said if is_hang(one, kind)]
    where = EVIDENCE.get(kind, f"all_reduce of {GRADIENTS:,} elements")
    live = first if first is not None else (afterwards or [None])[0]  # a job that fails at once ends first
    evidence = "" if live is None else live["evidence"]
    if kind in ENDED:  # it is reported at once, before the others have waited
        evidence = "; ".join([evidence, *(one["evidence"] for one in afterwards)])
    # the culprit has begun the next step; of one that has ended, the last step counts
    steps = {"skip": (at, at + 1), "exit": (at - 1, at)}.get(kind, (at,))
    return {
        "launcher": launcher,
        "culprit": culprit,
        "at": at,
        "is_live": first is not None,
        "rank_right": live is not None and live["rank"] == culprit and live["since_step"] in steps,
        "collective_right": where in evidence,
        "line_right": f"# HERE: {kind}" in evidence if kind in WITH_LINE else None,
        "why_right": [one["rank"] for one in afterwards] == [culprit] and where in afterwards[0]["evidence"],
        "delay_s": round(first["time"] - begun_at(run_dir).stat().st_mtime, 2) if first else None,
        "others": [one for one in alerts if one != first and not is_part(one, culprit)],
        "evidence": evidence,
        "why": said,
    }


def hangs_in(run_dir: str, kind: str) -> list[dict[str, Any]]:
    """The alerts of ranks that hang, since the culprit began to."""
    begun = begun_at(run_dir)
    since_s = begun.stat().st_mtime if begun.exists() else float("inf")
    return [alert for alert in reported(run_dir) if is_hang(alert, kind) and alert["time"] > since_s]


def is_hang(alert: dict[str, Any], kind: str) -> bool:
    """Whether it names a rank for which the others wait, which may end at first."""
    return alert["cause"] in HANGS or (kind in ENDED and alert["cause"] in GONE)


def is_part(alert: dict[str, Any], culprit: int) -> bool:
    """Whether it names the culprit again, or a rank that has ended, as its peers do when gloo aborts them."""
    return alert["cause"] in GONE or (alert["cause"] in HANGS and alert["rank"] == culprit)


@contextmanager
def training(run_dir: str, kind: str, culprit: int, at: int, launcher: str) -> Iterator[subprocess.Popen]:
    """A training that hangs; it is killed at the end."""
    arguments = [run_dir, kind, str(culprit), str(at)]
    with open(run_dir + ".log", "wb") as log:
        process = subprocess.Popen(
            command(launcher, RANKS, "benchmarks.zoo.hangs", *arguments),
            stdout=log, stderr=log, start_new_session=True, env=environ(),
        )  # fmt: skip
    try:
        yield process
        if kind in (*ENDED, "skip", "size"):  # the launcher ends the others
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
    finally:
        for rank in range(RANKS):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has not begun, or has ended
                os.kill(int(pid_at(run_dir, rank).read_text()), signal.SIGKILL)  # also one that is stopped
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    """A rank of torchrun, or the driver of Ray."""
    run_dir, kind, culprit, at = sys.argv[1:]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(run_dir, kind, int(culprit), int(at))
    else:
        ds.launch(partial(train, run_dir, kind, int(culprit), int(at)), ranks=RANKS, address="local")


if __name__ == "__main__":
    main()

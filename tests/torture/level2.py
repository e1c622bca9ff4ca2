"""L2: under Ray, the rank's collector actor is killed at random times while its trainer goes on."""

import contextlib
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path

import psutil

from tests.torture.async_client import AsyncClient
from tests.torture.client import RUN_ID
from tests.torture.judge import Verdict, run_judge
from tests.torture.level0 import open_case

SEED_OF_BOTH = 2  # a seed whose case writes both dialects through an AsyncWriter
BULK = 20_000
LATE_S = 2.0
GRACE_S = 5.0
UP_S = 60.0  # the actor's next life comes within this
MORE = 50


def kill_collectors(root: Path, kills: int, seed: int) -> Verdict:
    """One run whose collector is killed `kills` times."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_BACKEND_LOG_LEVEL": "error"}  # read at Ray's import
    import ray

    from distsummary.collect.actor_writer import RemoteWriter
    from distsummary.writing.spec import WriterSpec

    case = seed // 12 * 12 + SEED_OF_BOTH
    place = root / "run-000"
    open_case(place, case, bulk=BULK)
    verdict = Verdict()
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
             logging_level=logging.ERROR)  # fmt: skip
    try:
        remote = RemoteWriter(WriterSpec(directory=str(place / "events"), run_id=RUN_ID))
        client = AsyncClient(place, seed=case, total=1 << 40, bulk=BULK, pause_s=0.01, writer=remote)
        killer = threading.Thread(target=_kill, args=(client, kills, random.Random(seed), verdict))
        killer.start()
        try:
            client.run()
        finally:
            client.total = 0
            killer.join()
        _count_collectors(verdict)
    finally:
        ray.shutdown()
    verdict.add(run_judge(root, tensorboard=True))
    return verdict


def _count_collectors(verdict: Verdict) -> None:
    """Collectors that outlive their writer by more than the grace."""
    deadline = time.monotonic() + GRACE_S
    while (left := collectors()) and time.monotonic() < deadline:
        time.sleep(0.1)
    verdict.orphans += len(left)
    verdict.violations += [f"collector {pid} outlives its writer" for pid in left]


def _kill(client: AsyncClient, kills: int, generator: random.Random, verdict: Verdict) -> None:
    try:
        while verdict.kills < kills and client.total:
            deadline = time.monotonic() + UP_S
            while not (pids := collectors()) and time.monotonic() < deadline:
                if client.writes_itself():  # the collector died too often in a row: there is no next one
                    return
                time.sleep(0.05)
            time.sleep(generator.uniform(0.0, LATE_S))  # a moment while it starts, or works
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    verdict.kills += 1
            if not pids:
                verdict.violations.append(f"no collector for {UP_S:g} s after kill {verdict.kills}")
                return
    finally:
        client.end_after(MORE)


def collectors() -> list[int]:
    """The collector actors below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::RankCollector"):
                found.append(process.pid)
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found

"""What many hosts that share no directory cost the home of their run: `python -m benchmarks.ranks ships`."""

import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import ray

from distsummary.aggregate.actor_aggregator import start_aggregator
from distsummary.rundir.run_dir import RunDir
from distsummary.storage.home import HostState, Seen
from distsummary.storage.spool import GROW, WHOLE, Change

EVENT_BYTES, MANIFEST = 600, b"{}" * 300  # what a rank writes in a second, and each five seconds
BEGIN_S, MEASURED_S = 15.0, 15.0


def ships(hosts: int, ranks: int) -> dict[str, float]:
    """Simulated ships of hosts of so many ranks each send to a real aggregator, one message a second."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as directory:
            return _measured(start_aggregator(RunDir(Path(directory, "run")).create()), hosts, ranks)
    finally:
        ray.shutdown()


def _measured(home: ray.actor.ActorHandle, hosts: int, ranks: int) -> dict[str, float]:
    ray.get(home.enter.remote("rank_00000", 0))  # its process has begun
    found = [one for one in psutil.process_iter(["name"]) if one.info["name"].startswith("ray::_Aggr")]
    actor = max(found, key=psutil.Process.create_time)
    took: list[float] = []
    until = time.monotonic() + BEGIN_S + MEASURED_S

    def send(host: int) -> None:
        held = {f"rank_{host * ranks + rank:05d}": 0 for rank in range(ranks)}
        ray.get([home.enter.remote(name, 0) for name in held])
        time.sleep(host / hosts)
        seen, data, number = Seen(), os.urandom(EVENT_BYTES), 0
        while (begun := time.monotonic()) < until:
            at = number * EVENT_BYTES
            changes = [Change(f"{name}/events.out.events.summary.1.h_MS", GROW, at, data) for name in held]
            if number % 5 == 0:
                changes += [Change(f"{name}/manifest.json", WHOLE, 0, MANIFEST) for name in held]
            seen = ray.get(home.exchange.remote(HostState(f"h{host}"), held, changes, seen)).seen
            number += 1
            if begun > until - MEASURED_S:
                took.append(time.monotonic() - begun)
            time.sleep(max(0.0, begun + 1 - time.monotonic()))

    threads = [threading.Thread(target=send, args=(host,)) for host in range(hosts)]
    for thread in threads:
        thread.start()
    time.sleep(BEGIN_S)
    before = actor.cpu_times()
    time.sleep(MEASURED_S - 1)
    after = actor.cpu_times()
    for thread in threads:
        thread.join()
    cores = (after.user + after.system - before.user - before.system) / (MEASURED_S - 1)
    p50, p99 = np.percentile(took, [50, 99])
    return {
        "messages a second": len(took) / MEASURED_S,
        "cores of the home": cores,
        "seconds of a message": float(p50),
        "seconds of a message, p99": float(p99),
    }

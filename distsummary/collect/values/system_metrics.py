"""System metrics: what a rank's process, its node and its GPU use, sampled every 10 s in the background."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from distsummary.base.failures import Failures
from distsummary.errors import ClosedError
from distsummary.format.own_tags import NODE_TAGS, PROCESS_CPU, PROCESS_MEMORY, PROCESS_PRIVATE, PROCESS_TAGS
from distsummary.rundir.timeouts import BEAT_S
from distsummary.rundir.topology import Topology

PERIOD_S = 2 * BEAT_S
# Over less time no rate is computed: some counters of Linux advance every 10 ms.
LEAST_S = 0.1
GIB, MB = 2**30, 1e6


class Reading(NamedTuple):
    """What a source says now.

    `levels`: tag -> value. `totals`: tag -> a number that grows; its growth per second is recorded.
    """

    levels: Mapping[str, float]
    totals: Mapping[str, float]


Source = Callable[[], Reading]


def sources_of(topology: Topology, directory: Path, network: object) -> dict[str, Source]:
    """What a rank samples: its process, its GPU (if it uses one), and, on one rank of each node, the node.

    Called in the thread that trains, because the GPU in use is known only there. Only torch's GPUs are found.

    Args:
        directory: the run dir, whose disk is watched.
        network: the model, if known; its device is the GPU that is sampled.
    """
    process = psutil.Process()
    sources: dict[str, Source] = {"process": lambda: process_reading(process)}
    # psutil has no such counters on macOS.
    if hasattr(process, "io_counters"):
        sources["process's disk"] = lambda: process_disk_reading(process)
    if topology.local_rank == 0:
        sources["node's processors and memory"] = node_reading
        sources["node's disks"] = lambda: disk_reading(directory)
        sources["node's network"] = network_reading
    if "torch" in sys.modules:
        # it imports torch, which is imported already
        from distsummary.collect.values.torch_gpu import gpu_sources

        for name, read in gpu_sources(network).items():
            sources[name] = partial(levels_only, read)
    return sources


def levels_only(read: Callable[[], Mapping[str, float]]) -> Reading:
    """The Reading of a source without totals."""
    return Reading(read(), {})


def process_reading(process: psutil.Process) -> Reading:
    """Processor time (100: one processor is busy) and memory of this process.

    Private memory is without mapped files, such as a data set's, and without what it shares with workers.
    """
    memory = process.memory_info()
    private = memory.rss - getattr(memory, "shared", 0)
    return Reading(
        {PROCESS_MEMORY: memory.rss / GIB, PROCESS_PRIVATE: private / GIB},
        {PROCESS_CPU: 100 * time.process_time()},
    )


def process_disk_reading(process: psutil.Process) -> Reading:
    """What a process reads from and writes to disks; what the system has in its cache does not count."""
    io = process.io_counters()
    return Reading(
        {},
        {
            f"{PROCESS_TAGS}disk_read_mb_per_s": io.read_bytes / MB,
            f"{PROCESS_TAGS}disk_write_mb_per_s": io.write_bytes / MB,
        },
    )


def node_reading() -> Reading:
    """Processor time (100: all are busy) and memory of the node; in a container, of its host."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # The user time already includes the time for guests (virtual machines).
    busy_s = sum(times) - idle_s - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return Reading(
        {f"{NODE_TAGS}memory_percent": psutil.virtual_memory().percent},
        {f"{NODE_TAGS}cpu_percent": 100 * busy_s / (psutil.cpu_count() or 1)},
    )


def disk_reading(directory: Path) -> Reading:
    """How full the disk of a directory is, and what the node reads from and writes to all its disks."""
    totals = {}
    if (io := psutil.disk_io_counters()) is not None:
        totals[f"{NODE_TAGS}disk_read_mb_per_s"] = io.read_bytes / MB
        totals[f"{NODE_TAGS}disk_write_mb_per_s"] = io.write_bytes / MB
    return Reading({f"{NODE_TAGS}disk_used_percent": psutil.disk_usage(str(directory)).percent}, totals)


def network_reading() -> Reading:
    """What the node receives and sends over its networks, without what it sends to itself."""
    counters = [io for name, io in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
    return Reading(
        {},
        {
            f"{NODE_TAGS}network_received_mb_per_s": sum(io.bytes_recv for io in counters) / MB,
            f"{NODE_TAGS}network_sent_mb_per_s": sum(io.bytes_sent for io in counters) / MB,
        },
    )


class Sampler:
    """Reads the sources and turns their totals into rates. A source that fails is counted, and left out."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        failures: Failures,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = dict(sources)
        self._failures = failures
        self._clock = clock
        self._totals: dict[str, float] = {}
        self._read_s = clock()

    def sample(self) -> dict[str, float]:
        """Tag -> value. The first sample has no rates, nor has one less than LEAST_S after another."""
        levels: dict[str, float] = {}
        totals: dict[str, float] = {}
        for name, read in list(self._sources.items()):
            try:
                reading = read()
            except Exception as error:
                # The system or a driver raised it, so the next sample would fail as well.
                del self._sources[name]
                self._failures.count(
                    f"system metrics of the {name} cannot be read, and are not recorded any more: "
                    f"{type(error).__name__}: {error}; system_metrics=False turns them off"
                )
                continue
            levels |= reading.levels
            totals |= reading.totals
        now_s = self._clock()
        seconds = now_s - self._read_s
        if self._totals and seconds < LEAST_S:
            return levels
        rates = {
            tag: max(0.0, total - self._totals[tag]) / seconds
            for tag, total in totals.items()
            if tag in self._totals
        }
        self._totals, self._read_s = totals, now_s
        return levels | rates


class SystemMonitor:
    """Samples with the first heartbeat, then every 10 s, and when it is stopped.

    A driver that hangs holds the thread of `submit`, and not the heartbeats.

    Args:
        sampler: what is sampled.
        record: records a sample, and the last one only at a step without any; returns False if it did not.
        failures: counts samples that could not be recorded.
        submit: runs a job, which it names, in the background.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        sampler: Sampler,
        record: Callable[[Mapping[str, float], bool], bool],
        failures: Failures,
        submit: Callable[[str, Callable[[], object]], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler, self._record, self._failures, self._submit = sampler, record, failures, submit
        self._clock = clock
        self._due_s = -math.inf
        self._is_waiting = False  # a sample, to be taken
        self._is_stopped = False
        submit("system metrics", sampler.sample)  # the next sample's rates are computed from its totals

    def look(self) -> None:
        """Have a sample taken if one is due; called with each heartbeat."""
        if not self._is_stopped and not self._is_waiting and self._clock() >= self._due_s:
            self._sample_in_background()

    def stop(self) -> None:
        """Have a last sample taken, so that a short training has one."""
        self._is_stopped = True
        self._sample_in_background()

    def _sample_in_background(self) -> None:
        self._is_waiting = True
        # The run may be closed meanwhile.
        with suppress(ClosedError):
            self._submit("system metrics", partial(self._sample, self._is_stopped))

    def _sample(self, is_last: bool) -> None:
        try:
            if self._record(self._sampler.sample(), is_last):
                # Heartbeats come a little late, and every second one is to have a sample.
                self._due_s = self._clock() + PERIOD_S - BEAT_S / 2
        except ClosedError:
            return  # the process ends without having closed the run
        except Exception as error:  # raised by the writer
            self._failures.count(f"system metrics: {type(error).__name__}: {error}")
        finally:
            self._is_waiting = False

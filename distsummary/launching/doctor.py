"""Whether a run can be recorded on these hosts: one line a check, each with its remedy.

`examine` compares facts of hosts (`host_facts`) and does nothing else; `doctor` takes those of this host, and
`actor_doctor` those of a cluster's nodes.
"""

import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.base.publish import temporary_name
from distsummary.errors import RunDirError
from distsummary.launching.host_facts import host_facts

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
Facts = Mapping[str, Any]  # of one host, as of `host_facts`, with what the cluster adds

WATCH_S = 2.0  # how long each host watches the beacon
BEAT_S = 0.1
OPEN_FILES = 4096
FREE_BYTES = 1 << 30
SHARED_MEMORY = 1 << 29
CLOCK_S = 1.0
STALE_S = 1.0
ROUND_TRIP_MS = 50.0
MB_PER_S = 10.0
OBJECT_MOUNTS = ("fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.mount-s3", "fuse.blobfuse2", "fuse.goofys")


class Check(NamedTuple):
    """A check: its level (OK, NOTE, WARNING, ERROR), what was found on which hosts, and what to do."""

    name: str
    level: str
    found: str
    remedy: str = ""

    def as_line(self) -> str:
        """The check as one line for a terminal."""
        line = f"{self.level:<8} {self.name:<14} {self.found}"
        return f"{line}; {self.remedy}" if self.remedy else line


class Diagnosis(NamedTuple):
    """All checks, and the facts that they are of."""

    checks: list[Check]
    hosts: list[Facts]

    @property
    def exit_code(self) -> int:
        """1 if a check is an ERROR, else 0."""
        return int(any(check.level == ERROR for check in self.checks))


def doctor(run_dir: str | os.PathLike[str] | None) -> Diagnosis:
    """Examine this host, without Ray, for a run that is to be in `run_dir`, which need not exist yet.

    Raises RunDirError if `run_dir`, or what it is to be in, is a file.
    """
    with beacon_in(run_dir) as (directory, beacon):
        hosts: list[Facts] = [host_facts(directory, beacon, watch_s=WATCH_S if beacon else 0.0)]
    return Diagnosis(examine(hosts), hosts)


@contextmanager
def beacon_in(run_dir: str | os.PathLike[str] | None) -> Iterator[tuple[str | None, str | None]]:
    """The directory to try, which exists, and a file there that grows and is locked during the block.

    The file is None where none can be written: `host_facts` of this host then names the reason. Raises
    RunDirError if `run_dir` is a file.
    """
    if run_dir is None:
        yield None, None
        return
    directory = Path(run_dir).absolute()
    while not directory.exists():
        directory = directory.parent
    if not directory.is_dir():
        raise RunDirError(f"{directory} is a file, not a directory that a run can be in: name another")
    path, ended = temporary_name(directory), threading.Event()
    try:
        file = open(path, "xb", buffering=0)  # noqa: SIM115  # closed below
    except OSError:
        yield str(directory), None
        return

    def beat() -> None:
        while not ended.wait(BEAT_S):
            try:
                file.write(b".")
            except OSError:
                return  # the disk is full, which the facts say

    thread = threading.Thread(target=beat, name="distsummary-doctor", daemon=True)
    try:
        with suppress(OSError):  # a file system without locks: the facts of this host name it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        thread.start()
        yield str(directory), str(path)
    finally:
        ended.set()
        thread.join()
        file.close()
        path.unlink(missing_ok=True)


def examine(hosts: Sequence[Facts], silent: Mapping[str, str] | None = None) -> list[Check]:
    """The checks of these hosts; the first asks the others. `silent`: host -> why it has no facts."""
    checks = [_silent(silent or {})] if silent else []
    if not hosts:
        return checks
    checks += _versions(hosts)
    checks += [
        _limit(
            hosts,
            "open files",
            "open_files",
            OPEN_FILES,
            "{:,}".format,
            "raise it: ulimit -n 65536 (LimitNOFILE in systemd)",
        ),
        _limit(
            hosts,
            "shared memory",
            "shared_memory",
            SHARED_MEMORY,
            _bytes,
            "give containers more: --shm-size, or an emptyDir of medium Memory",
        ),
        _clocks(hosts),
        *_gpus(hosts),
        _flight_recorder(hosts),
    ]
    if any(facts.get("round_trip_ms") is not None for facts in hosts):
        checks += [_network(hosts)]
    if hosts and hosts[0]["directory"] is not None:
        checks += _directories(hosts)
    return checks


def _silent(silent: Mapping[str, str]) -> Check:
    groups = _by(silent, lambda host: silent[host])
    found = ". ".join(f"{_listed(hosts)}: {reason}" for reason, hosts in groups.items())
    return Check("nodes", ERROR, found, "restart Ray on these nodes, or remove them from the cluster")


def _by(items: Any, key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def _listed(names: Sequence[str]) -> str:
    """Names, of many the first four."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} others" if len(names) > 4 else "")


def _names(hosts: Sequence[Facts]) -> str:
    return _listed([facts["host"] for facts in hosts])


def _versions(hosts: Sequence[Facts]) -> Iterator[Check]:
    """Everything that a driver and its ranks must have alike."""
    differing = False
    for name in ("python", "distsummary", "ray", "torch", "numpy", "nccl"):

        def of(facts: Facts, name: str = name) -> str | None:
            version: str | None = {
                **facts["versions"],
                "python": facts["python"],
                "nccl": facts["gpus"].get("nccl"),
            }.get(name)
            return version

        # A head node without GPUs has no NCCL.
        groups = _by([facts for facts in hosts if name != "nccl" or of(facts)], of)
        if None in groups and name in ("distsummary", "ray"):
            if name == "ray" and len(hosts) == 1:
                continue  # a host without Ray records too
            differing = True
            remedy = (
                "install it there, or name it in runtime_env" if name == "distsummary" else "install it there"
            )
            yield Check(name, ERROR, f"not installed on {_names(groups[None])}", remedy)
        elif len(groups) > 1:
            differing = True
            found = ", ".join(f"{version or 'none'} on {_names(same)}" for version, same in groups.items())
            level = WARNING if name in ("numpy", "nccl") else ERROR
            yield Check(name, level, found, f"install one version of {name} on all nodes (one image)")
    if not differing:
        shown = hosts[0]["versions"]
        found = f"Python {hosts[0]['python']}" + "".join(
            f", {name} {shown[name]}" for name in shown if shown[name]
        )
        yield Check("versions", OK, f"{found} on {_many(len(hosts))}")


def _many(count: int) -> str:
    return "this host" if count == 1 else f"all {count} hosts"


def _bytes(count: float) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _limit(
    hosts: Sequence[Facts], name: str, key: str, low: float, shown: Callable[[float], str], remedy: str
) -> Check:
    """A number of each host that must not be below `low`."""
    few = [facts for facts in hosts if facts[key] is not None and facts[key] < low]
    if few:
        found = ", ".join(f"{shown(facts[key])} on {facts['host']}" for facts in few[:4])
        return Check(name, WARNING, f"{found} (at least {shown(low)} is asked)", remedy)
    values = [facts[key] for facts in hosts if facts[key] is not None]
    return Check(
        name, OK if values else NOTE, f"at least {shown(min(values))}" if values else "cannot be read here"
    )


def _clocks(hosts: Sequence[Facts]) -> Check:
    """Clocks next to the first host's, and each next to the file system's."""
    apart = {
        facts["host"]: facts["clock_ahead_s"]
        for facts in hosts
        if abs(facts.get("clock_ahead_s", 0.0)) > CLOCK_S + facts.get("round_trip_ms", 0.0) / 1e3
    }
    remedy = "let chrony or ntpd set the clocks of all hosts"
    if apart:
        found = ", ".join(
            f"{host} is {abs(s):.0f} s {'ahead of' if s > 0 else 'behind'}" for host, s in apart.items()
        )
        return Check("clocks", ERROR, f"{found} {hosts[0]['host']}", remedy)
    of_files = {
        facts["host"]: facts["directory"]["clock_behind_s"]
        for facts in hosts
        if abs((facts["directory"] or {}).get("clock_behind_s", 0.0)) > CLOCK_S
    }
    if of_files:
        found = ", ".join(f"{host} {abs(s):.0f} s" for host, s in of_files.items())
        return Check("clocks", WARNING, f"apart from the file system's clock: {found}", remedy)
    return Check("clocks", OK, f"within {CLOCK_S:g} s")


def _gpus(hosts: Sequence[Facts]) -> Iterator[Check]:
    """GPUs that Ray offers, the driver has, and torch sees."""
    wrong = False
    for facts in hosts:
        gpus, offered = facts["gpus"], facts.get("ray_gpus")
        seen = gpus["torch"]
        expected = gpus["driver"] if offered is None else max(offered, gpus["driver"])
        if expected and seen is None and facts["versions"]["torch"]:
            wrong = True
            yield Check(
                "gpus",
                ERROR,
                f"torch cannot be asked on {facts['host']}: {gpus.get('failed')}",
                "run `python -c 'import torch'` there",
            )
        elif seen is not None and seen < expected:
            wrong = True
            by = f"Ray offers {offered:g}" if offered is not None else f"the driver has {gpus['driver']}"
            why = (
                "torch was built without CUDA"
                if gpus["cuda"] == "None"
                else "check the driver and CUDA's version"
            )
            yield Check(
                "gpus",
                ERROR,
                f"{facts['host']}: {by}, torch sees {seen}",
                f"{why}, or start Ray with the GPUs that there are (--num-gpus)",
            )
        elif offered is not None and seen is not None and offered < seen:
            wrong = True
            yield Check(
                "gpus",
                WARNING,
                f"{facts['host']}: torch sees {seen}, Ray offers {offered:g}",
                "start Ray with --num-gpus",
            )
    if not wrong:
        total = sum(facts["gpus"]["torch"] or 0 for facts in hosts)
        yield Check("gpus", OK, f"{total} seen by torch" if total else "none, and none offered")


def _flight_recorder(hosts: Sequence[Facts]) -> Check:
    off = [facts for facts in hosts if facts["flight_recorder"] == "0"]
    if off:
        found = f"torch's flight recorder is off on {_names(off)}: a hang then names no collective"
        return Check("hangs", WARNING, found, "unset TORCH_FR_BUFFER_SIZE, or set it to 2000")
    return Check("hangs", OK, "torch's flight recorder is not switched off")


def _network(hosts: Sequence[Facts]) -> Check:
    """Connections of the other hosts to the first one, where the run is."""
    home = hosts[0]["host"]
    blocked = [facts for facts in hosts if facts.get("blocked")]
    if blocked:
        found = ", ".join(
            f"{facts['host']} cannot connect to {home}: {facts['blocked']}" for facts in blocked
        )
        return Check(
            "network", ERROR, found, "open the ports between the nodes: torch and Ray use any above 1024"
        )
    slow = [facts for facts in hosts if (facts.get("round_trip_ms") or 0) > ROUND_TRIP_MS]
    slow += [facts for facts in hosts if (facts.get("mb_per_s") or MB_PER_S) < MB_PER_S and facts not in slow]
    shown = ", ".join(
        f"{facts['host']} {facts['round_trip_ms']:.1f} ms, {facts['mb_per_s']:.0f} MB/s"
        for facts in (slow or hosts)[:4]
    )
    if slow:
        return Check("network", WARNING, f"{shown} to {home}", "look for a busy or distant node")
    return Check("network", OK, f"round trip and throughput to {home}: {shown}")


def _directories(hosts: Sequence[Facts]) -> Iterator[Check]:
    """What the directory of the run can do, and whether all hosts have the same one."""
    path = hosts[0]["directory"]["path"]
    for facts in hosts:
        there = facts["directory"]
        if "missing" in there:
            continue
        if there["failed"]:
            found = ", ".join(f"{name}: {why}" for name, why in there["failed"].items())
            yield Check(
                "directory", ERROR, f"{facts['host']}, {path} ({there['type']}): {found}", _remedy_of(there)
            )
        elif there["free"] < FREE_BYTES:
            yield Check(
                "directory",
                WARNING,
                f"{_bytes(there['free'])} free in {path} on {facts['host']}",
                "free some, or choose another directory",
            )
    apart = [
        facts
        for facts in hosts
        if "missing" in facts["directory"] or (facts["directory"]["beacon"] or {}).get("seen") is False
    ]
    if apart:
        yield Check(
            "shared",
            ERROR,
            f"{_names(apart)} {'does' if len(apart) == 1 else 'do'} not see {path} of {hosts[0]['host']}",
            "name a directory that all nodes mount",
        )
        return
    beacons = [(facts, facts["directory"]["beacon"]) for facts in hosts if facts["directory"]["beacon"]]
    late = [(facts, beacon) for facts, beacon in beacons if beacon["stale_s"] > STALE_S]
    unlocked = [facts for facts, beacon in beacons if not beacon["locked"]]
    if late:
        found = ", ".join(f"{facts['host']} {beacon['stale_s']:.1f} s" for facts, beacon in late)
        yield Check(
            "shared",
            WARNING,
            f"what another host writes to {path} is seen late: {found}",
            "mount it with actimeo=1",
        )
    if unlocked:
        yield Check(
            "shared",
            ERROR,
            f"locks of {hosts[0]['host']} in {path} are not seen on {_names(unlocked)}",
            "mount it with locks (NFS: without nolock)",
        )
    if beacons and not late and not unlocked:
        kind = hosts[0]["directory"]["type"]
        free = _bytes(min(facts["directory"]["free"] for facts in hosts))
        fsync = max(facts["directory"].get("fsync_ms", 0.0) for facts in hosts)
        yield Check(
            "directory",
            OK,
            f"{path} ({kind}), {free} free, fsync {fsync:.1f} ms, the same on {_many(len(hosts))}",
        )


def _remedy_of(there: Mapping[str, Any]) -> str:
    """What to do about the operations that failed, by the file system and the first reason."""
    reason = next(iter(there["failed"].values())).lower()
    if there["type"] in OBJECT_MOUNTS:
        return "a mounted bucket is no file system: use a disk, or NFS"
    if "space" in reason or "quota" in reason:
        return "free some space"
    if "permitted" in reason or "denied" in reason or "read-only" in reason:
        return "give the user of the training the right to write there"
    return "use a file system that has these operations (ext4, xfs, NFS 4, Lustre)"

"""Whether a run can be recorded on these hosts: one line a check, each with its remedy.

`examine` compares facts of hosts (`host_facts`) and does nothing else; `doctor` takes those of this host, and
`actor_doctor` those of a cluster's nodes.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distsummary.errors import RunDirError
from distsummary.launching.host_facts import Shown, host_facts
from distsummary.storage.place import LOCAL

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
Facts = Mapping[str, Any]  # of one host, as of `host_facts`, with what the cluster adds

WATCH_S = 2.0  # how long each host watches the beacon
# The home of a run of 1,024 ranks holds two event files of each open, and a loader's workers a file a batch.
OPEN_FILES = 4096
# A rank writes 2.4 KB a step by default: that is 400,000 steps.
FREE_BYTES = 1 << 30
# Containers have 64 MiB, of which a loader's worker takes a batch; Ray's objects go to the disk without it.
SHARED_MEMORY = 1 << 29
# Times of several hosts are compared in steps and pauses of seconds; NTP keeps milliseconds.
CLOCK_S = 1.0
# A live merge waits 30 s for a rank, and a hang is seen after seconds: older attributes are seen as silence.
STALE_S = 1.0
# A ship has an exchange with the home a second, of 16 MiB at most: 1.6 s at 10 MB/s.
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


def doctor(run_dir: str | os.PathLike[str] | None, *, clean: bool = False) -> Diagnosis:
    """Examine this host, without Ray, for a run that is to be in `run_dir`, which need not exist yet.

    `clean`: remove the spools that trainings have left behind. Raises RunDirError if `run_dir`, or
    what it is to be in, is a file.
    """
    try:
        with Shown(None if run_dir is None else os.fspath(run_dir)) as shown:
            watch_s = WATCH_S if shown.beacon else 0.0
            hosts: list[Facts] = [host_facts(shown.directory, shown.beacon, watch_s=watch_s, clean=clean)]
    except NotADirectoryError as error:
        raise not_a_directory(error) from None
    return Diagnosis(examine(hosts), hosts)


def not_a_directory(error: NotADirectoryError) -> RunDirError:
    """The error of a run dir that is a file, or below one."""
    return RunDirError(f"{error} is a file, not a directory that a run can be in: name another")


def examine(hosts: Sequence[Facts], silent: Mapping[str, str] | None = None) -> list[Check]:
    """The checks of these hosts, of which the first is the home. `silent`: host -> why it has no facts."""
    checks = [_silent(silent or {})] if silent else []
    if not hosts:
        return checks
    checks += _versions(hosts)
    checks += [
        _limit(
            hosts,
            "open files",
            lambda facts: facts["open_files"],
            OPEN_FILES,
            "{:,}".format,
            "raise it: ulimit -n 65536 (LimitNOFILE in systemd)",
        ),
        _limit(
            hosts,
            "shared memory",
            lambda facts: facts["shared_memory"],
            SHARED_MEMORY,
            _bytes,
            "give containers more: --shm-size, or an emptyDir of medium Memory",
        ),
        _clocks(hosts),
        *_gpus(hosts),
        _flight_recorder(hosts),
    ]
    if any("blocked" in facts for facts in hosts):
        checks += [_network(hosts)]
    if hosts[0]["directory"] is not None:
        checks += _directories(hosts)
    return [*checks, *_spools(hosts)]


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
    states = _by([facts for facts in hosts if facts["source"]], lambda facts: facts["source"])
    if len(states) > 1 and len(_by(hosts, lambda facts: facts["versions"]["distsummary"])) == 1:
        differing = True
        found = ", ".join(f"{source} on {_names(same)}" for source, same in states.items())
        remedy = "install one state of it on all nodes (one image)"
        yield Check("distsummary", ERROR, f"one version, but different source: {found}", remedy)
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
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 26 else f"{count / (1 << 20):.1f} MiB"


def _limit(
    hosts: Sequence[Facts],
    name: str,
    of: Callable[[Facts], float | None],
    low: float,
    shown: Callable[[float], str],
    remedy: str,
) -> Check:
    """A number of each host that must not be below `low`."""
    values = {facts["host"]: value for facts in hosts if (value := of(facts)) is not None}
    if few := {host: value for host, value in values.items() if value < low}:
        found = _listed([f"{shown(value)} on {host}" for host, value in few.items()])
        return Check(name, WARNING, f"{found} (at least {shown(low)} is asked)", remedy)
    if not values:
        return Check(name, NOTE, "cannot be read here")
    return Check(name, OK, f"at least {shown(min(values.values()))}")


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
    """Connections of the other hosts to the home."""
    home = hosts[0]["host"]
    blocked = [facts for facts in hosts if facts.get("blocked")]
    if blocked:
        groups = _by(blocked, lambda facts: facts["blocked"])
        found = ". ".join(
            f"{_names(same)} cannot connect to {home}: {reason}" for reason, same in groups.items()
        )
        remedy = "open the ports between the nodes: torch and Ray use any above 1024"
        return Check("network", ERROR, found, remedy)
    measured = [facts for facts in hosts if "round_trip_ms" in facts]
    slow = [
        facts for facts in measured if facts["round_trip_ms"] > ROUND_TRIP_MS or facts["mb_per_s"] < MB_PER_S
    ]
    shown = _listed(
        [
            f"{facts['host']} {facts['round_trip_ms']:.1f} ms, {facts['mb_per_s']:.0f} MB/s"
            for facts in sorted(slow or measured, key=lambda facts: -facts["round_trip_ms"])
        ]
    )
    if slow:
        return Check("network", WARNING, f"{shown} to {home}", "look for a busy or distant node")
    if len(measured) < len(hosts) - 1:
        return Check(
            "network", NOTE, f"{len(measured)} of {len(hosts) - 1} hosts had time to measure: {shown}"
        )
    return Check("network", OK, f"round trip and throughput to {home}: {shown}")


def _directories(hosts: Sequence[Facts]) -> Iterator[Check]:
    """What the directory of the run can do, and whether all hosts have the same one."""
    path = hosts[0]["directory"]["path"]
    seeing = [facts for facts in hosts if _sees(facts)]
    for facts in seeing:
        there = facts["directory"]
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
    yield from _home(hosts, path)
    beacons = [(facts, facts["directory"]["beacon"]) for facts in seeing if facts["directory"]["beacon"]]
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
    there = [facts["directory"] for facts in seeing]
    if not any(one["failed"] or one["free"] < FREE_BYTES for one in there):
        free, fsync_ms = min(one["free"] for one in there), max(one.get("fsync_ms", 0.0) for one in there)
        where = _many(len(hosts)) if len(seeing) == len(hosts) else _names(seeing)
        found = f"{path} ({there[0]['type']}), {_bytes(free)} free, fsync {fsync_ms:.1f} ms on {where}"
        yield Check("directory", OK, found)


def _sees(facts: Facts) -> bool:
    """Whether a host sees the directory of the home."""
    there = facts["directory"]
    return "missing" not in there and (there["beacon"] or {}).get("seen") is not False


def _home(hosts: Sequence[Facts], path: str) -> Iterator[Check]:
    """Where the run is whole, why, and what other hosts do that do not see it there."""
    home, apart = hosts[0], [facts for facts in hosts if not _sees(facts)]
    if len(hosts) == 1 or home["directory"]["beacon"] is None:
        return  # of the latter, the reason is an error of the directory
    if not apart:
        yield Check("home", OK, f"{path} itself, which {_many(len(hosts))} see")
        return
    unseen = f"{_names(apart)} {'does' if len(apart) == 1 else 'do'} not see"
    if home["directory"]["type"] not in LOCAL and not any(
        _sees(facts) and facts["is_head"] for facts in hosts
    ):
        yield Check(
            "home",
            ERROR,
            f"{unseen} {path} of {home['host']}, nor does the cluster's head: the run would be in two parts",
            "mount it on all nodes, or set DISTSUMMARY_HOME to a node",
        )
        return
    sent = f"{unseen} it: ranks there write to a spool, which is sent"
    low = [facts for facts in apart if facts["spools"] and facts["spools"]["free"] < FREE_BYTES]
    if low:
        found = _listed([f"{_bytes(facts['spools']['free'])} on {facts['host']}" for facts in low])
        yield Check("home", WARNING, f"{found} free for spools", "free some, or set DISTSUMMARY_SPOOL there")
    elif len(apart) < len(hosts) - 1:
        remedy = f"mount {path} there, if it is to be shared"
        yield Check("home", WARNING, f"{home['host']}, {home['why_home']}. {sent}", remedy)
    else:
        yield Check("home", OK, f"{home['host']}, {home['why_home']}. {sent}")


def _spools(hosts: Sequence[Facts]) -> Iterator[Check]:
    """What trainings have left in spools: a ship removes its spool when all of it is at home."""
    for key, level, text, remedy in (
        ("removed", OK, "removed", ""),
        (
            "left",
            WARNING,
            "not all of which is at home",
            "distsummary sync RUN_DIR has them sent, distsummary doctor --clean removes them",
        ),
    ):
        found = [
            f"{_bytes(size)} in {facts['spools']['place']}/{name} on {facts['host']}"
            for facts in hosts
            for name, size in facts["spools"].get(key, {}).items()
        ]
        if found:
            yield Check("spools", level, f"{text}: {_listed(found)}", remedy)


def _remedy_of(there: Mapping[str, Any]) -> str:
    """What to do about the operations that failed, by the file system and the first reason."""
    reason = next(iter(there["failed"].values())).lower()
    if there["type"] in OBJECT_MOUNTS:
        return "a mounted bucket is no file system: use a disk, or NFS"
    if "space" in reason or "quota" in reason:
        return "free some space"
    if "create" in there["failed"] and ("permitted" in reason or "denied" in reason or "read-only" in reason):
        return "give the user of the training the right to write there"
    return "use a file system that has these operations (ext4, xfs, NFS 4, Lustre)"

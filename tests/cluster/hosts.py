"""A laboratory of hosts that share nothing; each has its own network, /tmp, /home, /dev/shm, name, boot id.

Hosts are namespaces of this machine, one of which can be killed; it takes root.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT

PORT = 6379
SHARED = "/tmp/shared"  # on hosts that are given the same directory
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "300",  # of a busy machine
    "OMP_NUM_THREADS": "1",
    "HOME": "/home/user",
}


def can_make_hosts() -> bool:
    """Whether this process may make namespaces of each kind that a host has."""
    if os.geteuid() != 0:
        return False
    try:
        made = subprocess.run(
            ["unshare", "-m", "-u", "-p", "-i", "-n", "--fork", "true"], capture_output=True
        )
        return made.returncode == 0 and subprocess.run(["ip", "-V"], capture_output=True).returncode == 0
    except OSError:
        return False


class Hosts:
    """Hosts h0, h1, ... at 10.78.0.10, .11, ...; a context that ends all of their processes."""

    def __init__(self, directory: Path, count: int, *, is_shared: bool = False) -> None:
        self._directory, self._count, self._is_shared = directory, count, is_shared
        self._tag = f"ds{uuid.uuid4().hex[:4]}"  # before the names of namespaces and links
        self._hub = f"{self._tag}hub"
        self._inits: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        _ip(f"netns add {self._hub}")
        _ip(
            f"-n {self._hub} link add br0 type bridge",
            f"-n {self._hub} link set br0 up",
            f"-n {self._hub} link set lo up",
        )
        (self._directory / "shared").mkdir(parents=True, exist_ok=True)
        try:
            for number in range(self._count):
                self._start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for number in list(self._inits):
            self.kill(number)
        _ip(f"netns del {self._hub}")

    def address(self, number: int) -> str:
        """The address of a host."""
        return f"10.78.0.{10 + number}"

    def run(
        self, number: int, *command: str, timeout: float = 300, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, with the programs of this environment, in its home directory."""
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"PATH": path, "PYTHONPATH": str(ROOT), **QUIET, **(environment or {})}
        inside = ["nsenter", "-t", str(self._init_of(number)), "-m", "-u", "-n", "-i", "-p"]
        assigned = [
            "env", "-C", "/home/user", "-i", *(f"{name}={value}" for name, value in variables.items()),
        ]  # fmt: skip
        return subprocess.run([*inside, *assigned, *command], capture_output=True, text=True, timeout=timeout)

    def start_ray(
        self,
        number: int,
        *options: str,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
    ) -> None:
        """Start the head of a cluster on host 0, or a worker of it on another host, with that ulimit."""
        here = f"--node-ip-address={self.address(number)}"
        role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        if number:
            role = [f"--address={self.address(0)}:{PORT}"]
        command = ["ray", "start", *role, here, "--num-cpus=2", "--object-store-memory=100000000", *options]
        if open_files is not None:
            command = ["prlimit", f"--nofile={open_files}:{open_files}", *command]
        done = self.run(number, *command, environment=environment, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr

    def copy(self, number: int, source: Path, target: str) -> None:
        """Copy a directory of this machine to a host."""
        shutil.copytree(source, self._directory / "shared" / ".copy")
        done = self.run(number, "mv", "/mnt/lab/shared/.copy", target)
        assert done.returncode == 0, done.stderr

    def write(self, path: str, text: str) -> None:
        """Write a file into the directory that hosts share."""
        (self._directory / "shared" / Path(path).relative_to(SHARED)).write_text(text)

    def kill(self, number: int) -> None:
        """End all processes of a host at once, as a power cut does."""
        init = self._inits.pop(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(_child_of(init.pid), signal.SIGKILL)  # the first process of its pid namespace: all end
        init.wait()
        _ip(f"netns del {self._tag}h{number}")

    def cut(self, number: int) -> None:
        """Pull the cable of a host."""
        _ip(f"-n {self._hub} link set {self._tag}v{number} down")

    def mend(self, number: int) -> None:
        """Put the cable of a host back."""
        _ip(f"-n {self._hub} link set {self._tag}v{number} up")

    def _init_of(self, number: int) -> int:
        return _child_of(self._inits[number].pid)

    def _start(self, number: int) -> None:
        name, mine = f"{self._tag}h{number}", self._directory / f"h{number}"
        mine.mkdir(parents=True, exist_ok=True)
        (mine / "boot_id").write_text(f"{uuid.uuid4()}\n")
        lines = [f"{self.address(other)} h{other}" for other in range(self._count)]
        (mine / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        _ip(f"netns add {name}")
        _ip(
            f"link add {self._tag}v{number} type veth peer name eth0 netns {name}",
            f"link set {self._tag}v{number} netns {self._hub}",
        )
        _ip(f"-n {self._hub} link set {self._tag}v{number} master br0 up", f"-n {name} link set lo up")
        _ip(f"-n {name} addr add {self.address(number)}/24 dev eth0", f"-n {name} link set eth0 up")
        shared = f"mkdir -p {SHARED}; mount --bind /mnt/lab/shared {SHARED}" if self._is_shared else "true"
        lab, root, environment = map(shlex.quote, map(str, (self._directory, ROOT, Path(sys.prefix))))
        script = f"""
            set -e; hostname h{number}; mount --make-rprivate /
            mount -t tmpfs lab /mnt; mkdir /mnt/lab /mnt/root /mnt/environment
            mount --bind {lab} /mnt/lab; mount --bind {root} /mnt/root
            mount --bind {environment} /mnt/environment
            mount -t tmpfs -o size=2g tmp /tmp; mkdir -p {root} {environment} {lab}; chmod 1777 /tmp
            mountpoint -q {root} || mount --bind /mnt/root {root}
            mountpoint -q {environment} || mount --bind /mnt/environment {environment}
            mount -t tmpfs -o size=300m home /home; mkdir /home/user; mount -t tmpfs -o size=1g shm /dev/shm
            mount --bind /mnt/lab/h{number}/boot_id /proc/sys/kernel/random/boot_id
            mount --bind /mnt/lab/h{number}/hosts /etc/hosts; {shared}
            touch /mnt/lab/h{number}/ready; sleep infinity & wait"""
        unshare = [
            "unshare", "-m", "-u", "-p", "-i", "--fork", "--mount-proc", "--kill-child", "bash", "-c",
            script,
        ]  # fmt: skip
        with (mine / "log").open("wb") as log:
            init = subprocess.Popen(
                ["ip", "netns", "exec", name, *unshare], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._inits[number] = init
        while not (mine / "ready").exists():
            assert init.poll() is None, (mine / "log").read_text()
            time.sleep(0.02)


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def _child_of(pid: int) -> int:
    """The process that `unshare --fork` has started, below `ip netns exec`, which is replaced by it."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

"""Slurm on the hosts of a laboratory: munge, slurmctld on h0 and slurmd on each."""

import re
import shutil
import time

from tests.cluster.hosts import Hosts

PROGRAMS = ("slurmctld", "slurmd", "munged")
START_S = 60.0
CONTROLLERS = ("freezer", "memory", "cpuset", "cpu", "cpuacct", "devices")

CONFIG = """
ClusterName=lab
SlurmctldHost=h0({head})
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdTimeout=20
{nodes}
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# In the mounts of the host alone; Slurm 22.05 needs the controllers of cgroup v1.
START = """
set -e
mkdir -p /tmp/slurmctld /tmp/slurmd /tmp/munge
mount -t tmpfs slurm /etc/slurm; mount -t tmpfs run /run; mount -t tmpfs log /var/log
mkdir /run/munge /var/log/munge
printf '%s' "$SLURM_CONFIG" > /etc/slurm/slurm.conf; echo CgroupPlugin=cgroup/v1 > /etc/slurm/cgroup.conf
mount -t tmpfs cgroup /sys/fs/cgroup
for one in {controllers}; do mkdir /sys/fs/cgroup/$one; mount -t cgroup -o $one none /sys/fs/cgroup/$one; done
printf '%01024d' 7 > /tmp/munge/key; chmod 400 /tmp/munge/key; chmod 711 /tmp/munge
chown -R munge:munge /tmp/munge /run/munge /var/log/munge; chmod 755 /run/munge
setpriv --reuid=munge --regid=munge --clear-groups munged --key-file=/tmp/munge/key \
  --pid-file=/run/munge/pid --log-file=/tmp/munge/log --seed-file=/tmp/munge/seed
until munge -n | unmunge > /dev/null; do sleep 0.1; done
""".replace("{controllers}", " ".join(CONTROLLERS))


def missing_programs() -> str:
    """Which programs of Slurm are not installed; empty if all are."""
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin") is None)


def start_slurm(hosts: Hosts, count: int, *, cpus: int = 2) -> None:
    """Start Slurm on the first `count` hosts, with so many CPUs each; returns when all nodes are idle."""
    nodes = "\n".join(
        f"NodeName=h{number} NodeAddr={hosts.address(number)} CPUs={cpus} State=UNKNOWN"
        for number in range(count)
    )
    config = CONFIG.format(head=hosts.address(0), nodes=nodes)
    for number in range(count):
        done = hosts.run(number, "bash", "-c", START, environment={"SLURM_CONFIG": config})
        assert done.returncode == 0, done.stderr
    done = hosts.run(0, "slurmctld")
    assert done.returncode == 0, done.stderr
    for number in range(count):
        done = hosts.run(number, "slurmd")
        assert done.returncode == 0, done.stderr
    until = time.monotonic() + START_S
    while (states := hosts.run(0, "sinfo", "-h", "-N", "-o", "%T").stdout.split()) != ["idle"] * count:
        assert time.monotonic() < until, (states, hosts.run(0, "tail", "/tmp/slurmctld.log").stdout)
        time.sleep(0.2)


def sbatch(hosts: Hosts, *arguments: str, timeout: float = 900) -> str:
    """Submit a job from host 0, wait for its end, and return its log; the job must succeed."""
    done = hosts.run(0, "sbatch", "--wait", "--output=%j.log", *arguments, timeout=timeout)
    job = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert job, done.stdout + done.stderr
    log = hosts.run(0, "cat", f"{job[1]}.log").stdout
    assert done.returncode == 0, log + done.stderr
    return log

"""A run dir that is not the same directory for all processes of a job is refused, with the remedy."""

import contextlib
import ctypes
import os
import shutil
import subprocess

import pytest
import ray

import distsummary as ds
from distsummary import Topology
from distsummary.aggregate.actor import AggregatorClient
from distsummary.aggregate.actor_aggregator import NAMESPACE, actor_name
from distsummary.errors import InvalidValueError, RunDirError
from distsummary.rundir import admission
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import LAUNCH_ID


def by_init(path: str) -> None:
    ds.init(path).close()


def by_collector(path: str) -> None:
    ds.SummaryCollector(path).close()


@pytest.mark.parametrize(("record", "field"), [(by_init, "run_dir"), (by_collector, "summary_dir")])
def test_a_relative_run_dir_in_rays_copy_of_the_working_directory_is_refused(tmp_path, record, field):
    """Ray removes that copy with all that was recorded there."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "data.txt").write_text("1")
    package = shutil.make_archive(str(tmp_path / "package"), "zip", own)
    in_copy = ray.remote(num_cpus=0, runtime_env={"working_dir": f"file://{package}"})(record)
    with pytest.raises(
        InvalidValueError, match=rf"{field} must be outside of .*, got \'runs/a\': .* /shared/runs/a"
    ):
        ray.get(in_copy.remote("runs/a"))
    ray.get(in_copy.remote(str(tmp_path / "runs/a")))


class OtherNode:
    """A process that sees an empty disk of its own at `path`, as a node does where it is not mounted."""

    def mount(self, path: str) -> bool:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS: the mounts of this thread are its own
            return False
        commands = (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "none", path])
        return all(subprocess.run(command, check=False).returncode == 0 for command in commands)

    def record(self, path: str, *, holds_a_run: bool) -> None:
        admission.SHARED_S = 0.5
        os.environ[LAUNCH_ID] = "launch-1"
        if holds_a_run:
            RunDir(path).create().update_manifest(lambda manifest: None)
        list(ds.init(path, rank=1, world_size=2).steps(range(2)))


@pytest.mark.parametrize(("holds_a_run", "seen"), [(False, "no run.json"), (True, "another run.json")])
def test_a_run_dir_that_is_not_shared_is_refused_by_the_rank_on_the_other_node(tmp_path, holds_a_run, seen):
    path = tmp_path / "disk"
    path.mkdir()
    run_dir = RunDir(path / "run")
    node = ray.remote(num_cpus=0)(OtherNode).remote()
    try:
        if not ray.get(node.mount.remote(str(path))):
            pytest.skip("mounting a disk for one process is not permitted here")
        client = AggregatorClient(run_dir.create())
        client.register(Topology(world_size=2, incarnation="launch-1+0", is_incarnation_unique=True))
        with pytest.raises(
            RunDirError, match=rf"is not shared: on .* it holds {seen}, .* that all nodes share"
        ):
            ray.get(node.record.remote(str(run_dir.base), holds_a_run=holds_a_run))
    finally:
        ray.kill(node)
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(actor_name(run_dir), namespace=NAMESPACE), no_restart=True)

"""How a rank arrives at a run whose home is another node: admitted there, it writes to a spool here."""

import hashlib
import os
import pickle
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distsummary.aggregate.merged_files import refuse_foreign_files
from distsummary.base.actor_calls import RayConnection
from distsummary.base.columns import quoted
from distsummary.base.failures import error_line
from distsummary.base.publish import open_own
from distsummary.errors import DistSummaryError, RunDirError
from distsummary.rundir.admission import Admission, admit
from distsummary.rundir.attempts import PROTOCOL
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.timeouts import SHARED_S
from distsummary.rundir.topology import Topology
from distsummary.storage.place import home_node, is_on_local_disk, spool_of

ARRIVE_S = 60.0
LOOK_S = 0.2
MARK = ".home-"  # before the name of a file by which a host sees whether it shares a run dir with the home
OLD_S = 86400.0  # a mark of a job that began so long ago is removed


class Arrival(NamedTuple):
    """Where a rank records: the run dir on the node `host`, and the rank as the run shows it."""

    base: str
    topology: Topology
    host: str


def arrive(
    run_dir: str | os.PathLike[str],
    topology: Topology,
    make: Callable[[str, Topology], RunDir],
    *,
    on_existing: str,
    resumes: bool,
    door: str,
    is_private: bool,
) -> Admission | None:
    """The admission of a rank of a job on Ray, decided on the node on which the run is whole.

    Returns None if that is this node. Raises what `make` and `admit` raise there, and RunDirError if that
    node has another version of distsummary, or none.

    Args:
        run_dir: what the user named. make: makes it, on the node that is its home.
        is_private: its owner alone may read it.
        on_existing, resumes, door: see `admit`.
    """
    path = os.path.abspath(os.path.expanduser(run_dir))
    connection = RayConnection()
    with connection.call():
        here = ray.get_runtime_context().get_node_id()
        nodes = ray.nodes()
        node = home_node(nodes, here, Path(path))
        if node == here:
            return None
        job = f"{ray.get_runtime_context().get_job_id()}{topology.incarnation}"
        mark = MARK + hashlib.blake2b(job.encode(), digest_size=8).hexdigest()
        task = ray.remote(_admit_here).options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        )
        # As bytes, which a node with another version may not be able to read.
        given = pickle.dumps((path, topology, make, mark, on_existing, resumes, door, is_private))
        asked = task.remote(PROTOCOL, platform.node(), given)
    try:
        arrival: Arrival = connection.result(asked, ARRIVE_S)
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, DistSummaryError):
            raise cause from None
        address = next(one["NodeManagerAddress"] for one in nodes if one["NodeID"] == node)
        raise RunDirError(
            f"{path}: its home, the node {address}, admits no rank: {error_line(cause or error)}; all nodes "
            f"need the same version of distsummary: distsummary doctor {quoted(path)} --address auto"
        ) from error
    base = Path(arrival.base)
    found = RunDir(base) if _shows(base / mark) else RunDir(spool_of(base, node), home=base)
    admission = Admission(found, arrival.topology, door=door, resumes=resumes)
    if not resumes:
        admission.refuse_open()
    return admission


def _admit_here(protocol: int, host: str, given: bytes) -> Arrival:
    """Admit a rank of a host whose `arrive` is of this protocol."""
    here = platform.node()
    if protocol != PROTOCOL:
        raise RunDirError(
            f"{here}, the home of the run, and {host} have different versions of distsummary: protocols "
            f"{PROTOCOL} and {protocol}; install one version on all nodes"
        )
    try:
        return _admit(*pickle.loads(given))
    except DistSummaryError as error:
        # Else one would look at the host of the rank.
        error.args = (f"at the home of the run, {here}: {error}", *error.args[1:])
        raise


def _admit(
    path: str,
    topology: Topology,
    make: Callable[[str, Topology], RunDir],
    mark: str,
    on_existing: str,
    resumes: bool,
    door: str,
    is_private: bool,
) -> Arrival:
    found = admit(make(path, topology), topology, on_existing=on_existing, resumes=resumes, door=door)
    base = found.run_dir.base
    if is_private:
        found.run_dir.make_private()
    merged = found.run_dir.writer_dir(topology.role, 0, 1)
    if topology.world_size > 1 and merged.is_dir():
        refuse_foreign_files(merged)
    for old in base.glob(f"{MARK}*"):
        if old.name != mark and time.time() - old.stat().st_mtime > OLD_S:
            old.unlink(missing_ok=True)
    os.close(open_own(base / mark, os.O_WRONLY))
    return Arrival(str(base), found.topology, platform.node())


def _shows(mark: Path) -> bool:
    """Whether this host sees a file of the home; on a network file system, it may be there late."""
    until = time.monotonic() + (0.0 if is_on_local_disk(mark.parent) else SHARED_S)
    while not mark.exists():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True

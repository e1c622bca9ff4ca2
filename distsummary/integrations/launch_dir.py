"""The run dir of a launch: what {time} stands for, on all of its ranks and hosts, and after restarts."""

from distsummary.errors import DistSummaryError
from distsummary.rundir.run_dir import TIME, RunDir, dated_run_dir
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology, launch_token


def launch_dir(path: str, topology: Topology) -> str:
    """The run dir of this launch in place of a path such as runs/{time}; other paths stay as they are.

    Ranks agree on it by what names their launch. A name that may come again, such as an address and a port,
    counts while the run that it had last is in progress, and for a restart.

    Raises the errors of `dated_run_dir`.
    """
    if TIME not in path:
        return path
    token, is_unique = launch_token(topology)
    return str(dated_run_dir(path, token, is_over=None if is_unique else is_over).base)


def is_over(run_dir: RunDir) -> bool:
    """Whether a run has begun, and none of its ranks runs any more."""
    try:
        newest = read_run(run_dir).newest
    except (DistSummaryError, OSError):  # it was removed, or is none
        return True
    return newest is not None and newest.state != "running"

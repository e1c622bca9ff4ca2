"""Recognises the ends of ranks that follow from the end of another rank, which is to be reported first."""

import re

# What gloo, NCCL, MPI, the store of torch.distributed and Ray raise where another process is gone.
_PEER_IS_GONE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|gloo/transport|gloo.*timed? ?out|"
    r"nccl(Remote|System)Error|remote process (exited|has failed)|NCCL communicator was aborted|"
    r"watchdog caught collective|collective operation timeout|monitoredBarrier|"
    r"Dist(Network|Store|Backend)Error|TCPStore|socket timeout|socket has failed|sendBytes failed|"
    r"recvValue failed|failed to recv|timed out waiting|wait timeout after|"
    r"(Actor(Died|Unavailable)|WorkerCrashed|NodeDied|OwnerDied)Error|MPI_ERR_PROC_FAILED|"
    r"^stopped: ",  # by the launcher
    re.IGNORECASE,
)


def follows_from_another(error: str) -> bool:
    """Whether an error, given as text, says that another rank is gone, not what is wrong with this one."""
    return _PEER_IS_GONE.search(error) is not None

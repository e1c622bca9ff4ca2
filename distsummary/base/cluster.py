"""The Ray cluster that this process was started for, if it answers soon, and one for this process alone."""

import re
import socket
import time
from contextlib import suppress
from typing import Any

from distsummary.base.failures import one_line
from distsummary.errors import ClusterError

CONNECT_S = 5.0
LOOPBACK = "127.0.0.1"
_PAUSE_S = 0.5
# How an HTTP/2 client, such as that of gRPC, greets: its preface, and settings without a setting.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HOST_PORT = re.compile(r"(?:ray://)?\[?(?P<host>[^/\[\]]+?)\]?:(?P<port>\d{1,5})")


def reachable_cluster(address: str | None, *, connect_s: float = CONNECT_S) -> str | None:
    """The address of the cluster that this process was started for, as in RAY_ADDRESS, or None.

    Raises ClusterError if nothing accepts a connection there within `connect_s` seconds. Addresses without a
    host and a port, such as "auto", are not tried.
    """
    if address is not None:
        remedy = "correct RAY_ADDRESS, or unset it to join the cluster of this machine"
        check_reachable(address, "RAY_ADDRESS", remedy, connect_s=connect_s)
    return address


def start_local(ray: Any, **options: Any) -> None:  # Any: the module, which this one does not import
    """Start a Ray cluster on this machine for this process; it listens on loopback alone.

    `options`: of `ray.init`.
    """
    from distsummary.base.actor_private import on_loopback

    with on_loopback(LOOPBACK) as alone:
        ray.init(address="local", include_dashboard=False, logging_level="warning", **alone, **options)


def join(ray: Any, **options: Any) -> None:
    """Connect this process to a cluster. Raises ClusterError if it runs another Ray or Python."""
    try:
        ray.init(logging_level="warning", **options)
    except RuntimeError as error:
        if "ersion" not in str(error):
            raise
        raise ClusterError(f"{one_line(str(error))}; install the cluster's versions here") from None


def check_reachable(address: str, source: str, remedy: str, *, connect_s: float = CONNECT_S) -> None:
    """Raise ClusterError if nothing answers at `address` within `connect_s` seconds.

    A kernel accepts connections for a process that is stopped, so that the process has to answer a greeting.
    Addresses without a host and a port, such as "auto", are not tried.

    Args:
        source: where the address is from, such as "RAY_ADDRESS". remedy: what to do about it.
    """
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        return
    deadline = time.monotonic() + connect_s
    while True:
        try:
            left_s = max(0.1, deadline - time.monotonic())
            link = socket.create_connection((match["host"], int(match["port"])), timeout=left_s)
            with link, suppress(ConnectionError):  # who closes the connection lives
                link.sendall(_GREETING)
                link.recv(1)
            return
        except (OSError, OverflowError) as error:
            # A port above 65535 raises OverflowError.
            if time.monotonic() + _PAUSE_S > deadline:
                raise ClusterError(
                    f"the Ray cluster at {source}={address!r} does not answer within {connect_s:g} s "
                    f"({getattr(error, 'strerror', None) or error}); start it (ray start --head), or {remedy}"
                ) from error
            time.sleep(_PAUSE_S)

"""The connection to Ray of this process, which `ray.shutdown()` ends only between two calls of our threads.

Ray does not expect a thread inside one of its calls while another thread shuts it down: the process crashes
(SIGSEGV), starts a second cluster, or is ended by Ray. `ray.shutdown()` therefore waits until no thread is
inside `RayConnection.call`, at most LEAVE_S; calls that come later raise RayGoneError.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from distsummary.base.actor_private import (
    forbid_start,
    guard_shutdown,
    is_disconnected,
    nodes_to_come,
    raylet_log,
)
from distsummary.errors import DistSummaryError

RAY_IS_GONE = "Ray was shut down before the run was closed"
SLICE_S = 0.2  # the longest wait inside one call
LEAVE_S = 5.0  # how long `ray.shutdown()` waits for the calls of other threads
BEGIN_S, SETUP_S, NODE_S = 60.0, 900.0, 1800.0  # see `Beginnings.limit_s`
JOIN_S = 30.0  # how long a node that an autoscaler has started may be in neither of Ray's lists
SHUT_DOWN_S = 5.0  # more than Ray's own shutdown takes without a fault


class RayGoneError(DistSummaryError, ConnectionError):
    """Internal: Ray was shut down, or this process is connected to another cluster."""


class _Calls:
    """How many calls each thread is inside of; `ending` lets a shutdown wait for those of other threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start from scratch: the threads of a parent process do not exist in its fork."""
        self._inside: Counter[int] = Counter()
        self._ending: int | None = None  # the thread that shuts Ray down
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in a call of Ray; waits for a shutdown that has begun in another thread."""
        own = threading.get_ident()
        with self._changed:
            # A thread that is inside may call again: the shutdown waits for it, so it does not wait.
            self._changed.wait_for(lambda: self._ending in (None, own) or own in self._inside, SHUT_DOWN_S)
            self._inside[own] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[own] -= 1
                if not self._inside[own]:
                    del self._inside[own]
                self._changed.notify_all()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Shut Ray down in the block, once the calls of other threads have ended or LEAVE_S is over."""
        own = threading.get_ident()
        with self._changed:
            self._ending = own
            self._changed.wait_for(lambda: not self._inside.keys() - {own}, LEAVE_S)
        try:
            yield
        finally:
            with self._changed:
                self._ending = None
                self._changed.notify_all()


_calls = _Calls()
os.register_at_fork(after_in_child=_calls.forget)


class RayConnection:
    """The cluster that this process is connected to now; calls of Ray from any thread go through it."""

    def __init__(self) -> None:
        self._cluster = ray.get_runtime_context().gcs_address
        self._is_cut_off = False  # whether Ray was seen to be shut down

    def is_open(self) -> bool:
        """Whether the process is still connected to that cluster: in another one, handles are not valid."""
        if self._is_cut_off:
            return False
        with _calls.inside():
            return bool(ray.is_initialized() and ray.get_runtime_context().gcs_address == self._cluster)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Call Ray in the block, for at most about SLICE_S.

        Raises RayGoneError if Ray is or will be shut down: calls that wait then end with SystemExit.
        """
        try:
            with _calls.inside():
                if not self.is_open():
                    raise RayGoneError(RAY_IS_GONE)
                yield
        except (Exception, SystemExit) as error:
            # A shutdown of Ray ends calls that wait with SystemExit; in the main thread it is the user's.
            is_of_user = (
                isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread()
            )
            if is_of_user or (isinstance(error, Exception) and self.is_open()):
                raise
            self._is_cut_off = True
            await_disconnected()
            raise RayGoneError(RAY_IS_GONE) from None

    def result(self, reference: Any, timeout_s: float) -> Any:
        """The value of a reference; raises GetTimeoutError after `timeout_s`, RayGoneError as `call`."""
        deadline = time.monotonic() + timeout_s
        # Short calls one after the other: a shutdown in another thread waits for one of them at most.
        while True:
            left_s = deadline - time.monotonic()
            try:
                with self.call():
                    return ray.get(reference, timeout=max(0.0, min(left_s, SLICE_S)))
            except GetTimeoutError:
                if left_s <= SLICE_S:
                    raise

    def ready(self, references: list[Any], timeout_s: float) -> tuple[list[Any], list[Any]]:
        """The references whose values are there within `timeout_s`, and the others; raises RayGoneError."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            with self.call():
                come, late = ray.wait(
                    references, num_returns=len(references), timeout=max(0.0, min(left_s, SLICE_S))
                )
            if not late or left_s <= SLICE_S:
                return come, late


class Beginnings:
    """The time since processes of Ray, or nodes for them, last began."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._announced, self._nodes = float("-inf"), 0

    def note(self) -> None:
        """A process has begun."""
        self._last = time.monotonic()

    def limit_s(self) -> float | None:
        """The seconds after which none counts as coming, if these have passed; else None.

        They are BEGIN_S, or SETUP_S where the job's runtime_env names what has to be installed, or NODE_S
        while an autoscaler starts nodes.
        """
        now, nodes = time.monotonic(), sum(node["Alive"] for node in ray.nodes())
        if nodes > self._nodes:
            self._nodes, self._last = nodes, now
        if nodes_to_come():
            self._announced = now
        limit = SETUP_S if ray.get_runtime_context().runtime_env else BEGIN_S
        if now - self._announced < JOIN_S:
            limit = NODE_S
        return limit if now - self._last > limit else None


def why_not_begun(needs: Mapping[str, float]) -> str:
    """What Ray says of an actor that has no process: free resources and last errors.

    `needs`: the name of each resource that it reserves -> how much.
    """
    free, whole = ray.available_resources(), ray.cluster_resources()
    wanted = [
        f"{n:g} {name} ({free.get(name, 0):g} of {whole.get(name, 0):g} free)"
        for name, n in needs.items()
        if n
    ]
    found = f"it needs {' and '.join(wanted) or 'neither a CPU nor a GPU of its own'}"
    log = raylet_log()
    lines = log.read_text(errors="replace").splitlines()[-2:] if log is not None and log.exists() else []
    return f"{found}; {log} ends with: {' '.join(lines)}" if lines else found


def await_disconnected() -> None:
    """Wait until another thread's `ray.shutdown()` is over.

    Ray ends the process in which a reference is released before that.
    """
    deadline = time.monotonic() + SHUT_DOWN_S
    while not is_disconnected() and time.monotonic() < deadline:
        time.sleep(0.01)


guard_shutdown(_calls.ending)
forbid_start()

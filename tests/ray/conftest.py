"""One Ray cluster for the session, and no test that leaves an actor in it."""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import pytest
import ray

from distsummary.launching import launcher
from tests.patience import PATIENCE_S

NAMESPACE = "test"
NO_WORK = ("ray::IDLE", "ray::SPILL", "ray::RESTORE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local cluster of four (pretended) CPUs, connected to, in the namespace "test"."""
    # Short, because Ray puts sockets under it and their paths may have 107 bytes only.
    place = tempfile.mkdtemp(prefix="dsray", dir="/tmp")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                ray._private.services, "get_node", partial(found_late, ray._private.services.get_node)
            )
            ray.init(
                address="local",  # a stale /tmp/ray/ray_current_cluster must not make this a connection
                num_cpus=4,
                num_gpus=0,
                include_dashboard=False,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=place,
            )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def found_late(get_node: Callable[[str, str], Any], address: str, node: str) -> Any:
    """The node of a cluster that starts; Ray itself waits 30 s for it, which a busy machine may need."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return get_node(address, node)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Disconnect after the last test of the cluster: a process that is connected works on Ray."""
    if nextitem is None or "ray_cluster" not in getattr(nextitem, "fixturenames", ()):
        ray.shutdown()


@pytest.fixture(autouse=True)
def launch_times(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how long `ds.launch` waits: `launch_times(GRACE_S=0.5)`.

    A busy machine takes long to start the process that reads what dead ranks left, and to end a rank.
    """

    def change(**seconds: float) -> None:
        for name, value in seconds.items():
            monkeypatch.setattr(launcher, name, value)

    change(TRACE_S=PATIENCE_S, INTERRUPT_S=PATIENCE_S)
    return change


@pytest.fixture(autouse=True)
def no_actors_left_behind(ray_cluster: None, leak_grace_s: float) -> Iterator[None]:
    """Fail a test after which a process of the cluster is still an actor's or runs a task."""
    before = busy_workers()
    yield
    deadline = time.monotonic() + leak_grace_s
    while (left := busy_workers() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        pytest.fail(f"actors or tasks left behind by this test: {sorted(left)}", pytrace=False)


def busy_workers() -> set[str]:
    """Title and pid of the workers that are not idle; Ray titles them ray::IDLE or after their class.

    The agents of a node that a test started have such titles too.
    """
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline()).strip()
        except psutil.NoSuchProcess:
            continue
        if title.startswith("ray::") and not title.startswith(NO_WORK):
            found.add(f"{title} (pid {process.pid})")
    return found

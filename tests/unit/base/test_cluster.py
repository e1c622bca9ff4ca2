"""A cluster that does not answer is named within seconds; what cannot be tried is left to Ray."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from distsummary.base import cluster
from distsummary.errors import ClusterError

reachable_cluster = partial(cluster.reachable_cluster, connect_s=0.1)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_named(scheme: str) -> None:
    with socket.socket() as bound:  # no one else can take its port
        bound.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"RAY_ADDRESS='{address}' does not answer .*refused"):
            reachable_cluster(address)
        # The kernel accepts connections for a process that is stopped.
        bound.listen()
        with pytest.raises(ClusterError, match=r"does not answer .*timed out"):
            reachable_cluster(address)


@pytest.mark.parametrize("answer", [b"\0\0\0\4\0\0\0\0\0", b""])
def test_a_server_that_answers_or_hangs_up_is_there(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asked = pool.submit(reachable_cluster, address, connect_s=5.0)
        link, _ = server.accept()
        with link:
            link.sendall(answer)
        assert asked.result() == address


@pytest.mark.parametrize("address", ["256.0.0.1:6379", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_one_is_named(address: str) -> None:
    with pytest.raises(ClusterError, match=f"RAY_ADDRESS='{address}'"):
        reachable_cluster(address)


@pytest.mark.parametrize("address", ["auto", "local", "", "http://127.0.0.1:8265"])
def test_an_address_without_a_host_and_a_port_is_left_to_ray(address: str) -> None:
    assert reachable_cluster(address) == address


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("Version mismatch: started with:\n    Ray: 2.51.0\nThis", "started with: Ray: 2.51.0 This; install"),
        ("Python minor versions differ between client and server", "client and server; install"),
    ],
)
def test_a_cluster_of_other_versions_is_one_sentence(found: str, shown: str) -> None:
    class Ray:
        def init(self, **options: object) -> None:
            raise RuntimeError(found)

    with pytest.raises(ClusterError, match=re.escape(shown)):
        cluster.join(Ray(), address="host:6379")


def test_without_an_address_there_is_no_cluster() -> None:
    assert reachable_cluster(None) is None

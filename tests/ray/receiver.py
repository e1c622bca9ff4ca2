"""An actor that receives digests, in the place of the aggregator."""

import os
from typing import Any

import ray

from distsummary.format.digest import Digest

NAME, NAMESPACE, GROUP = "aggregator-of-this-test", "test", "aside"


def start_receiver(**options: Any) -> Any:
    """Start it; `last_seen` returns the digests so far, `pid` its process."""

    class Receiver:  # in here, so that Ray's processes need not find this module
        def __init__(self) -> None:
            self._last_seen: list[Digest] = []

        def digest(self, digest: Digest) -> None:
            self._last_seen.append(digest)

        def last_seen(self) -> list[Digest]:
            return self._last_seen

        def pid(self) -> int:
            return os.getpid()

    actor = ray.remote(concurrency_groups={GROUP: 1})(Receiver)
    return actor.options(name=NAME, namespace=NAMESPACE, num_cpus=0, **options).remote()

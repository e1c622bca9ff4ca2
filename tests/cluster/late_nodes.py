"""A provider of nodes for Ray's autoscaler, as processes of one host, that come as late as LATE_S says."""

import os
import time
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class LateNodes(FakeMultiNodeProvider):
    """Ray's own provider for tests, after a while."""

    def create_node(self, *args: Any, **named: Any) -> Any:
        """Start nodes, late."""
        time.sleep(float(os.environ["LATE_S"]))
        return super().create_node(*args, **named)

"""The process of a worker on Ray: prepares the process itself, then opens and runs the worker.

Nothing of this module loads NumPy or a framework: their libraries read the number of threads when they are
loaded, which `WorkerProcess.begin` does. A runtime_env could set it too, but Ray starts a process that has
one by a shell line without quotes, which fails if the path of Python has a space.
"""

import ctypes
import os
import sys
from typing import Any

import ray

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# Parameters of glibc's mallopt(3), with values that every glibc accepts.
MALLOC = {-3: 32 << 20, -1: 1 << 30}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


class WorkerProcess:
    """The actor of a worker of class `kind`, which has `begin()` and `work(chunks, *sent)`."""

    _worker: Any

    def __init__(self) -> None:
        os.environ.update(ONE_THREAD)
        keep_freed_memory()

    def place(self) -> str:
        """Where this process runs, as text such as "4711 on 10.0.0.1"."""
        return f"{os.getpid()} on {ray.util.get_node_ip_address()}"

    def begin(self, kind: type, *arguments: Any, gpus: float) -> Any:
        """Make the worker, which gets `gpus`, its number of GPUs; returns what its own `begin` returns."""
        # A process that ran tasks of Ray before may have loaded torch with more threads.
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        self._worker = kind(*arguments, gpus=gpus)
        return self._worker.begin()

    def work(self, *arguments: Any) -> Any:
        """See the worker."""
        return self._worker.work(*arguments)


def keep_freed_memory() -> None:
    """Have glibc keep what one layer of a model frees, for the next one: docs/landscape.md, "Memory"."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in MALLOC.items():
            mallopt(parameter, value)

"""How much memory a worker takes: measured in this process while it tries engines on the model."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distsummary.frameworks.base import framework_of

BARE_BYTES = 400 << 20  # a worker's process that has imported torch; 340 MiB with torch 2.13 on a CPU
COPIES = 4  # of the parameters that an engine holds at least: the model's own, the centre, two directions


class WorkerMemory:
    """The memory that a worker needs.

    Attributes:
        nbytes: bytes of a whole worker process; 0 until something is known.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    @contextmanager
    def measured(self, model: Any) -> Iterator[None]:
        """Measure how much the block, which evaluates points of `model`, adds to this process at its peak.

        Where the system does not report a peak (other than Linux), or the block evaluates nothing, it is
        what an engine holds at least: COPIES of the parameters.
        """
        parameters = framework_of(model).named_parameters(model)
        least = COPIES * sum(int(getattr(value, "nbytes", 0)) for _, value in parameters)
        before = 0
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again, see proc(5)
            before = _status("VmRSS")
        yield
        grown = _status("VmHWM") - before if before else 0
        self.nbytes = BARE_BYTES + max(grown, least)


def _status(field: str) -> int:
    """A field of this process's status in bytes; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    return 0

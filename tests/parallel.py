"""How `pytest -n` spreads the tests over its processes: what stays together, and what comes first."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

RAY = "tests/ray/"
# These files of tests/ray take half of its time, and have a cluster of their own next to that of the others.
APART = (
    "test_absent_modules", "test_crew", "test_endings", "test_landscape", "test_launch",
    "test_summary_landscape",
)  # fmt: skip
# What takes longest begins first, so that no process is left alone with it at the end.
FIRST = (RAY, "tests/demo/", "tests/docs/test_examples.py", "tests/frameworks/", "tests/torture/")


def is_parallel(config: pytest.Config) -> bool:
    """Whether this is one of the processes that `pytest -n` shares the tests out to."""
    return hasattr(config, "workerinput")


def together(nodeid: str) -> str:
    """Tests with the same answer run in one process: those that share a cluster, else those of a file."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/hosts/test_ray"):
        return "tests/hosts/test_ray"  # each starts a cluster with a dashboard: one at a time
    if not nodeid.startswith(RAY):
        return file
    return RAY + ("apart" if file.removeprefix(RAY).removesuffix(".py") in APART else "together")


def turn(nodeid: str) -> int:
    """The place of a test's folder in FIRST; the rest comes last."""
    return next((at for at, begin in enumerate(FIRST) if nodeid.startswith(begin)), len(FIRST))


def make_scheduler(config: pytest.Config, log: object) -> "LoadScopeScheduling":
    """Gives each process the next tests that stay together when it has done its own, in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False  # else by how many they are
    return Together(config, log)

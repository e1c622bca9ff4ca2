"""Processes that train, forked from one that has loaded torch: each would need seconds for that."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.patience import PATIENCE_S

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "distsummary"])


def ensure_server() -> None:
    """Start the process that forks, which lives as long as this one: no test is to have left it."""
    from multiprocessing import forkserver

    forkserver.ensure_running()


@contextmanager
def ranks(
    count: int, main: Callable[..., None], *arguments: object, output: Path | None = None, **variables: str
) -> Iterator[list[ForkServerProcess]]:
    """So many processes, which run `main` with their RANK in the environment; killed at the end.

    Args:
        output: what a rank prints is written to the file of this name and its number.
        variables: further ones of the environment.
    """
    started = [
        _context.Process(
            target=_run,
            args=(main, arguments, variables | {"RANK": str(rank)}, output and f"{output}.{rank}"),
        )
        for rank in range(count)
    ]
    try:
        for process in started:
            process.start()
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def wait(started: Sequence[ForkServerProcess]) -> None:
    """Wait until all have ended, which must be without an error."""
    for process in started:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in started] == [0] * len(started)


def _run(
    main: Callable[..., None], arguments: tuple[object, ...], variables: Mapping[str, str], output: str | None
) -> None:
    os.environ.update(variables)
    with open(output or os.devnull, "w") as file, redirect_stdout(file):
        main(*arguments)

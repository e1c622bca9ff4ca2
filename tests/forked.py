"""Processes that train, forked from one that has loaded torch: each would need seconds for that.

Tests that use them name the fixture `fork_server`.
"""

import atexit
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import distsummary_autoload
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


class Done(NamedTuple):
    """How a script ended."""

    returncode: int
    stdout: str
    stderr: str


def run_script(path: Path, *arguments: object, cwd: Path, **variables: str) -> Done:
    """What `python path arguments` does, except that torch and distsummary are imported already.

    Args:
        cwd: the working directory.
        variables: further ones of the environment.
    """
    with tempfile.TemporaryDirectory() as place:
        outputs = [Path(place, name) for name in ("stdout", "stderr")]
        process = _context.Process(
            target=_as_script, args=(path, [*map(str, arguments)], cwd, outputs, variables)
        )
        process.start()
        try:
            process.join(PATIENCE_S)
            assert process.exitcode is not None, f"{path} has not ended after {PATIENCE_S:g} s"
        finally:
            process.kill()
            process.join()
        return Done(process.exitcode, *(output.read_text() for output in outputs))


def _as_script(
    path: Path, arguments: list[str], cwd: Path, outputs: Sequence[Path], variables: Mapping[str, str]
) -> None:
    os.chdir(cwd)
    os.environ.update(variables)
    for output, stream in zip(outputs, (sys.stdout, sys.stderr), strict=True):
        with open(output, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    interpret(path, arguments)


def interpret(path: Path, arguments: Sequence[str]) -> None:
    """Run a script to the exit of the interpreter, from the end of `import torch` on."""
    sys.argv, sys.path[:0] = [str(path), *arguments], [str(path.parent)]
    script = sys.modules["__main__"] = ModuleType("__main__")
    script.__file__ = str(path)
    distsummary_autoload.start()  # as torch does at the end of its import
    try:
        exec(compile(path.read_bytes(), path, "exec"), vars(script))
    except Exception as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    finally:  # as the interpreter does, and multiprocessing does not
        threading._shutdown()  # type: ignore[attr-defined]  # no public name
        atexit._run_exitfuncs()


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

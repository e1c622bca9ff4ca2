"""Programs that tests run to their end, in processes of their own."""

import os
import subprocess
import sys
from os import PathLike

from tests.patience import PATIENCE_S


def run_program(
    *command: object, code: int | None = 0, cwd: str | PathLike[str] | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """What a command printed; it ends with this exit code, or with any if `code` is None.

    `variables` are added to its environment.
    """
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=PATIENCE_S,
        env=os.environ | variables, cwd=cwd,
    )  # fmt: skip
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def run_python(
    *arguments: object, code: int | None = 0, cwd: str | PathLike[str] | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """The same for `python ARGUMENTS`."""
    return run_program(sys.executable, *arguments, code=code, cwd=cwd, **variables)

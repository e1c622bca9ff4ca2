"""The zero-line door: what torch and Lightning call by entry points, if the variable DISTSUMMARY is set.

It is a file of its own without dependencies, and nothing may leave it: an exception would make torch
unimportable, or end a Trainer. Without the environment variable it does nothing.
"""

import os
import sys


def start() -> None:
    """Called at the end of `import torch`: have the training of this process recorded.

    DISTSUMMARY names the run dir, such as runs/{time}.
    """
    run_dir = os.environ.get("DISTSUMMARY")
    if not run_dir:
        return
    try:
        from distsummary.integrations.zero_lines import arm

        arm(run_dir, os.environ.get("DISTSUMMARY_OPTIONS", ""))
    except Exception as error:  # such as of a package that is missing, damaged or too old
        _report("nothing is recorded", error)


def lightning_callbacks() -> list[object]:
    """Called by each Trainer of Lightning that is made: further callbacks for it."""
    if not os.environ.get("DISTSUMMARY"):
        return []
    try:
        from distsummary.integrations.lightning import DistSummaryCallback

        return [DistSummaryCallback()]
    except Exception as error:
        _report("the Trainer of Lightning is not followed", error)
        return []


def _report(what: str, error: Exception) -> None:
    sys.stderr.write(f"distsummary: {what}: {type(error).__name__}: {error}\n")

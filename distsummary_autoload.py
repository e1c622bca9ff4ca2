"""The zero-line door: torch calls `start` at the end of `import torch`, as the entry point distsummary.

It is a file of its own without dependencies, and nothing may leave it: an exception would make torch
unimportable. Without the environment variable DISTSUMMARY it does nothing.
"""

import os
import sys


def start() -> None:
    """Have the training of this process recorded if DISTSUMMARY names a run dir, such as runs/{time}."""
    run_dir = os.environ.get("DISTSUMMARY")
    if not run_dir:
        return
    try:
        from distsummary.integrations.zero_lines import arm

        arm(run_dir, os.environ.get("DISTSUMMARY_OPTIONS", ""))
    except Exception as error:  # such as of a package that is missing, damaged or too old
        sys.stderr.write(f"distsummary: nothing is recorded: {type(error).__name__}: {error}\n")

"""Runs the command line as `python -m distsummary`."""

import sys

from distsummary.cli import main

sys.exit(main())

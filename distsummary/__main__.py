"""Runs the command line as `python -m distsummary`."""

import sys

from distsummary.cli.main import main

sys.exit(main())

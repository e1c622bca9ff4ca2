"""Tests that MindSpore's own interpreter runs; without MindSpore, none of them is collected."""

import os
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore's log: errors alone
ROOT = str(Path(__file__).parents[2])
if ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # of the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
collect_ignore_glob = [] if find_spec("mindspore") else ["test_*.py"]

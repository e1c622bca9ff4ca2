"""Files of many ranks are read in the order that was asked for, also while the interpreter ends."""

from pathlib import Path

from distsummary.base.many_files import FEW, read_each
from tests.programs import run_python

AT_EXIT = """
import atexit, sys
from pathlib import Path
from distsummary.base.many_files import FEW, read_each

def read(path):
    return int(path.name)

places = [Path(str(number)) for number in range(2 * FEW)]
atexit.register(lambda: print(read_each(read, places) == [*range(2 * FEW)]))
"""


def test_many_files_are_read_in_order() -> None:
    places = [Path(str(number)) for number in range(3 * FEW)]
    assert read_each(lambda path: int(path.name), places) == [*range(3 * FEW)]


def test_a_rank_that_leaves_while_its_process_ends_still_reads_the_others() -> None:
    done = run_python("-c", AT_EXIT)
    assert done.stdout == "True\n"

"""Which line of a stack is the user's, also in what Python writes when native code ends a process."""

import tempfile
from pathlib import Path

import pytest

import distsummary
from distsummary.diagnosis.crash import head_of, read_crash
from distsummary.diagnosis.source_lines import SourceLine, is_same_line, user_place
from distsummary.rundir.run_dir import CRASH


def line(file: str) -> SourceLine:
    return SourceLine(file, 3, "inner")


OWN, LIBRARY = line("/home/train.py"), line("/x/site-packages/lib/a.py")
PYTHON, TORCH, OURS = (
    line(tempfile.__file__),
    line("/x/site-packages/torch/nn/a.py"),
    line(distsummary.__file__),
)


def test_the_users_line_is_neither_pythons_nor_an_installed_packages() -> None:
    assert user_place([PYTHON, TORCH, LIBRARY, OURS, OWN]) == OWN
    assert user_place([PYTHON, TORCH, OURS, LIBRARY]) == LIBRARY
    assert user_place([PYTHON, TORCH, OURS]) is None


def test_a_line_has_its_source_if_the_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("\n\n  step()\n")
    assert line(f"{tmp_path}/train.py").text() == f"{tmp_path}/train.py:3 in inner: step()"
    assert OWN.text() == "/home/train.py:3 in inner"
    assert is_same_line(OWN.text(), f"{OWN.text()}: step()")
    assert not is_same_line(OWN.text(), "/home/train.py:4 in inner")
    assert not is_same_line("", "")


ABORT = f"""Fatal Python error: Aborted

Thread 0x00007f00000000a1 (most recent call first):
  File "{tempfile.__file__}", line 9 in wait

Thread 0x00007f00000000b2 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/train.py", line 14 in metrics
  File "/home/train.py", line 50 in <module>
"""


def test_a_crash_has_its_signal_and_the_line_of_the_loop(tmp_path: Path) -> None:
    path = tmp_path / CRASH
    assert read_crash(tmp_path, 0) is None
    path.write_text(head_of(2, 0x7F00000000B2) + ABORT)
    assert read_crash(tmp_path, 2) == ("Aborted", "/home/train.py:14 in metrics", "all_reduce")
    assert read_crash(tmp_path, 1) is None  # what an earlier attempt left
    path.write_text(head_of(2, 0x7F00000000C3) + ABORT)
    assert read_crash(tmp_path, 2) == ("Aborted", "", "")


@pytest.mark.parametrize("text", ["", head_of(0, 1), ABORT, "attempt x, thread 0x1\n" + ABORT, "\x00\xff"])
def test_a_file_without_a_crash_and_one_that_is_none_of_ours_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / CRASH).write_text(text)
    assert read_crash(tmp_path, 0) is None


def test_a_crash_that_was_not_written_whole_has_what_is_there(tmp_path: Path) -> None:
    for length in range(len(ABORT)):
        (tmp_path / CRASH).write_text(head_of(0, 0x7F00000000B2) + ABORT[:length])
        found = read_crash(tmp_path, 0)
        assert found is None or found.error.startswith("A")

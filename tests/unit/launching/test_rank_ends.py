"""The ends of ranks in words."""

import os
import re
import subprocess
import sys

import pytest

from distsummary.launching.rank_ends import (
    CONSEQUENCE,
    MAX_LINE,
    STOPPED,
    RankEnd,
    Trace,
    death,
    error_lines,
    raised,
    read_trace,
    reporting_exits,
    stderr_path,
)

GONE = """The actor died unexpectedly before finishing this task.
\tclass_name: _Rank
\tpid: 24331
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: \
Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: ..."""


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (
            Trace(),
            "killed by signal 9 (SIGKILL), or ended by code that is not Python's: it left no last word",
        ),
        (Trace(exit_code=3), "exit code 3 (os._exit)"),
        (Trace(signal="SIGSEGV"), "killed by signal 11 (SIGSEGV)"),
        (
            Trace(signal="SIGABRT", place="File a, line 3 in f"),
            "killed by signal 6 (SIGABRT) (File a, line 3 in f)",
        ),
        (
            Trace(out_of_memory=1),
            "killed by signal 9 (SIGKILL), and the kernel has killed 1 process(es) of its node for want of "
            "memory since the start: place fewer ranks on a node, or make them smaller",
        ),
    ],
)
def test_a_process_that_is_gone_is_reported_by_its_trace(trace, text):
    assert death(GONE, trace) == text


def test_what_ray_says_is_kept_whole_but_the_first_line_is_short():
    detail = f"Task was killed due to the node running low on memory. {'word ' * 200}the end"
    first, second = death(detail, Trace()).splitlines()
    assert first.startswith("out of memory: Task was killed")
    assert len(first) < MAX_LINE + 40
    assert second.endswith("word the end")


def test_a_node_that_does_not_answer_is_named():
    assert death(GONE, None, "10.0.0.3").startswith("died, and its node 10.0.0.3 does not answer: Worker")
    away = "The actor ab12 is unavailable: The actor is temporarily unavailable: RpcError"
    assert death(away, None, "10.0.0.3").startswith("its node 10.0.0.3 does not answer: The actor ab12")


def test_causes_come_first_then_those_that_lost_their_peers_then_the_stopped():
    failures = [
        RankEnd(1, "RuntimeError: gloo/transport [::1]:4411 Connection reset by peer", CONSEQUENCE),
        RankEnd(3, "RuntimeError: gloo/transport [::1]:4412 Connection reset by peer", CONSEQUENCE),
        RankEnd(2, "killed by signal 9 (SIGKILL)"),
        RankEnd(5, "exit code 3 (os._exit)"),
        RankEnd(4, "exit code 4 (os._exit)"),
        RankEnd(0, "stopped", STOPPED),
    ]
    assert error_lines(failures).splitlines() == [
        "[rank 2] killed by signal 9 (SIGKILL)",
        "[rank 5] exit code 3 (os._exit)",
        "[rank 4] exit code 4 (os._exit)",
        "[ranks 1,3] lost its peers: RuntimeError: gloo/transport [::1]:4411 Connection reset by peer",
        "[rank 0] stopped",
    ]


def test_without_a_cause_the_first_line_is_plain():
    assert error_lines([RankEnd(1, "RuntimeError: Connection reset", CONSEQUENCE)]).startswith(
        "[rank 1] RuntimeError"
    )


def test_what_peers_of_a_dead_rank_raise_is_a_consequence():
    assert raised(0, ValueError("no data")).kind != CONSEQUENCE
    for text in ("[gloo/transport/tcp/pair.cc:537] Read error", "NCCL error: ncclRemoteError: ..."):
        assert raised(0, RuntimeError(text)).kind == CONSEQUENCE


def test_a_module_that_no_one_finds_has_no_remedy():
    absent = ModuleNotFoundError("No module named 'surely_absent'")
    assert raised(0, absent).text == "ModuleNotFoundError: No module named 'surely_absent'"


def test_the_last_words_of_a_real_process_are_read(tmp_path):
    code = "import os; from distsummary.launching.rank_ends import *\nwith reporting_exits():\n    %s"
    path = tmp_path / "stderr"
    for line, trace in {
        "print(stderr_path()); os._exit(7)": Trace(exit_code=7),
        "os.fork() or os._exit(9); os.wait()": Trace(),  # the end of a child is not the rank's
    }.items():
        with open(path, "wb") as file:
            done = subprocess.run(
                [sys.executable, "-c", code % line], stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert done.stdout.strip() in ("", str(path))
        assert read_trace(str(path), 1 << 60) == trace


def test_a_fatal_signal_is_read_with_the_line_of_the_users_code(tmp_path):
    (tmp_path / "err").write_text(
        "*** SIGSEGV received at time=1795440409 on cpu 2 ***\nFatal Python error: Segmentation fault\n\n"
        'Stack (most recent call first):\n  File "/usr/lib/python3.11/ctypes.py", line 519 in string_at\n'
        '  File "/home/a/train.py", line 10 in step\n  File "/home/a/train.py", line 90 in train\n'
        '  File "/x/site-packages/ray/_private/worker.py", line 1069 in main_loop\n'
    )
    place = 'File "/home/a/train.py", line 10 in step'
    assert read_trace(str(tmp_path / "err"), 1 << 60) == Trace(signal="SIGSEGV", place=place)


def test_a_stderr_that_is_no_file_is_no_path():
    assert read_trace("", 1 << 60) == Trace()
    assert re.fullmatch(r"|/.*", stderr_path())
    with reporting_exits():
        assert os._exit.__name__ == "report"
    assert os._exit.__name__ == "_exit"


def test_a_process_that_is_gone_is_so_in_either_of_rays_words() -> None:
    words = "died: Worker exit type: SYSTEM_ERROR Worker exit detail: Worker connection closed unexpectedly."
    assert death(words, Trace()).startswith("killed by signal 9 (SIGKILL)")
    assert death(words, Trace(exit_code=3)) == "exit code 3 (os._exit)"

"""The fixtures that watch every test for leaks really fail a test that leaks."""

import pytest

from tests.inner_pytest import run_inner_pytest

LEAKY_TESTS = """
import pathlib, subprocess, sys, tempfile, threading

never = threading.Event()

def test_clean(tmp_path):
    (tmp_path / "mine").touch()
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=int, name="distsummary-short")
    thread.start()

def test_leaves_a_process():
    leaked.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_leaves_a_process_that_ended():
    leaked.append(subprocess.Popen([sys.executable, "-c", ""]))

def test_leaves_a_thread_of_ours():
    threading.Thread(target=never.wait, name="distsummary-flusher", daemon=True).start()

def test_leaves_a_thread_that_is_no_daemon():
    threading.Thread(target=never.wait).start()

def test_leaves_a_file_in_the_working_directory():
    pathlib.Path("stray").touch()

def test_leaves_a_directory_in_the_temporary_directory():
    tempfile.mkdtemp(prefix="distsummary")

def test_ends_what_the_others_left():
    never.set()
    for process in leaked:
        process.communicate()

leaked = []
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Test name -> what pytest says of it, "" for a pass."""
    return run_inner_pytest(LEAKY_TESTS, tmp_path_factory.mktemp("leaks"), ["tests.conftest"])


def test_a_test_that_cleans_up_passes(outcomes: dict[str, str]) -> None:
    assert outcomes["test_clean"] == ""


@pytest.mark.parametrize(
    ("test", "kind", "culprit"),
    [
        ("test_leaves_a_process", "processes", "input()"),
        ("test_leaves_a_process_that_ended", "processes", "nobody waited for it"),
        ("test_leaves_a_thread_of_ours", "threads", "distsummary-flusher"),
        ("test_leaves_a_thread_that_is_no_daemon", "threads", "Thread-"),
        ("test_leaves_a_file_in_the_working_directory", "files", "stray"),
        ("test_leaves_a_directory_in_the_temporary_directory", "files", "distsummary"),
    ],
)
def test_a_test_that_leaks_fails_and_the_culprit_is_named(
    outcomes: dict[str, str], test: str, kind: str, culprit: str
) -> None:
    assert f"{kind} left behind by this test" in outcomes[test]
    assert culprit in outcomes[test]

"""The fixtures that watch every test for leaks really fail a test that leaks."""

import pytest

from tests.inner_pytest import run_inner_pytest

LEAKY_TESTS = """
import gc, logging, os, pathlib, signal, subprocess, sys, tempfile, threading
import torch
import distsummary as ds
from distsummary.collect.values import operators

never = threading.Event()

def test_clean(tmp_path):
    (tmp_path / "mine").touch()
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=int, name="distsummary-short")
    thread.start()

def test_leaves_an_open_run(tmp_path):
    run = ds.init(tmp_path / "run", rank=0, world_size=2, aggregate=False, system_metrics=False)
    test_leaves_an_open_run.run = run  # else it is closed as garbage
    for _ in run.steps(range(2)):
        run.log(loss=1.0)

def test_leaves_an_open_run_and_fails(tmp_path):
    run = ds.init(tmp_path / "run", rank=0, world_size=2, aggregate=False, system_metrics=False)
    for _ in run.steps(range(2)):
        run.log(loss=1.0)
        raise KeyError("mine")

def test_leaves_an_environment_variable():
    os.environ["LEFT"] = "1"

def test_removes_an_environment_variable():
    del os.environ["PYTHONDONTWRITEBYTECODE"]

def test_leaves_another_working_directory():
    os.chdir("/")

def test_leaves_a_signal_handler():
    signal.signal(signal.SIGTERM, print)

def test_leaves_a_handler_of_a_logger():
    logging.getLogger("distsummary").addHandler(logging.NullHandler())

def test_leaves_the_garbage_collector_off():
    gc.disable()

def test_leaves_another_dtype():
    torch.set_default_dtype(torch.float64)

def test_leaves_gradients_off():
    torch.set_grad_enabled(False)

def test_leaves_a_process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

def test_leaves_an_open_file(tmp_path):
    leaked.append(open(tmp_path / "open", "w"))

def test_leaves_a_process():
    leaked.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_leaves_a_process_that_ended():
    leaked.append(subprocess.Popen([sys.executable, "-c", ""]))
    os.waitid(os.P_PID, leaked[-1].pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays to be waited for

def test_leaves_a_thread_of_ours():
    threading.Thread(target=never.wait, name="distsummary-flusher", daemon=True).start()

def test_leaves_a_thread_that_is_no_daemon():
    threading.Thread(target=never.wait).start()

def test_leaves_a_file_in_the_working_directory():
    pathlib.Path("stray").touch()

def test_leaves_a_directory_in_the_temporary_directory():
    tempfile.mkdtemp(prefix="distsummary")

def test_finds_nothing_of_what_the_others_left():
    assert not any(getattr(one, "__module__", "").startswith("distsummary") for one in gc.callbacks)
    assert not operators.is_listening()
    assert not {"distsummary-writer", "distsummary-files"} & {one.name for one in threading.enumerate()}
    assert "LEFT" not in os.environ and "PYTHONDONTWRITEBYTECODE" in os.environ
    assert os.listdir() == [] and pathlib.Path.cwd() != pathlib.Path("/")
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("distsummary")]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert logging.getLogger("distsummary").handlers == []
    assert gc.isenabled()
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert not torch.distributed.is_initialized()
    assert all(process.poll() is not None for process in leaked if isinstance(process, subprocess.Popen))
    never.set()

leaked = []
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Test name -> what pytest says of it, "" for a pass."""
    return run_inner_pytest(LEAKY_TESTS, tmp_path_factory.mktemp("leaks"), ["tests.conftest"])


def test_a_test_that_cleans_up_passes(outcomes: dict[str, str]) -> None:
    assert outcomes["test_clean"] == ""


def test_what_a_test_left_is_undone(outcomes: dict[str, str]) -> None:
    assert outcomes["test_finds_nothing_of_what_the_others_left"] == ""


def test_the_failure_of_a_test_is_reported_with_what_it_left(outcomes: dict[str, str]) -> None:
    assert "KeyError: 'mine'" in outcomes["test_leaves_an_open_run_and_fails"]


@pytest.mark.parametrize(
    ("test", "kind", "culprit"),
    [
        ("test_leaves_an_open_run", "runs", "open runs"),
        ("test_leaves_an_open_run_and_fails", "runs", "listeners to operators"),
        ("test_leaves_an_environment_variable", "environment variables", "LEFT"),
        ("test_removes_an_environment_variable", "environment variables", "PYTHONDONTWRITEBYTECODE"),
        ("test_leaves_another_working_directory", "the working directory", "is '/'"),
        ("test_leaves_a_signal_handler", "signal handlers", "SIGTERM"),
        ("test_leaves_a_handler_of_a_logger", "loggers", "NullHandler"),
        ("test_leaves_the_garbage_collector_off", "the garbage collector", "enabled was True, is False"),
        ("test_leaves_another_dtype", "torch", "default dtype was torch.float32, is torch.float64"),
        ("test_leaves_gradients_off", "torch", "gradients"),
        ("test_leaves_a_process_group", "torch", "process group"),
        ("test_leaves_an_open_file", "files open for writing", "/open"),
        ("test_leaves_a_process", "processes", "input()"),
        ("test_leaves_a_process_that_ended", "processes", "no one waited for it"),
        ("test_leaves_a_thread_of_ours", "threads", "distsummary-flusher"),
        ("test_leaves_a_thread_that_is_no_daemon", "threads", "Thread-"),
        ("test_leaves_a_file_in_the_working_directory", "files", "stray"),
        ("test_leaves_a_directory_in_the_temporary_directory", "files", "distsummary"),
    ],
)
def test_a_test_that_leaks_fails_and_the_culprit_is_named(outcomes, test, kind, culprit):
    assert f"{kind} left behind by this test" in outcomes[test]
    assert culprit in outcomes[test]

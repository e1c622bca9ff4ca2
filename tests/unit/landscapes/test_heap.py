"""What is freed while points are evaluated is there for the next layer, and given back afterwards."""

import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distsummary.landscapes.model import heap
from tests.conftest import ROOT

IS_GLIBC = heap._function("mallopt") is not None and heap._function("malloc_trim") is not None
PAGE = 4096
SMALL, LARGE = 2 << 20, 120 << 20  # above the 80 MB that forty small ones leave

SCRIPT = """
import json, resource, sys
from distsummary.landscapes.model import heap

def faults(size, count):
    '''Of the second of two passes that make and free the same.'''
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [b"x" * size for _ in range(count)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) << 12

heap.ROOM = float(sys.argv[1])
found = {"plain": faults(2 << 20, 40)}
heap.keep_large()  # nothing is kept
with heap.kept():
    with heap.kept():
        found["kept"] = faults(2 << 20, 40)
        found["mapped"] = faults(120 << 20, 1)
    heap.keep_large()
    found["inner ended"] = faults(2 << 20, 40)
    found["large"] = faults(120 << 20, 1)
    before = resident()
found["given back"] = before - resident()
found["large afterwards"] = faults(120 << 20, 1)
print(json.dumps(found))
"""

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAS_SMALL_PAGES = not HUGE.exists() or "[always]" not in HUGE.read_text()
pytestmark = pytest.mark.skipif(not (IS_GLIBC and HAS_SMALL_PAGES), reason="needs glibc and pages of 4 kB")


def found(room: float = 0.0, **environment: str) -> dict[str, int]:
    """What the script sees in a process whose thresholds have not grown yet."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(room)],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_pages_are_taken_from_the_system_once() -> None:
    seen = found()
    assert seen["plain"] > 40 * SMALL / PAGE / 2, "else there is nothing to keep"
    assert seen["kept"] < 100
    assert seen["inner ended"] < 100, "the outer one goes on"
    assert seen["mapped"] > LARGE / PAGE, "large results only where memory is ample"
    assert seen["large"] < 100
    assert seen["given back"] > 40 * SMALL / 2
    assert seen["large afterwards"] > LARGE / PAGE


def test_large_results_are_mapped_where_memory_is_scarce() -> None:
    seen = found(room=1e9)
    assert seen["kept"] < 100
    assert seen["large"] > LARGE / PAGE


@pytest.mark.parametrize(
    "setting",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}],
)
def test_what_the_environment_sets_stays(setting: dict[str, str]) -> None:
    seen = found(**setting)
    assert seen["kept"] > 40 * SMALL / PAGE / 2
    assert seen["large"] > LARGE / PAGE


def test_the_last_of_several_threads_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(heap, "_set", calls.append)
    monkeypatch.setattr(heap, "give_back", lambda: calls.append("given back"))
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with heap.kept():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with heap.kept():
        thread.start()
        assert entered.wait(60)
    assert calls == [heap.KEEP]
    leave.set()
    thread.join()
    assert calls == [heap.KEEP, heap.AFTERWARDS, "given back"]


def test_what_the_garbage_collector_ends_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = heap.kept()
    abandoned.__enter__()
    left = [abandoned]

    def collecting(options: object) -> None:
        if left:
            left.pop().__exit__(None, None, None)

    monkeypatch.setattr(heap, "_set", collecting)
    monkeypatch.setattr(heap, "_is_ample", lambda: True)
    done = threading.Thread(target=heap.keep_large, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    assert heap._users == 0


def test_nothing_is_asked_of_a_system_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_function", lambda name: None)
    monkeypatch.setitem(sys.modules, "resource", None)
    with heap.kept():
        heap.keep_large()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: object) -> object:
        raise OSError("no such library")

    heap._function.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", without)
    try:
        with heap.kept():
            heap.keep_large()
    finally:
        heap._function.cache_clear()

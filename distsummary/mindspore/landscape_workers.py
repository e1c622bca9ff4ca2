"""Processes of a landscape inside MindSpore: new interpreters, since what is forked after a training hangs.

A worker reads its job from a file and writes its answer to another. It ends with the process that started it,
which closes its standard input.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import dill
import mindspore

from distsummary.errors import InvalidValueError, LandscapeError

# sys.path comes first, because the rest is found there.
_CODE = (
    "import pickle, sys; job = open(sys.argv[1], 'rb'); sys.path[:], argv = pickle.load(job); "
    "from distsummary.mindspore.landscape_workers import work; work(job, sys.argv[1], argv)"
)


def compute(
    function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], devices: Sequence[int]
) -> list[Any]:
    """`function(*job)` of each job in a process of its own, on one of `devices`; the results in their order.

    Raises the first exception of a job, InvalidValueError for one that cannot be sent, LandscapeError if a
    process dies; no process is left behind.
    """
    results: dict[int, Any] = {}
    processes: list[subprocess.Popen[bytes]] = []
    with (
        tempfile.TemporaryDirectory(prefix="distsummary-") as place,
        ThreadPoolExecutor(len(jobs)) as threads,
    ):
        files = [Path(place, str(number)) for number in range(len(jobs))]
        try:
            for file, job, device in zip(files, jobs, devices, strict=True):
                file.write_bytes(_sent(function, job, device))
                command = [sys.executable, "-P", "-c", _CODE, str(file)]
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            # A thread waits for each process, so that the one that fails first is seen first.
            waits = {threads.submit(process.wait): number for number, process in enumerate(processes)}
            for done in as_completed(waits):
                number = waits[done]
                results[number] = _received(files[number], done.result(), f"{number + 1} of {len(jobs)}")
        finally:
            for process in processes:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
    return [results[number] for number in range(len(jobs))]


def _sent(function: Callable[..., Any], job: tuple[Any, ...], device: int) -> bytes:
    context = {name: mindspore.get_context(name) for name in ("mode", "device_target")}
    if context["device_target"] != "CPU":
        context["device_id"] = device
    seed = mindspore.get_seed()
    try:
        body: bytes = dill.dumps((context, seed, function, job), recurse=True)
    except Exception as error:
        raise InvalidValueError(
            f"callback_fn cannot be sent to worker processes ({type(error).__name__}: {error}); make the "
            "network, the data and the metrics in it, or pass one of device_ids"
        ) from error
    # The worker needs sys.path before it can import what the body refers to.
    return pickle.dumps((sys.path, sys.argv)) + body


def _received(file: Path, code: int, which: str) -> Any:
    answer = file.with_suffix(".answer")
    if code or not answer.exists():
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise LandscapeError(
            f"worker {which} of the landscape {how} before its points were computed; if the memory is too "
            "small, pass fewer device_ids"
        )
    result, error, text = dill.loads(answer.read_bytes())
    if error is not None:
        error.add_note(f"in worker {which} of the landscape:\n{text}")
        raise error
    return result


def work(job: Any, path: str, argv: list[str]) -> None:
    """In a worker: do the job of an open file, and write the answer beside it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[:] = argv
    answer: tuple[Any, Exception | None, str]
    try:
        context, seed, function, arguments = dill.load(job)
        changed = {name: value for name, value in context.items() if mindspore.get_context(name) != value}
        mindspore.set_context(**changed)
        if seed is not None:
            mindspore.set_seed(seed)
        answer = function(*arguments), None, ""
    except Exception as error:
        answer = None, error, traceback.format_exc()
    try:
        body = dill.dumps(answer)
        # Some exceptions can be written, but not read again.
        dill.loads(body)
    except Exception as error:
        # What cannot be sent is described instead.
        what = f"callback_fn raised {type(answer[1]).__name__}: {answer[1]}"
        if answer[1] is None:
            what = f"what callback_fn returned cannot be sent: {type(error).__name__}: {error}"
        body = dill.dumps((None, LandscapeError(what), answer[2]))
    # The answer gets its name when it is complete.
    Path(path).with_suffix(".tmp").write_bytes(body)
    Path(path).with_suffix(".tmp").replace(Path(path).with_suffix(".answer"))


def _end_with_parent() -> None:
    # sys.stdin has a lock that the end of the interpreter needs, so this reads the descriptor itself.
    os.read(0, 1)
    os._exit(1)

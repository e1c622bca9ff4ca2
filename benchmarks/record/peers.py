"""The peers of the collection benchmark: one class each, run as `python benchmarks/peers.py PEER`.

A worker process reads one unit a line ({"unit", "directory"}), runs it and answers with its figures. It
imports NumPy and its own peer only, so that any interpreter that has these can run it.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Unit(NamedTuple):
    """One kind of call: the peer's method, how many calls a repetition makes, and what each one is given.

    `values`: how many values a call records, if the cost of one of them is the figure.
    """

    method: str
    calls: int
    data: Callable[[], Any]
    values: int = 1


def _numbers(count: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(count, np.float32)


def _pictures() -> np.ndarray:
    """Waves with some noise, (8, 3, 224, 224) uint8: as compressible as photographs."""
    y, x = np.mgrid[0:224, 0:224] / 224
    random = np.random.default_rng(7)
    waves = [np.sin(6 * random.random() * x + 9 * random.random() * y + 3 * n) for n in range(24)]
    noise = random.normal(0, 3, (24, 224, 224))
    return (127 + 100 * np.array(waves) + noise).clip(0, 255).astype(np.uint8).reshape(8, 3, 224, 224)


def _named(count: int) -> dict[str, float]:
    return {f"train/metric_{n}": n / 7 for n in range(count)}


VALUES = 2_000_000  # little enough for the writer to index its files, as it does mostly

UNITS = {
    "s1": Unit("scalars", 10_000, lambda: {"loss": 0.25}),
    "s10": Unit("scalars", 2_000, lambda: _named(10)),
    # What a step of a loop costs that has one or ten new values, recorded with two timings.
    "step1": Unit("step1", 10_000, lambda: 0.25),
    "step10": Unit("step10", 10_000, lambda: 0.25),
    # What a value costs in a loop that logs so many at each step; as many values in each unit.
    **{
        f"tags{tags}": Unit("step_of_tags", VALUES // tags, partial(_named, tags), tags)
        for tags in (10, 100, 1_000, 5_000, 10_000)
    },
    "h1e4": Unit("histogram", 200, lambda: _numbers(10**4)),
    "h1e6": Unit("histogram", 10, lambda: _numbers(10**6)),
    "h1e7": Unit("histogram", 1, lambda: _numbers(10**7)),
    "t1MB": Unit("tensor", 20, lambda: _numbers(2**18)),
    "t64MB": Unit("tensor", 1, lambda: _numbers(16_000_000)),
    "img": Unit("image", 5, _pictures),
}


RAW_HISTOGRAM, RAW_IMAGE = 2_400, 650_000  # bytes of a record
RAW_JOINED = 256  # small records are written together


class Ours:
    """`SummaryRecord` with its writer thread; scalars by `SummaryRecord.scalars`."""

    def open(self, directory: str) -> None:
        """Begin a run in an empty directory."""
        from distsummary.collect.record import SummaryRecord

        self.record = SummaryRecord(directory)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """All scalars of a step."""
        self.record.scalars(step, values)

    def step1(self, step: int, x: float) -> None:
        """As many new scalars as a step of `run.steps` with one value."""
        self.record.scalars(step, {"loss": x, "zz_perf/step_ms": x, "zz_perf/data_wait_ms": x})

    def step10(self, step: int, x: float) -> None:
        """As many new scalars as a step of `run.steps` with ten values."""
        self.record.scalars(step, {"loss": x, "lr": x, "a": x, "b": x, "c": x, "d": x, "e": x, "f": x, "g": x,
                                   "h": x, "zz_perf/step_ms": x, "zz_perf/data_wait_ms": x})  # fmt: skip

    def histogram(self, step: int, data: np.ndarray) -> None:
        """One histogram of a step."""
        self._add("histogram", step, data)

    def tensor(self, step: int, data: np.ndarray) -> None:
        """One tensor of a step."""
        self._add("tensor", step, data)

    def image(self, step: int, data: np.ndarray) -> None:
        """One batch of pictures of a step."""
        self._add("image", step, data)

    def _add(self, plugin: str, step: int, data: np.ndarray) -> None:
        self.record.add_value(plugin, plugin, data)
        self.record.record(step)

    def close(self) -> None:
        """Everything is in the files on return; drops and refusals end the benchmark."""
        self.record.close()
        health = self.record.health()
        if health.dropped or health.errors:
            raise RuntimeError(f"not everything was recorded: {health}")


class OursByName(Ours):
    """`SummaryRecord.add_value` and `record`, MindSpore's way."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Each scalar by its name, then the step."""
        for tag, number in values.items():
            self.record.add_value("scalar", tag, number)
        self.record.record(step)


class OursRun:
    """The recommended door: a step of `run.steps` with `run.log`, whose two timings are recorded with it."""

    def open(self, directory: str) -> None:
        """Begin a run in an empty directory, and its first step."""
        import distsummary

        self.run = distsummary.init(directory, rank=0, world_size=1)
        self.batches = self.run.steps(range(10**9))
        next(self.batches)
        next(self.batches)  # the step before opened the files
        self.log, self.go_on = self.run.log, self.batches.__next__  # as cheap as `for` is
        time.sleep(1)  # a thread looks up the versions of packages

    def step1(self, step: int, x: float) -> None:
        """Log one value, and proceed to the next step."""
        self.log(loss=x)
        self.go_on()

    def step_of_tags(self, step: int, values: dict[str, float]) -> None:
        """Log a dict of values, and proceed to the next step."""
        self.log(values)
        self.go_on()

    def step10(self, step: int, x: float) -> None:
        """Log ten values, and proceed to the next step."""
        self.log(loss=x, lr=x, a=x, b=x, c=x, d=x, e=x, f=x, g=x, h=x)
        self.go_on()

    def close(self) -> None:
        """Everything is in the files on return; drops and refusals end the benchmark."""
        self.run.close()
        health = self.run.health()
        if health.dropped or health.errors:
            raise RuntimeError(f"not everything was recorded: {health}")


class Torch:
    """torch.utils.tensorboard.SummaryWriter."""

    def open(self, directory: str) -> None:
        """Begin a run in an empty directory."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(directory)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Each scalar by its name."""
        for tag, number in values.items():
            self.writer.add_scalar(tag, number, step)

    def histogram(self, step: int, data: np.ndarray) -> None:
        """One histogram of a step, the default bins."""
        self.writer.add_histogram("histogram", data, step)

    def tensor(self, step: int, data: np.ndarray) -> None:
        """One tensor of a step."""
        import torch

        self.writer.add_tensor("tensor", torch.from_numpy(data), step)

    def image(self, step: int, data: np.ndarray) -> None:
        """One batch of pictures of a step."""
        self.writer.add_images("image", data, step)

    def close(self) -> None:
        """Everything is in the files on return."""
        self.writer.close()


class TensorboardX(Torch):
    """tensorboardX.SummaryWriter; it has no tensors."""

    def open(self, directory: str) -> None:
        """Begin a run in an empty directory."""
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(directory)

    def tensor(self, step: int, data: np.ndarray) -> None:
        """Not offered."""
        raise NotImplementedError("tensorboardX writes no tensors")


class MindSpore:
    """mindspore.SummaryRecord, its processes included."""

    def open(self, directory: str) -> None:
        """Begin a run in an empty directory."""
        import mindspore

        self.mindspore = mindspore
        self.record = mindspore.SummaryRecord(directory)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Each scalar by its name, then the step."""
        for tag, number in values.items():
            self.record.add_value("scalar", tag, self.mindspore.Tensor(number))
        self.record.record(step)

    def _add(self, plugin: str, step: int, data: np.ndarray) -> None:
        self.record.add_value(plugin, plugin, self.mindspore.Tensor(data))
        self.record.record(step)

    histogram, tensor, image = Ours.histogram, Ours.tensor, Ours.image  # they call _add

    def close(self) -> None:
        """Everything is in the files on return."""
        self.record.close()


class Raw:
    """CRC32C and `os.write` of ready bytes, as many as our record in one dialect: the machine's limit."""

    def open(self, directory: str) -> None:
        """Make the file."""
        self.descriptor = os.open(Path(directory) / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.waiting: list[bytes] = []

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """A record of 40 bytes and 14 for each further scalar."""
        self._write(bytes(31 + 15 * len(values)))

    def histogram(self, step: int, data: np.ndarray) -> None:
        """The bytes of a record; nothing is counted."""
        self._write(bytes(RAW_HISTOGRAM))

    def image(self, step: int, data: np.ndarray) -> None:
        """The bytes of a record; nothing is compressed."""
        self._write(data.reshape(-1)[:RAW_IMAGE])

    def tensor(self, step: int, data: np.ndarray) -> None:
        """The array's own bytes."""
        self._write(data)

    def _write(self, data: Any) -> None:
        import google_crc32c

        google_crc32c.extend(0, data)
        if len(memoryview(data).cast("B")) > 4096:
            os.write(self.descriptor, data)
            return
        self.waiting.append(data)
        if len(self.waiting) >= RAW_JOINED:
            self._join()

    def _join(self) -> None:
        os.write(self.descriptor, b"".join(self.waiting))
        self.waiting.clear()

    def close(self) -> None:
        """Write what waits."""
        self._join()
        os.close(self.descriptor)


PEERS: dict[str, type] = {
    "ours": Ours,
    "ours_by_name": OursByName,
    "ours_run": OursRun,
    "torch": Torch,
    "tensorboardX": TensorboardX,
    "mindspore": MindSpore,
    "raw": Raw,
}


def cpu_s() -> float:
    """CPU seconds of this process, all threads, and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(peer: Any, unit: Unit, data: Any, directory: str) -> dict[str, float]:
    """One repetition in an empty directory, figures per call: caller's time, CPU until closed, bytes."""
    call = getattr(peer, unit.method)  # AttributeError: before anything is open
    peer.open(directory)
    cpu, start = cpu_s(), time.perf_counter()
    for step in range(1, unit.calls + 1):
        call(step, data)
    caller = time.perf_counter() - start
    peer.close()
    cpu = cpu_s() - cpu
    size = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
    return {
        "caller_us": caller / unit.calls * 1e6,
        "cpu_us": cpu / unit.calls * 1e6,
        "bytes": size / unit.calls,
    }


def main() -> None:
    """Serve one peer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints goes to stderr
    peer = PEERS[sys.argv[1]]()
    made: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        unit = UNITS[asked["unit"]]
        data = made.setdefault(asked["unit"], None)
        if data is None:
            data = made[asked["unit"]] = unit.data()
        try:
            answer: dict[str, Any] = measure(peer, unit, data, asked["directory"])
        except (ImportError, NotImplementedError, AttributeError) as error:
            answer = {"absent": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

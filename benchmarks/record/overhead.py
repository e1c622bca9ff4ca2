"""What recording adds to a training's own CPU time: `python -m benchmarks.record.overhead`.

Two trainings with the defaults of `ds.init`: the digits CNN of the demo and a transformer of 10 million
parameters, each with 1 and with 4 gloo ranks, without Ray and under it. CPU is counted where it is spent,
and never as the difference of two trainings:

- "calls": what the training thread spends inside our calls (`time.thread_time` around each of them; the time
  of the user's loader, which they call, is taken off).
- "threads": the thread time of all threads that the package starts.
- "share": the two over the CPU time of the training process (`time.process_time`) from before `ds.init` to
  after `run.close`. "per step" leaves out what is paid once (`ds.init`, the first step, `close`, and what the
  threads do in `close`), so it is what a long training sees.
- "collector": under Ray, the CPU of the ranks' collector processes during the steps, over that of the
  training processes during the steps, after they have started. Programs that the package starts (git, once)
  stand in "children".

Each rank has one thread of torch's, as under torchrun, so that all work of a call lies in its thread. What
reading the clock costs is taken off. The figures are sums over ranks. With --items, where the time goes: the
part of the whole, and CPU per call.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import distsummary as ds
from distsummary.demo import DigitsNet, digits

Result = TypeVar("Result")

TASKS = ("digits", "transformer")
STEPS = {"digits": 1500, "transformer": 100}
FREQ = 10  # the default of collect_freq
ONCE = ("init", "first step", "close")  # items that a training pays once
COLLECTOR = "ray::CollectorActor"  # how Ray titles the process of a rank's collector
TIMEOUT_S = 900.0
START_S = 60.0


class Transformer(nn.Module):
    """Six layers of width 384 over 512 tokens: 10.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, 384)
        layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(384, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (N, 512, T) of tokens (N, T)."""
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits.transpose(1, 2)


def task(name: str) -> tuple[nn.Module, Iterable[Any]]:
    """The model and the batches of one epoch."""
    torch.manual_seed(0)
    if name == "digits":
        return DigitsNet(), DataLoader(digits()[0], batch_size=16, shuffle=True)
    tokens = torch.randint(0, 512, (400, 65))
    return Transformer(), DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=4)


class Meter:
    """Adds up the CPU seconds of our calls in this thread, and of our threads; item -> [seconds, calls]."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self.threads: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self.at_mark: dict[str, float] = {}
        self._outside_s = self._clock_s = 0.0  # inside the user's loader; inside `call` itself
        self._living: dict[threading.Thread, int] = {}  # a thread of ours -> its clock
        self._run = threading.Thread.run
        for _ in range(10_000):
            self.call("nothing", int)
        self._clock_s = self.calls.pop("nothing")[0] / 10_000

    def call(self, item: str, function: Callable[..., Result], *args: Any, **named: Any) -> Result:
        """Call the function and add its time to an item."""
        outside_s, begun_s = self._outside_s, time.thread_time()
        try:
            return function(*args, **named)
        finally:
            spent = self.calls[item]
            spent[0] += time.thread_time() - begun_s - (self._outside_s - outside_s) - self._clock_s
            spent[1] += 1

    def outside(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The user's batches, whose time is not ours."""
        begun_s, found = time.thread_time(), iter(batches)
        while True:
            batch = next(found, None)
            self._outside_s += time.thread_time() - begun_s + self._clock_s
            if batch is None:
                return
            yield batch
            begun_s = time.thread_time()

    def watch_threads(self) -> None:
        """From now on, count the threads whose name says that they are ours."""
        meter, original = self, self._run

        def run(thread: threading.Thread) -> None:
            if not thread.name.startswith("distsummary"):
                original(thread)
                return
            meter._living[thread] = time.pthread_getcpuclockid(threading.get_ident())
            try:
                original(thread)
            finally:
                del meter._living[thread]
                spent = meter.threads[thread.name]
                spent[0] += time.thread_time()
                spent[1] += 1

        threading.Thread.run = run  # type: ignore[method-assign]

    def unwatch_threads(self) -> None:
        """Count no further threads."""
        threading.Thread.run = self._run  # type: ignore[method-assign]

    def threads_s(self) -> float:
        """CPU seconds of our threads so far, the living ones included."""
        living = sum(time.clock_gettime(clock) for clock in list(self._living.values()))
        return living + sum(seconds for seconds, _ in self.threads.values())

    def recurring_s(self) -> float:
        """CPU seconds of the calls that every step makes."""
        return sum(seconds for item, (seconds, _) in self.calls.items() if item not in (*ONCE, "clock"))


def train(name: str, steps: int, run_dir: str) -> dict[str, Any]:
    """One rank: trains with the defaults of `ds.init` and returns its figures."""
    torch.set_num_threads(1)
    model, loader = task(name)
    is_distributed = torch.distributed.is_initialized()
    network: nn.Module = DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def learn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = criterion(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _, (x, y) in zip(range(3), loader, strict=False):  # what torch pays once is no part of a step
        learn(x, y)
    meter = Meter()
    meter.watch_threads()
    children_s = sum(os.times()[2:4])
    process_s = begin_s = time.process_time()
    run = meter.call("init", ds.init, run_dir, watch=network, optimizer=optimizer, loss_fn=criterion)
    threads_s, collectors_s = 0.0, {}
    while run.step < steps:
        batches = meter.call("steps()", run.steps, meter.outside(loader))
        while True:
            step = run.step
            item = "due step" if step % FREQ == 0 else "plain step"
            if (batch := meter.call("first step" if step <= 1 else item, next, batches, None)) is None:
                break
            if run.step == 3:  # what comes only once is over; from here to the mark below: "per step"
                await_files(run.dir)
                begin_s, threads_s = time.process_time(), meter.threads_s()
                collectors_s = collector_times()
            loss = learn(*batch)
            meter.call("clock", int)  # the training has displaced the Meter itself from the caches
            meter.call("log", run.log, loss=loss, lr=0.01)
            if run.step == steps:
                break
        del batches
    time.sleep(0.5)  # the writer gathers for 0.1 s, and the collector of a rank is a little behind
    steps_s, steps_threads_s = time.process_time() - begin_s, meter.threads_s() - threads_s
    collector_s = sum(s - collectors_s.get(pid, 0.0) for pid, s in collector_times().items())
    meter.call("close", run.close)
    process_s = time.process_time() - process_s
    meter.unwatch_threads()
    process_s -= meter.calls.pop("clock")[0]
    return {
        "process_s": process_s,
        "calls": meter.calls,
        "threads": meter.threads,
        "steps_s": steps_s,
        "steps_ours_s": meter.recurring_s() + steps_threads_s,
        "collector_s": collector_s if run.rank == 0 else 0.0,  # rank 0 has counted those of all ranks
        "children_s": sum(os.times()[2:4]) - children_s,
        "dropped": run_drops(run),
    }


def await_files(directory: Path) -> None:
    """Wait until the collectors of all ranks have started; until then their CPU goes into imports."""
    deadline_s = time.monotonic() + START_S
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    while time.monotonic() < deadline_s:
        if len({path.parent for path in directory.glob("**/events.*") if path.stat().st_size}) >= ranks:
            return
        time.sleep(0.1)
    raise TimeoutError(f"the collectors of {directory} have not started within {START_S:g} s")


def run_drops(run: ds.Run) -> int:
    """How many values of the run were not recorded."""
    return sum(run.health().dropped.values())


def collector_times() -> dict[int, float]:
    """Process id -> CPU seconds of the collectors on the Ray of this process; empty without Ray."""
    parent = psutil.Process().parent()
    if "ray" not in sys.modules or parent is None:
        return {}
    found = {}
    for process in parent.children():
        with contextlib.suppress(psutil.Error), process.oneshot():  # it may just have ended
            if " ".join(process.cmdline()).startswith(COLLECTOR):
                found[process.pid] = sum(process.cpu_times()[:2])
    return found


def train_in_process(name: str, steps: int, run_dir: str) -> None:
    """A rank that `measure` started: prints its figures."""
    if int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.init_process_group("gloo")
    print(json.dumps(train(name, steps, run_dir)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def measure(name: str, steps: int, ranks: int, *, with_ray: bool) -> dict[str, Any]:
    """The figures of one training, summed over its ranks."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = str(Path(directory, "run"))
        if with_ray:
            results = ds.launch(
                partial(train, name, steps, run_dir), ranks=ranks, backend="gloo" if ranks > 1 else None
            )
        else:
            results = started(name, steps, run_dir, ranks)
    total: dict[str, Any] = {"calls": {}, "threads": {}}
    for result in results:
        for kind in ("calls", "threads"):
            for item, (seconds, count) in result.pop(kind).items():
                known = total[kind].get(item, (0.0, 0))
                total[kind][item] = (known[0] + seconds, known[1] + count)
        for field, number in result.items():
            total[field] = total.get(field, 0) + number
    return total | {"task": name, "ranks": ranks, "ray": with_ray, "steps": steps}


def started(name: str, steps: int, run_dir: str, ranks: int) -> list[dict[str, Any]]:
    """The results of ranks that run as processes of their own, without Ray."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.record.overhead", "--rank", name, str(steps), run_dir]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=shared | {"RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{name} with {ranks} ranks failed; its messages stand above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def row(total: dict[str, Any]) -> str:
    """One line of the table."""
    process_s = total["process_s"]
    calls, threads = (sum(seconds for seconds, _ in total[kind].values()) for kind in ("calls", "threads"))
    collector = f"{total['collector_s'] / total['steps_s']:.2%}" if total["ray"] else "-"
    cells = [
        f"{total['task']}, {total['ranks']} rank(s){', Ray' if total['ray'] else ''}",
        f"{1e3 * total['steps_s'] / total['steps'] / total['ranks']:.2f} ms",
        f"{calls / process_s:.2%}",
        f"{threads / process_s:.2%}",
        f"{(calls + threads) / process_s:.2%}",
        f"{total['steps_ours_s'] / total['steps_s']:.2%}",
        collector,
        f"{total['children_s']:.2f} s",
        str(total["dropped"]),
    ]
    return f"| {' | '.join(cells)} |"


def items(total: dict[str, Any]) -> str:
    """Where the time goes, the largest item first."""
    found = [
        (seconds, f"{kind[:-1]} {item!r}", count)
        for kind in ("calls", "threads")
        for item, (seconds, count) in total[kind].items()
    ]
    whole_s = total["process_s"]
    return "\n".join(
        f"    {seconds / whole_s:7.3%}  {1e6 * seconds / max(count, 1):10.1f} us x {count:6}  {item}"
        for seconds, item, count in sorted(found, reverse=True)
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--ranks", default="1,4")
    parser.add_argument("--ray", default="no,yes", help='"no", "yes" or both')
    parser.add_argument("--steps", type=int, help="steps of each training")
    parser.add_argument("--items", action="store_true", help="also print where the time goes")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        train_in_process(asked.rank[0], int(asked.rank[1]), asked.rank[2])
        return
    print(
        "| training | CPU of a step | calls | threads | share | per step | collector | children | dropped |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in asked.tasks.split(","):
        for ranks in map(int, asked.ranks.split(",")):
            for with_ray in asked.ray.split(","):
                total = measure(name, asked.steps or STEPS[name], ranks, with_ray=with_ray == "yes")
                print(row(total), flush=True)
                if asked.items:
                    print(items(total), flush=True)


if __name__ == "__main__":
    main()

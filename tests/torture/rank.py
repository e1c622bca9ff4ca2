"""One rank of L2: it trains, keeps its own ledger, and ends as ordered.

    torchrun ... -m tests.torture.rank PLACE SEED COLLECTIVE

`ds.launch` calls `train` with the same arguments. The order is a file that the harness writes: how which rank
ends; the others finish, unless the end of that rank ends them.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import distsummary as ds
from distsummary.base.processes import in_ray
from distsummary.events import async_writer
from tests.torture.ledger import ACKED, SENT, Ledger
from tests.torture.workload import ValueSpec, ranked_event

PAUSE_S = 0.004
MORE = 20  # steps after the order
FLUSH_S = 2.0
ERROR = "no data"


def train(place: Path, seed: int, collective: bool) -> None:
    """Train until the order comes."""
    collectors = ("rank", "node")[seed % 2] if in_ray() else None
    record = ds.Record(collectors=collectors)
    run = ds.init(place / "disk" / "run", on_nan="ignore", record=record)
    (place / f"pid_{run.rank}").write_text(str(os.getpid()))
    faulthandler.register(signal.SIGUSR1, (place / f"stack_{run.rank}").open("w"))
    ledger = Ledger(place / f"ledger_{run.rank}")
    done = Steps(ledger)
    with run:
        steps = iter(run.steps())
        ends_at, order = 1 << 40, {}
        while True:
            started_s = held_s()
            next(steps)
            done.number = run.step - 1  # the one before has ended just now
            if done.number >= ends_at:
                end(order, run.rank)
                break
            spec = ranked_event(seed, run.rank, run.step)
            ledger.enter(SENT, run.step, run.step)
            for value in spec.values:
                give(run, value)
            if run.step > 1:  # the first opens the files
                ledger.enter_block(held_s() - started_s)
            elif done.thread is None:
                done.start()
            found = read_order(place)
            if agreed(bool(found), collective) and not order:
                order = found or read_order(place)
                ends_at = run.step + MORE
            time.sleep(PAUSE_S)
    done.stop()
    ledger.close()


class Steps:
    """Asks, during the training, for the acknowledgement of the steps that have ended, and enters it."""

    def __init__(self, ledger: Ledger) -> None:
        self.number = 0
        self._ledger, self._asked, self._is_over = ledger, 0, threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Once the run's writer is open."""
        self.thread = threading.Thread(target=self._ask, name="ledger", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Wait for the end of the thread."""
        self._is_over.set()
        if self.thread is not None:
            self.thread.join()

    def _ask(self) -> None:
        [writer] = async_writer._living
        while not self._is_over.wait(0.02):
            if (number := self.number) == self._asked:
                continue
            try:
                if writer.flush(FLUSH_S):
                    self._ledger.enter(ACKED, self._asked + 1, number)
            except ds.DistSummaryError:  # closed
                return
            self._asked = number  # without an acknowledgement, nothing was promised


def give(run: Any, value: ValueSpec) -> None:
    """Give a value of the workload to the run."""
    run.add_value(value.plugin, value.tag, float(value.data) if value.plugin == "scalar" else value.data)


def held_s() -> float:
    """Seconds on the clock, without those in which this thread could run and no core was free."""
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
        return time.perf_counter() - int(file.read().split()[1]) / 1e9


def read_order(place: Path) -> dict[str, Any]:
    """The order, empty until it comes."""
    path = place / "order"
    return json.loads(path.read_text()) if path.exists() else {}


def agreed(is_asked: bool, collective: bool) -> bool:
    """Whether a rank has seen the order; a collective operation in each step says it to all."""
    if not collective:
        return is_asked
    import torch

    number = torch.tensor([float(is_asked)])
    torch.distributed.all_reduce(number)
    return bool(number.item())


def end(order: dict[str, Any], rank: int) -> None:
    """End as the order says: what is not for this rank is a return."""
    if order.get("rank") not in (rank, None):
        time.sleep(order.get("linger_s", 0.0))
        return
    match order["how"]:
        case "finish":
            return
        case "exception":
            raise OSError(ERROR)
        case "sys.exit":
            sys.exit(3)
        case "os._exit":
            os._exit(3)
        case "handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            os.kill(os.getpid(), signal.SIGTERM)
        case number:
            os.kill(os.getpid(), int(number))
    time.sleep(60)  # a signal comes


def main() -> None:
    """A rank of torchrun."""
    place, seed, collective = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
    if collective:
        import torch

        torch.distributed.init_process_group("gloo")
    train(place, seed, collective)
    if collective:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""What watching each step costs: CPU time of rank 0 of two, by `python -m benchmarks.zoo.costs PLAN.json`.

A training by turns with and without "marks" (the phases of a step), some steps each; and two runs of the same
training by turns, with and without "checks" (the sums of the parameters' bits). Two runs differ by several
percent even if both do the same, as their memory differs, which is more than marks may cost. So do parts of
one run whose freed memory goes back to the host, as it does by default: a fifth of such a step is page
faults, as many as chance has it. Here it is kept. Of the checks, the quickest quarter counts, at its upper
end, since other work on the host only adds time.
"""

import contextlib
import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import distsummary as ds
from benchmarks.zoo.data import Images
from benchmarks.zoo.launch import run
from benchmarks.zoo.nets import ResNet
from distsummary.training.run import Run

CASES = [("marks", 10), ("marks", 20), ("marks", 40), ("checks", 10)]  # and the CPU time of a step, in ms
SECONDS = 30.0  # of steps, half of them watched
WARM_UP = 40  # steps
SEGMENTS, NEVER = 16, 1 << 40
KEPT = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"
    ":glibc.malloc.top_pad=268435456"
}  # freed memory stays with the process
BLOCK, SETTLE_S = 10, 1.0  # steps in a row; the writer's thread has written them after that


def measure(what: str, step_ms: int, directory: Path) -> dict[str, Any]:
    """What it adds to a step of so many milliseconds, in microseconds: in its thread, and in our others."""
    plan = {"run_dir": str(directory / "run"), "ranks": 2, "what": what, "step_ms": step_ms}
    run("benchmarks.zoo.costs", plan, "torchrun", variables=KEPT)
    return json.loads(Path(f"{plan['run_dir']}-cost.json").read_text())


def main() -> None:
    """A rank of torchrun."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    sizes = [_size(plan["step_ms"])]
    dist.broadcast_object_list(sizes)
    found = _measure(plan, sizes[0], round(1e3 * SECONDS / plan["step_ms"] / 2 / BLOCK))
    if dist.get_rank() == 0:
        Path(f"{plan['run_dir']}-cost.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _size(step_ms: int) -> int:
    """The samples of a batch for which a step takes so long."""
    took = {}
    for size in (16, 64):
        model = DistributedDataParallel(ResNet())
        x, y = torch.randn(size, 3, 16, 16), torch.zeros(size, dtype=torch.long)
        each = []
        for _ in range(20):
            begun_s = time.thread_time()
            functional.cross_entropy(model(x), y).backward()
            each.append(1e3 * (time.thread_time() - begun_s))
        took[size] = statistics.median(each)
    return max(1, round(16 + (step_ms - took[16]) * 48 / (took[64] - took[16])))


def _measure(plan: dict[str, Any], size: int, blocks: int) -> dict[str, Any]:
    if plan["what"] == "marks":
        return _measure_marks(plan, size, blocks)
    took = defaultdict[bool, list[float]](list)
    threads = dict[bool, set[int]]()
    with contextlib.ExitStack() as stack:
        steps = {}
        for is_on in (False, True):
            before = {thread.ident for thread in threading.enumerate()}
            trained = training(f"{plan['run_dir']}-{is_on}", size, checksums=is_on)
            steps[is_on] = stack.enter_context(contextlib.closing(trained))
            for _ in range(WARM_UP):
                next(steps[is_on])
            started = {thread.ident for thread in threading.enumerate()} - before
            threads[is_on] = {ident for ident in started if ident is not None}
        time.sleep(SETTLE_S)
        others_s = {which: threads_s(threads[which]) for which in threads}
        for number in range(2 * blocks):
            is_on = bool(number % 2)
            took[is_on].append(_block_s(steps[is_on]))
        time.sleep(SETTLE_S)
        others = {which: (threads_s(threads[which]) - others_s[which]) / blocks / BLOCK for which in threads}
    return _costs(took, others)


def _measure_marks(plan: dict[str, Any], size: int, blocks: int) -> dict[str, Any]:
    """With marks at each step, as often as the run itself chose, and without any, in the same run.

    In the loop's thread, the median of the differences of two blocks in a row: what changes the time of a
    step for longer, such as where its memory lies, changes both. Other threads write later than they receive.
    """
    differences, without, others = [], [], defaultdict[bool, float](float)
    before = {thread.ident for thread in threading.enumerate()}
    with contextlib.closing(training(f"{plan['run_dir']}-marks", size, checksums=False)) as steps:
        for _ in range(WARM_UP):
            run: Any = next(steps)
        threads = {t.ident for t in threading.enumerate() if t.ident is not None} - before
        chosen = run._phases.every  # its step chooses anew, from what marks cost
        for pair in range(blocks // 2):
            order = (True, False) if pair % 2 else (False, True)
            took = {is_on: _block_s(steps, run, is_on=is_on) for is_on in order}
            differences.append(took[True] - took[False])
            without.append(took[False])
        for segment in range(SEGMENTS):
            time.sleep(SETTLE_S)
            begun_s = threads_s(threads)
            for _ in range(blocks // SEGMENTS):
                _block_s(steps, run, is_on=bool(segment % 2))
            time.sleep(SETTLE_S)
            others[bool(segment % 2)] += threads_s(threads) - begun_s
    step_s, more_s = statistics.median(without), statistics.median(differences)
    others_s = (others[True] - others[False]) / (SEGMENTS // 2 * (blocks // SEGMENTS) * BLOCK)
    return {
        "step_us": round(1e6 * step_s),
        "thread_us": round(1e6 * more_s, 1),
        "others_us": round(1e6 * others_s, 1),
        "share": (more_s + others_s) / step_s / chosen,
        "every": chosen,
    }


def _block_s(steps: Iterator[Run], run: Any = None, *, is_on: bool = False) -> float:
    """CPU seconds of this thread at a step, the mean of some; of `run`, all have marks or none has."""
    begun_s = 0.0
    for number in range(BLOCK + 1):
        if run is not None:
            run._phases.every = 1 if is_on else NEVER
        next(steps)
        if not number:  # of the first step, what precedes its log is as it was before
            begun_s = time.thread_time()
    return (time.thread_time() - begun_s) / BLOCK


def _costs(took: dict[bool, list[float]], others: dict[bool, float]) -> dict[str, Any]:
    without, watched = (statistics.quantiles(took[which], n=4)[0] for which in (False, True))
    return {
        "step_us": round(1e6 * without),
        "thread_us": round(1e6 * (watched - without), 1),
        "others_us": round(1e6 * (others[True] - others[False]), 1),
        "share": (watched - without + others[True] - others[False]) / without,
    }


def threads_s(idents: Iterable[int]) -> float:
    """CPU seconds of threads of this process that live."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


def training(directory: str, size: int, *, checksums: bool) -> Iterator[Run]:
    """A CNN with BatchNorm under DDP, step by step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet())
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Images(100 * size), batch_size=size)
    given = {"aggregate": False, "system_metrics": False, "histograms": False}
    with ds.init(directory, watch=model, optimizer=optimizer, checksums=checksums, **given) as run:
        while True:
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                yield run


if __name__ == "__main__":
    main()

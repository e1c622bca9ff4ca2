"""Which rank is slow, and why: episodes of known rank and cause against the verdicts, on four gloo ranks.

- `python -m benchmarks.culprit`: each cause at each excess; one JSON line an episode and one a training, then
  the table. `--count`, `--causes`, `--excess`, `--model fsdp2` choose episodes, `--out FILE` keeps the lines.
- `python -m benchmarks.culprit --blocked --model fsdp2`: the slow rank is blocked in place of computing, as
  by a disk or a server, in a phase in which the ranks wait for each other. Also with `--model tp`.
- `python -m benchmarks.culprit --clean 20000`: so many steps of four launches without an episode, but with
  evaluations, checkpoints (under DDP by rank 0) and collections of garbage.
- `python -m benchmarks.culprit --overhead 60`: CPU of the marks, for each step of the digits CNN: one process
  that is rank 0 of two trains by turns with and without them, so many times 10 steps.
- `make .venv-traceml/.done; python -m benchmarks.culprit --traceml .venv-traceml/bin`: what TraceML says of
  the same episodes, each in a training of its own under `traceml run`, in which 100 steps of it are traced.
- `python -m benchmarks.culprit --table FILE...`: the table of lines that were kept.

Half of the trainings run under torchrun, half under ds.launch. In an episode one rank takes longer in one
phase by a fraction of the CPU time of its own step, which it has measured before. It burns CPU time; "python"
collects a graph of objects of the right size somewhere in the step; "recording" records a tensor for so long;
"host" shares the rank's core with a busy process. An episode is right if the first verdict told in it names
rank and cause.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import distsummary as ds
from benchmarks.slow_rank import RANKS, Episode, Injector, batches, network, slow_adam
from distsummary.demo import DigitsNet, digits
from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.run_dir import RunDir
from distsummary.training.callbacks import Callback
from distsummary.training.run import Run

LAUNCHERS = ("torchrun", "ray")
BURNT = ("data", "forward", "backward", "optimizer", "python", "recording")
CAUSES = (*BURNT, "host")
LIMITS = {0.25: 10}  # excess -> steps within which it must be told; others: 40; a busy core: 160
LONG, SHORT = 60, 30  # steps of an episode of less than 25 % and of more
BUSY = 200  # and of a busy core
BLOCKED = 600  # and of a blocked rank: the times of collectives are looked at every few seconds
FIRST = 150  # the first step of an episode
GAP = (70, 110)  # clean steps between two episodes
A_RUN = 25  # episodes of one training
TRACED = 100  # steps of an episode that TraceML sees
TRACED_CAUSES = {
    "INPUT_STRAGGLER": "data",
    "COMPUTE_STRAGGLER": "forward",
    "STRAGGLER": None,
}  # its names for them
TRACED_NOTHING = ("NO_DATA", "WARMUP")
TRACED_S, TRACED_ATTEMPTS = 900, 4
TOLD_S = 60.0  # the last step waits so long for the alerts that must come while the ranks train


def train(plan: dict[str, Any]) -> None:
    """What each rank does; writes the CPU time of its own step beside the run."""
    torch.set_num_threads(1)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    rank, directory = torch.distributed.get_rank(), Path(plan["run_dir"])
    injector = Injector(plan["episodes"], rank)
    model = network(injector, plan["model"], plan["width"])

    optimizer = slow_adam(injector, model)
    loader = batches(injector, plan["steps"], plan["batch"])
    callbacks: list[Callback] = []
    if plan["is_clean"] and (rank == 0 or plan["model"] != "ddp"):  # all ranks save a model that is split
        config = ds.CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=2)
        callbacks.append(ds.ModelCheckpoint("net", str(directory.parent / "checkpoints"), config))
    with ds.init(
        directory, watch=model, optimizer=optimizer, callbacks=callbacks, collectors="process", quiet=True
    ) as run:
        for batch, target in run.steps(loader):
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            injector.at("body")
            record_more(run, batch, injector.due_ms("recording"))
            run.log(loss=loss)
            if plan["is_clean"]:
                evaluate(run, model, batch, target)
        if plan["await_alerts"]:
            if rank == 0:
                await_alerts(RunDir(directory), plan["await_alerts"])
            torch.distributed.barrier()
    injector.close()
    Path(directory.parent, f"own_{rank}.json").write_text(json.dumps(injector.own_ms))
    torch.distributed.destroy_process_group()


def record_more(run: ds.Run, batch: Tensor, ms: float) -> None:
    """Record a batch so many times that it takes so much CPU time of this thread."""
    end, number = time.thread_time() + 1e-3 * ms, 0
    while time.thread_time() < end:
        run.tensor(f"batch/{number}", batch)
        number += 1


def evaluate(run: ds.Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Every so many steps, what trainings also do: evaluate on all ranks, collect garbage."""
    if run.step % 150 == 0:
        with run.eval() as evaluation, torch.no_grad():
            for _ in evaluation.steps(range(5)):
                evaluation.log(loss=nn.functional.cross_entropy(model(x), y))
    if run.step % 250 == 0:
        gc.collect()


def await_alerts(run_dir: RunDir, count: int) -> None:
    """Wait until the run has so many alerts, which is before its ranks are merged at the end."""
    deadline_s = time.monotonic() + TOLD_S
    while len(read_alerts(run_dir)) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{run_dir.alerts_path} has not got {count} alerts within {TOLD_S:g} s")
        time.sleep(0.1)


# --- the plan -----------------------------------------------------------------------------------------------


def plans(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The trainings, with their episodes; the same for the same seed."""
    if given.clean:
        for number in range(4):
            yield {
                "launcher": LAUNCHERS[number % 2],
                "seed": given.seed,
                "model": given.model,
                "episodes": [],
                "steps": -(-given.clean // 4),
            }
        return
    chosen = random.Random(given.seed)
    cells = [(cause, excess) for cause in given.causes for excess in given.excess if cause != "host"]
    for causes in (cells, [("host", 1.0)] if "host" in given.causes else []):
        counts = {LAUNCHERS[0]: given.count - given.count // 2, LAUNCHERS[1]: given.count // 2}
        made = []
        for launcher in given.launchers:
            count = counts[launcher] if len(given.launchers) == 2 else given.count
            drawn = [cell for cell in causes for _ in range(count)]
            chosen.shuffle(drawn)
            for begin in range(0, len(drawn), given.episodes_a_run):
                made.append((launcher, drawn[begin : begin + given.episodes_a_run]))
        chosen.shuffle(made)  # so that a benchmark that is cut short has some of each
        for launcher, cells_of_run in made:
            episodes, step = [], FIRST
            for cause, excess in cells_of_run:
                end = step + (BUSY if cause == "host" else LONG if excess < 0.25 else SHORT)
                end = step + BLOCKED if given.blocked else end
                place = chosen.choice(("data", "forward", "backward", "optimizer", "body"))
                rank = chosen.randrange(RANKS)
                episodes.append(
                    {
                        "rank": rank,
                        "cause": cause,
                        "excess": excess,
                        "start": step,
                        "end": end,
                        "place": place,
                        "is_blocked": given.blocked,
                    }
                )
                step = end + chosen.randint(*GAP)
            yield {
                "launcher": launcher,
                "seed": given.seed,
                "model": given.model,
                "episodes": episodes,
                "steps": episodes[-1]["end"] + 40,
            }


def started(plan: dict[str, Any], directory: Path) -> None:
    """Run a training in processes of its own; raises CalledProcessError if it fails."""
    path = directory / "plan.json"
    path.write_text(json.dumps(plan))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    how = torchrun if plan["launcher"] == "torchrun" else []
    subprocess.run(
        [sys.executable, *how, "-m", "benchmarks.culprit", "--run-plan", str(path)],
        check=True,
        stdout=sys.stderr,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"},
    )


def run_plan(path: str) -> None:
    """A rank of torchrun, or the driver of Ray."""
    plan = json.loads(Path(path).read_text())
    if plan["launcher"] == "torchrun" or "RANK" in os.environ:
        train(plan)
    else:
        ds.launch(partial(train, plan), ranks=RANKS)


# --- the verdicts -------------------------------------------------------------------------------------------


def judged(plan: dict[str, Any], directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of a training: one for each episode, one for itself."""
    run_dir = RunDir(plan["run_dir"])
    own_ms = [json.loads((directory / f"own_{rank}.json").read_text()) for rank in range(RANKS)]
    why = [sys.executable, "-m", "distsummary", "why", plan["run_dir"], "--json"]
    verdicts = json.loads(subprocess.run(why, capture_output=True, text=True, check=False).stdout)["verdicts"]
    live = [Verdict.from_json(alert).as_json() for alert in read_alerts(run_dir)]
    common = {name: plan[name] for name in ("launcher", "seed", "model")} | {"tool": "distsummary"}
    left = list(verdicts)
    for episode in plan["episodes"]:
        here = [v for v in left if episode["start"] <= v["first_told_step"] < episode["end"]]
        found = here[0] if here else None
        if found:
            left.remove(found)
        else:  # told after its end: missed, but not false
            left = [v for v in left if not _is_late(v, episode)]
        again = [v for v in here[1:] if (v["rank"], v["cause"]) == (found["rank"], found["cause"])]
        left = [v for v in left if v not in again]
        limit = 160 if episode["cause"] == "host" else LIMITS.get(episode["excess"], 40)
        limit = BLOCKED if episode["is_blocked"] else limit
        delay = found["first_told_step"] - episode["start"] + 1 if found else None
        is_rank = found is not None and found["rank"] == episode["rank"]
        is_right = is_rank and found is not None and found["cause"] == episode["cause"]
        yield {
            **common,
            **episode,
            "own_ms": round(own_ms[episode["rank"]].pop(0), 3),
            "told": found,
            "again": len(again),
            "delay": delay,
            "is_rank_right": is_rank,
            "is_right": is_right,
            "is_in_time": is_right and delay is not None and delay <= limit,
        }
    slow_steps = sum(episode["end"] - episode["start"] for episode in plan["episodes"])
    yield {
        **common,
        "steps": plan["steps"],
        "clean_steps": plan["steps"] - slow_steps,
        "is_clean": plan["is_clean"],
        "false": left,
        "live_only": [alert for alert in live if alert not in verdicts],
        "is_live_equal": sorted(map(json.dumps, live)) == sorted(map(json.dumps, verdicts)),
        "load": round(os.getloadavg()[0], 1),
    }


def _is_late(verdict: dict[str, Any], episode: Episode) -> bool:
    first, last = episode["start"], episode["end"]
    is_it = (verdict["rank"], verdict["cause"]) == (episode["rank"], episode["cause"])
    return is_it and first <= verdict["since_step"] < last <= verdict["first_told_step"] < last + 40


def traced(plan: dict[str, Any], directory: Path, binaries: Path) -> Iterator[dict[str, Any]]:
    """What TraceML's summary says of the episodes of a plan, each in a training of its own."""
    for number, episode in enumerate(plan["episodes"]):
        place = directory / str(number)
        place.mkdir()
        here = episode | {"start": FIRST, "end": FIRST + TRACED}
        one = plan | {"directory": str(place), "episodes": [here], "steps": FIRST + TRACED - 1}
        (place / "plan.json").write_text(json.dumps(one))
        script = Path(__file__).with_name("culprit_traceml.py")
        # On a busy host its aggregator does not start within its 15 s now and then, or is given no steps.
        for attempt in range(TRACED_ATTEMPTS):
            options = f"--nproc-per-node {RANKS} --run-name run_{attempt} --logs-dir {place}".split()
            ended = subprocess.run(
                [binaries / "traceml", "run", script, *options, "--args", place / "plan.json"],
                check=attempt == TRACED_ATTEMPTS - 1,
                stdout=sys.stderr,
                timeout=TRACED_S,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PATH": f"{binaries.absolute()}:{os.environ['PATH']}",
                    "PYTHONPATH": str(script.parents[1]),
                },
            )
            summary_path = place / f"run_{attempt}" / "final_summary.json"
            if ended.returncode == 0:
                told = json.loads(summary_path.read_text())["step_time"]["diagnosis"]
                if told["kind"] not in TRACED_NOTHING:
                    break
        is_rank = told["kind"] in TRACED_CAUSES and told["ranks"] == [episode["rank"]]
        is_right = is_rank and TRACED_CAUSES[told["kind"]] == episode["cause"]
        yield {
            **{name: plan[name] for name in ("seed", "model")},
            **here,
            "tool": "TraceML",
            "launcher": "traceml",
            "own_ms": json.loads((place / f"own_{episode['rank']}.json").read_text())[0],
            "told": told,
            "again": 0,
            "delay": TRACED if is_right else None,
            "is_rank_right": is_rank,
            "is_right": is_right,
            "is_in_time": is_right,
            "load": round(os.getloadavg()[0], 1),
        }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """What was found of each kind of episode, and the false alarms."""
    cells = defaultdict[tuple[str, float, str], list[dict[str, Any]]](list)
    runs = []
    for line in lines:
        if "steps" in line:
            runs.append(line)
        else:
            tool = "" if line["tool"] == "distsummary" else f", {line['tool']}"
            cells[line["model"] + tool, line["excess"], line["cause"]].append(line)
    text = [
        "| model | excess | cause | rank and cause | rank | in time | delay: median, largest | told again |"
    ]
    text.append("|---|---|---|---|---|---|---|---|")
    for (model, excess, cause), found in sorted(cells.items()):
        delays = [line["delay"] for line in found if line["is_right"]]
        late = f"{statistics.median(delays):g}, {max(delays)}" if delays else "-"
        counts = [
            f"{sum(line[name] for line in found)} of {len(found)}"
            for name in ("is_right", "is_rank_right", "is_in_time")
        ]
        again = sum(line["again"] for line in found)
        how = "busy core" if cause == "host" else f"{excess:.0%}"
        text.append(f"| {model} | {how} | {cause} | {' | '.join(counts)} | {late} | {again} |")
    for is_clean, name in ((True, "without episodes"), (False, "between episodes")):
        mine = [line for line in runs if line["is_clean"] == is_clean]
        if mine:
            wrong = sum(len(line["false"]) for line in mine)
            steps = sum(line["clean_steps"] for line in mine)
            text.append(f"{name}: {wrong} false in {steps:,} steps of {len(mine)} trainings")
    if runs:
        equal = sum(line["is_live_equal"] for line in runs)
        text.append(f"alerts while training equal those from files: {equal} of {len(runs)} trainings")
    if loads := [line["load"] for line in lines if "load" in line]:
        text.append(f"load {min(loads)} to {max(loads)}")
    if owns := [line["own_ms"] for found in cells.values() for line in found]:
        text.append(f"own CPU time of a step {min(owns):.2g} to {max(owns):.2g} ms")
    return "\n".join(text)


def measure(plan: dict[str, Any], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One training and its lines."""
    directory = Path(tempfile.mkdtemp(prefix="culprit-", dir=given.keep))
    try:
        whole = plan | {
            "run_dir": str(directory / "run"),
            "is_clean": bool(given.clean),
            "width": given.width,
            "batch": given.batch,
            "await_alerts": len(plan["episodes"]) if given.live else 0,
        }
        if given.traceml:
            yield from traced(whole, directory, given.traceml)
            return
        started(whole, directory)
        yield from judged(whole, directory)
    finally:
        if given.keep is None:
            shutil.rmtree(directory)


# --- what it costs ------------------------------------------------------------------------------------------

BLOCK, SETTLE_S = 10, 1.0  # steps in a row; the writer's thread has written them after that


def overhead(blocks: int) -> str:
    """What the marks add to the CPU time of a step: of the training's thread, and of the run's other threads.

    On a busy host the CPU time of the same step varies by half: of the blocks of each training the quickest
    quarter counts, at its upper end.
    """
    torch.set_num_threads(1)
    measure_phases = Run._measure_phases
    took = defaultdict[bool, list[float]](list)
    threads = dict[bool, set[int]]()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        steps = {}
        for is_marked in (False, True):
            before = {thread.ident for thread in threading.enumerate()}
            with unittest.mock.patch.object(
                Run, "_measure_phases", measure_phases if is_marked else lambda run: None
            ):
                steps[is_marked] = stack.enter_context(
                    contextlib.closing(digits_steps(f"{directory}/{is_marked}"))
                )
                for _ in range(100):
                    next(steps[is_marked])
            started = {thread.ident for thread in threading.enumerate()} - before
            threads[is_marked] = {ident for ident in started if ident is not None}
        time.sleep(SETTLE_S)
        others_s = {which: threads_s(threads[which]) for which in threads}
        for number in range(2 * blocks):
            is_marked = bool(number % 2)
            begun_s = time.thread_time()
            for _ in range(BLOCK):
                next(steps[is_marked])
            took[is_marked].append((time.thread_time() - begun_s) / BLOCK)
        time.sleep(SETTLE_S)
        others = {which: (threads_s(threads[which]) - others_s[which]) / blocks / BLOCK for which in threads}
    without, marked = (statistics.quantiles(took[which], n=4)[0] for which in (False, True))
    more, more_others = marked - without, others[True] - others[False]
    return (
        f"the training's thread: {1e6 * without:.0f} us a step without, {1e6 * marked:.0f} us with marks: "
        f"{1e6 * more:.0f} us more\nthe run's other threads: {1e6 * others[False]:.0f} us, "
        f"{1e6 * others[True]:.0f} us: {1e6 * more_others:.0f} us more\n"
        f"together {1e6 * (more + more_others):.0f} us, {(more + more_others) / without:.2%} of the step"
    )


def threads_s(idents: Iterable[int]) -> float:
    """CPU seconds of threads of this process that live."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


def digits_steps(directory: str) -> Iterator[None]:
    """A training of the digits CNN, step by step."""
    torch.manual_seed(0)
    model = DigitsNet()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(digits()[0], batch_size=16, shuffle=True)
    given = {"rank": 0, "world_size": 2, "system_metrics": False, "histograms": False}
    with ds.init(directory, watch=model, optimizer=optimizer, quiet=True, **given) as run:
        while True:
            for x, y in run.steps(loader):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss, lr=0.01)
                yield


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=list(CAUSES))
    parser.add_argument("--excess", nargs="+", type=float, default=[0.25, 0.1])
    parser.add_argument("--count", type=int, default=30, help="episodes of each cause and excess")
    parser.add_argument("--episodes-a-run", type=int, default=A_RUN)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--model", choices=("ddp", "fsdp2", "tp"), default="ddp")
    parser.add_argument("--blocked", action="store_true", help="the rank sleeps in place of computing")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clean", type=int, default=0, metavar="STEPS")
    parser.add_argument("--live", action="store_true", help="wait for all alerts before the training ends")
    parser.add_argument(
        "--traceml", type=Path, metavar="BIN", help="TraceML in place of distsummary; its bin"
    )
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--keep", type=Path, help="keep the runs in this directory")
    parser.add_argument("--overhead", type=int, metavar="BLOCKS", help="only measure the cost of the marks")
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of these files")
    parser.add_argument("--run-plan", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run_plan:
        run_plan(given.run_plan)
        return
    if given.overhead:
        print(overhead(given.overhead))
        return
    lines: list[dict[str, Any]] = []
    if given.table:
        for path in given.table:
            lines += map(json.loads, path.read_text().splitlines())
    else:
        for plan in plans(given):
            for line in measure(plan, given):
                lines.append(line)
                print(json.dumps(line), flush=True)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()

"""A process that trains while exceptions are injected into distsummary: `python -m tests.torture.guard_rank`.

A trace function raises at the lines of our code in turn: at the entry of each function and at each line that
the training thread reaches, in every fifth step, until all lines that were reached had one; then again from
the beginning. Exempt are the guard itself, and what drives the training outside of it. Garbage with cycles is
collected all the time.

The losses of the training have to be those of the same training without distsummary, bit for bit. The last
line printed is JSON.
"""

import argparse
import contextlib
import gc
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import distsummary as ds
from distsummary.base import guard, private
from distsummary.base.health import Health
from distsummary.errors import InvalidValueError, RunDirError
from distsummary.frameworks import torch_hook

PACKAGE = os.path.dirname(ds.__file__) + os.sep
EVERY = 5  # a fault in every fifth step
LEFT_OUT = 0.3  # of the sites, each time that they are reached
GUARDS = {guard.__file__, torch_hook.__file__}
# The guards themselves, what calls listeners that have one, and code of ours that trains, rather than
# recording a training.
EXEMPT = (
    GUARDS
    | {ds.summary.__file__}
    | {
        PACKAGE + name
        for name in (
            "frameworks/torch_step_hooks.py",
            "model/model.py",
            "model/torch_steps.py",
            "training/resumed.py",
            "training/learning_rate.py",
        )
    }
)
# What counts steps, checks arguments and calls hooks: of it, only what a guard calls.
DRIVERS = {
    PACKAGE + name
    for name in (
        "base/checks.py", "base/failures.py", "collect/older_order.py", "collect/record.py",
        "model/model_run.py", "training/callbacks.py", "training/evaluation.py", "training/given.py",
        "training/recording.py", "training/run.py", "training/step_context.py", "training/values.py",
    )
}  # fmt: skip
# Calls of torch that are measured: a look at the thread, calls of ours, and the call of torch.
WAITS = PACKAGE + "training/timing/torch_waits.py"
MEASURED = {
    "_method.<locals>.method",
    "_Call.__call__",
    "_engine_of.<locals>._Engine.run_backward",
    "_engine_of.<locals>._Engine.run_backward.<locals>.<genexpr>",
    "_mark_gradients",
    "_mark_gradients.<locals>.queue",
    "_ddp_waits.<locals>.prepare_for_backward",
    "_report",
    "_stop",
}
SHORT = ("begin", "end", "error", "close", "close_record")  # a training of three steps for each fault


class Injected(Exception):
    """What the fuzz raises."""


class InjectedValueError(InvalidValueError, Injected):
    """The same, of a class that some guarded methods raise on purpose."""


class InjectedDirError(RunDirError, Injected):
    """The same, of a class by which a run is refused."""


class Logged(logging.Handler):
    """Keeps what distsummary logs: a part that has no run counts by a line."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.messages.append(record.getMessage())


class Faults:
    """Raises at the next line of ours that had no fault yet, once it is armed.

    Args:
        seen: the sites (file, function, line and event) that had their fault in earlier trainings.
        phase: of EVERY steps, which has a fault.
        seed: by it, some sites are left out at first, so that further ones are reached.
    """

    def __init__(self, seen: set[str], phase: int, seed: str) -> None:
        self.seen, self._phase = seen, phase
        self._chance = random.Random(seed)
        self.injected: list[str] = []
        # Numbers of faults which our code may handle: by their class, or as a private name that is absent.
        self.special: set[int] = set()
        self.is_armed = False
        # Held here: CPython 3.11 forgets a trace function that raises, also if garbage is collected, in whose
        # callbacks it raises, while it is about to be called for another frame.
        self._global, self._local = self._trace, self._trace_lines

    def arm(self) -> None:
        """Raise once, as soon as a site is reached."""
        self.is_armed = True
        sys.settrace(self._global)

    def at(self, number: int) -> None:
        """Raise once in a step that is to have a fault; the first has none, as it opens the files."""
        (self.arm if number and number % EVERY == self._phase else self.rest)()

    def rest(self) -> None:
        """Raise nothing."""
        self.is_armed = False
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.is_armed or not _is_ours(frame):
            return None
        self._raise_at(frame, "call")
        return self._local

    def _trace_lines(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and self.is_armed:
            self._raise_at(frame, "line")
        return self._local

    def _raise_at(self, frame: FrameType, event: str) -> None:
        code = frame.f_code
        site = f"{code.co_filename.removeprefix(PACKAGE)}|{code.co_qualname}|{frame.f_lineno}|{event}"
        if site in self.seen or self._chance.random() < LEFT_OUT:
            return
        self.seen.add(site)
        self.injected.append(site)
        self.is_armed = False
        kind: type[Exception] = InjectedValueError if len(self.injected) % 2 else InjectedDirError
        if len(self.injected) % 3 or _passes(kind, frame):
            kind = Injected
        if kind is not Injected or _call_of({private.__file__}, frame):
            self.special.add(len(self.injected))
        raise kind(f"fault {len(self.injected)} of the fuzz")


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to code that a guard protects, or has to."""
    name, function = frame.f_code.co_filename, frame.f_code.co_qualname
    if not name.startswith(PACKAGE) or name in EXEMPT or (name == WAITS and function in MEASURED):
        return False
    return name not in DRIVERS or _call_of(GUARDS, frame) is not None


def _call_of(files: Collection[str], frame: FrameType | None) -> FrameType | None:
    """The innermost call of a function of these files that a frame is in."""
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return frame


def _passes(kind: type[Exception], frame: FrameType) -> bool:
    """Whether the guard of a frame lets exceptions of a kind pass."""
    found = _call_of(GUARDS, frame)
    return found is not None and issubclass(kind, found.f_locals.get("passing", ()))


class Net(nn.Module):
    """A small network with BatchNorm, and operators of ds.summary if they are wanted."""

    def __init__(self, *, taps: bool = False) -> None:
        super().__init__()
        self.convolve, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 4 * 4, 2)
        self._taps = taps

    def forward(self, x: Tensor) -> Tensor:
        """Two classes of pictures of 6 x 6 pixels."""
        x = torch.relu(self.norm(self.convolve(x)))
        if self._taps:
            ds.summary.scalar("mean", x.mean())
            ds.summary.histogram("activations", x)
            ds.summary.tensor("first", x[0, 0])
            ds.summary.image("picture", x[0, :1])
            x = ds.summary.gradient("gradient", x)
        out: Tensor = self.head(x.flatten(1))
        return out


class Task:
    """A training that is the same whenever it is made: model, optimizer and batches follow from seeds."""

    def __init__(self, steps: int, rank: int = 0, **options: Any) -> None:
        torch.manual_seed(0)
        self.model: Any = Net(**options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(rank)
        self.batches = [
            (torch.randn(4, 1, 6, 6, generator=generator), torch.randint(2, (4,), generator=generator))
            for _ in range(steps)
        ]
        self.losses: list[float] = []

    def step(self, batch: tuple[Tensor, Tensor], *, is_whole: bool = True) -> Tensor:
        """Train on a batch; leaves garbage with cycles."""
        x, y = batch
        loss: Tensor = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if is_whole:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())
        garbage: dict[str, Any] = {}
        garbage["me"] = [garbage]
        return loss.detach()


class Ours(ds.Callback):
    """A callback of the user's that takes part in the training: without it, other losses come out."""

    def __init__(self, task: Task) -> None:
        self.task, self.ended = task, 0

    def on_train_step_end(self, run_context: Any) -> None:
        """Lower the learning rate."""
        self.ended += 1
        for group in self.task.optimizer.param_groups:
            group["lr"] *= 0.999


Arm = Callable[[int], None]


def plain(run: Any, task: Task, arm: Arm) -> None:
    """The loop of the README."""
    for number, batch in enumerate(run.steps(task.batches)):
        arm(number)
        loss = task.step(batch)
        run.log(loss=loss, lr=0.1, **{"of/host": float(number)})


def next_step(run: Any, task: Task, arm: Arm) -> None:
    """A loop without a loader."""
    for number, batch in enumerate(task.batches):
        arm(number)
        with run.next_step():
            run.log(loss=task.step(batch))
        if number % 7 == 0:
            run.next_step()


def log_only(run: Any, task: Task, arm: Arm) -> None:
    """A loop that only logs."""
    for number, batch in enumerate(task.batches):
        arm(number)
        loss = task.step(batch)
        if number % 2:
            run.log({"loss": float(loss), "train": {"host": 1.0}})
        else:
            run.log(loss=loss, **{"train/host": 1.0})
        run.histogram("pixels", batch[0])


def kinds(run: Any, task: Task, arm: Arm) -> None:
    """Epochs, accumulation, evaluations, and values of every kind."""
    half = len(task.batches) // 2
    for epoch in run.epochs(2):
        number = epoch * half
        for position, batch in enumerate(run.steps(task.batches[number : number + half], accumulate=2)):
            arm(number + position)
            loss = task.step(batch, is_whole=position % 2 == 1)
            run.log(loss=float(loss))
            run.histogram("pixels", batch[0])
            run.image("picture", batch[0][:1])
            run.tensor("array", batch[0][0, 0])
            run.text("text", "a text")
            run.add_value("scalar", "number", 1)
            if position % 4 == 3:
                with run.eval() as evaluation:
                    for _ in evaluation.steps(task.batches[:2]):
                        pass
                    evaluation.log(accuracy=0.5)
            run.health()


def record(made: Any, task: Task, arm: Arm) -> None:
    """A SummaryRecord."""
    for number, batch in enumerate(task.batches):
        arm(number)
        loss = task.step(batch)
        made.add_value("scalar", "loss", loss)
        made.add_value("scalar", "host", 0.5)
        if number % 3 == 0:
            made.add_value("tensor", "array", batch[0][0, 0])
            made.add_value("image", "picture", batch[0])
            made.add_value("histogram", "pixels", batch[0])
        made.record(number, task.model if number % 50 == 0 else None)
        made.scalars(number, {"quick": 0.5})
        if number % 20 == 19:
            made.set_mode("eval" if number % 40 == 19 else "train")
            made.flush()


def _run(task: Task, place: Path, faults: Faults, loop: Any, **options: Any) -> list[Health]:
    """A training by `ds.init`; begin and end have faults, too, if `loop` wants that."""
    options = {
        "watch": task.model, "optimizer": task.optimizer, "histograms": ".*", "graph": "modules",
        "quiet": True, "system_metrics": False,
    } | options  # fmt: skip
    with ds.init(place, **options) as run:
        loop(run, task, faults.at)
        faults.rest()
    return [run.health()]


RANKED = {"rank": 0, "world_size": 2, "aggregate": False}


def _variant(name: str, task: Task, place: Path, faults: Faults) -> list[Health]:
    """Train one variant; returns what it counted."""
    if name == "model":
        return _model(task, place, faults)
    if name == "record":
        with ds.SummaryRecord(place, export_options={"tensor_format": "npy"}, network=task.model) as made:
            record(made, task, faults.at)
            faults.rest()
        return [made.health()]
    options: dict[str, Any] = {
        "plain": {"collect_freq": 5},
        "phases": RANKED,
        "norms": {**RANKED, "norms": True, "gradients": ".*", "checksums": 1, "collect_freq": 5},
        "next_step": {**RANKED, "collect_freq": 5},
        "log_only": {**RANKED, "collect_freq": 5},
        "operators": {"collect_freq": 5, "graph": "ops"},
        "compiled": {"collect_freq": 5},
        "kinds": {"record": ds.Record(formats=("mindspore", "tensorboard"))},
        "callbacks": {
            "callbacks": [
                Ours(task),
                ds.TimeMonitor(data_time=True),
                ds.History(),
                ds.ModelCheckpoint(
                    "net",
                    place.with_name(f"{place.name}-ckpt"),
                    ds.CheckpointConfig(save_checkpoint_steps=10),
                ),
            ],
            "record": ds.Record(collect_landscape={"intervals": [[20, 30, 40, 50]]}),
        },
        "ddp": {"norms": True, "checksums": 1, "collect_freq": 5},
    }[name]
    loop = {"next_step": next_step, "log_only": log_only, "kinds": kinds}.get(name, plain)
    return _run(task, place, faults, loop, **options)


def _model(task: Task, place: Path, faults: Faults) -> list[Health]:
    class Steps(ds.Callback):
        """Arms, and notes the losses."""

        def on_train_step_begin(self, run_context: Any) -> None:
            faults.rest()  # what this callback itself reads
            faults.at(run_context.original_args().cur_step_num)

        def on_train_step_end(self, run_context: Any) -> None:
            faults.rest()
            task.losses.append(float(run_context.original_args().net_outputs))

    collector = ds.SummaryCollector(place, collect_freq=5)
    model = ds.Model(task.model, nn.CrossEntropyLoss(), task.optimizer, metrics={"acc"})
    callbacks = [Steps(), collector, ds.LossMonitor(10**6), ds.TimeMonitor()]
    model.train(1, task.batches, callbacks=callbacks, dataset_sink_mode=False)
    faults.rest()
    return [collector.health()]


def _reference(name: str, task: Task) -> list[float]:
    """The losses of a training without distsummary."""
    callback = Ours(task)
    for number, batch in enumerate(task.batches):
        task.step(batch, is_whole=name != "kinds" or number % 2 == 1)
        if name == "callbacks":
            callback.on_train_step_end(None)
    return task.losses


def _task(name: str, steps: int, rank: int) -> Task:
    task = Task(steps, rank, taps=name in ("operators", "compiled"))
    if name == "compiled":
        task.model = torch.compile(task.model, backend="aot_eager")
    elif name == "ddp":
        task.model = nn.parallel.DistributedDataParallel(task.model)
        task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    return task


def short(faults: Faults, place: Path, which: str) -> list[Health]:
    """A training of three steps with one fault while it begins, or while it ends."""
    if which == "close_record":
        made = ds.SummaryRecord(place)
        made.add_value("scalar", "loss", 0.5)
        made.record(1)
        faults.arm()
        made.close()
        faults.rest()
        return [made.health()]
    task = Task(3)
    run = ds.init(
        place, watch=task.model, optimizer=task.optimizer, quiet=True, system_metrics=which == "end", **RANKED
    )
    if which == "begin":
        faults.arm()
    with contextlib.suppress(ZeroDivisionError), run:
        for batch in run.steps(task.batches):
            if which == "begin":
                faults.rest()
            run.log(loss=task.step(batch))
        if which != "begin":
            faults.arm()
        if which == "error":
            raise ZeroDivisionError
        if which == "close":
            run.close()
    faults.rest()
    return [run.health()]


def main() -> int:
    """Train, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant")
    parser.add_argument("place", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seen", type=Path, required=True, help="the sites that had a fault; written again")
    parser.add_argument("--phase", type=int, default=4, help="of five steps, which has a fault")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seen = set(json.loads(options.seen.read_text())) if options.seen.exists() else set()
    faults = Faults(seen, options.phase, f"{options.seed} {options.place.name}")
    logging.getLogger("distsummary").addHandler(logged := Logged())
    name, place, rank = options.variant, options.place, int(os.environ.get("RANK", "0"))
    if name == "ddp":
        torch.distributed.init_process_group("gloo")
    found: dict[str, Any] = {"variant": name, "reached": [], "unequal": 0}
    healths: list[Health] = []
    expected = [] if name in SHORT else _reference(name, _task(name, options.steps, rank))
    gc.collect()
    gc.freeze()
    gc.set_threshold(1)
    task = _task(name, options.steps, rank)
    # Of the short ones, one training after the other, until each site has had its fault.
    for number in range(options.steps if name in SHORT else 1):
        before = len(faults.injected)
        try:
            if name in SHORT:
                healths += short(faults, place / str(number), name)
            else:
                healths = _variant(name, task, place, faults)
        except Injected as error:
            faults.rest()
            found["reached"].append(_where(error))
        if len(faults.injected) == before:
            break
    gc.set_threshold(700)
    faults.rest()
    if name not in SHORT:
        losses = task.losses
        found["unequal"] = int(np.asarray(losses).tobytes() != np.asarray(expected[: len(losses)]).tobytes())
        found["missing"] = len(expected) - len(losses)
        if rank == 0 and not found["reached"]:
            found["steps"] = _steps_of(place)  # it can be read
    reasons = "\n".join([*logged.messages, *(why for health in healths for why in health.errors)])
    uncounted = [
        site
        for number, site in enumerate(faults.injected, 1)
        if number not in faults.special and f"fault {number} of the fuzz" not in reasons
    ]
    found |= {"injected": len(faults.injected), "uncounted": uncounted, "sites": faults.injected}
    found["counted"] = len(faults.injected) - len(uncounted)
    options.seen.write_text(json.dumps(sorted(faults.seen)))
    if name == "ddp":
        torch.distributed.destroy_process_group()
    print(json.dumps(found), flush=True)
    return 0


def _steps_of(place: Path) -> int:
    """How many steps of the run at `place` have a loss."""
    run = ds.open_run(place)
    for tag in ("loss", "loss/auto"):
        with contextlib.suppress(InvalidValueError):  # it was not recorded
            return len(run.scalars(tag))
    return 0


def _where(error: BaseException) -> str:
    trace, places = error.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.removeprefix(PACKAGE)}:{trace.tb_lineno} {code.co_qualname}")
        trace = trace.tb_next
    return f"{type(error).__name__}: " + " < ".join(places[::-1])


if __name__ == "__main__":
    sys.exit(main())

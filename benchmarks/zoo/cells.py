"""The cells of the table: each is one measurement, kept in a file of results and valid while its key is.

A key is a hash of the code that measures and judges, without comments and docstrings.
"""

import ast
import hashlib
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import grimp

from benchmarks.zoo import costs, hangs, sick
from benchmarks.zoo.launch import LAUNCHERS, run
from benchmarks.zoo.plans import BUSY, FULL, RANKS, SMALL, STALLS, Schedule, episodes, stalls, steps_for
from benchmarks.zoo.trainings import SIZES, TRAININGS
from benchmarks.zoo.verdicts import judged

ROOT = Path(__file__).parents[2]
RANK = "benchmarks.zoo.rank"
RESULTS = ROOT / "benchmarks/zoo/results.jsonl"
TARGET_MS, SIZED_STEPS = 15.0, 30  # CPU time of a whole step, for which the size of a batch is chosen
CLEAN_STEPS, BUSY_STEPS = 2000, 500
LOADED = ("resnet-bn", "gpt-checkpointing", "lstm", "clipping", "zero")  # beside busy processes
STALLING = ("resnet-bn", "gpt-compile", "clipping", "validation", "zero", "mlp")  # also in single steps
SMALLER = ("mlp", "fsdp2", "tp")  # also with faults of 10 %
TIMED = ("mlp", "resnet-bn-local")  # on two ranks, of which `lost_s` is compared with what was slept
LOST = Schedule(share=0.5, each=1, length=80)

# What decides a cell: files, and modules with all of ROOMS that they import.
ROOMS = ("distsummary.diagnosis.", "distsummary.training.timing.", "distsummary.collect.compare.")
_TIMES = ("distsummary.training.timing.torch_phases", "distsummary.training.timing.torch_waits")
_SUMS = "distsummary.collect.compare.torch_checksums"
CODE = {
    "train": ("benchmarks/zoo/{rank,nets,data,faults}.py", ()),
    "slow": (
        "distsummary/aggregate/judging.py benchmarks/zoo/{plans,verdicts}.py",
        (*_TIMES, "distsummary.diagnosis.judge", "distsummary.diagnosis.cost"),
    ),
    "hang": (
        "distsummary/{aggregate/stuck_ranks,collect/watcher}.py benchmarks/zoo/hangs.py",
        ("distsummary.diagnosis.stuck_files", "distsummary.diagnosis.crash"),
    ),
    "sick": (
        "distsummary/aggregate/{judging,like_ranks}.py benchmarks/zoo/sick.py",
        ("distsummary.aggregate.sick_ranks", "distsummary.collect.compare.rank_checks"),
    ),
    "cost": ("benchmarks/zoo/{costs,nets,data}.py", (*_TIMES, _SUMS)),
}


@dataclass(frozen=True)
class Cell:
    """One measurement: `measure` takes a directory for its runs and returns what is kept, as JSON.

    `minutes`: how long it takes on a quiet machine of two cores. `is_busy`: beside busy processes.
    """

    name: str
    key: str
    minutes: float
    measure: Callable[[Path], dict[str, Any]]
    is_busy: bool = False


def cells() -> Iterator[Cell]:
    """All cells, in the order in which they are measured."""
    for name in TRAININGS:
        yield Cell(f"size/{name}", key("train", training=name), 0.4, partial(_size, name))
    for number, name in enumerate(TRAININGS):
        both = key("train", "slow", training=name)
        launcher, other = LAUNCHERS[number % 2], LAUNCHERS[(number + 1) % 2]
        yield Cell(f"clean/{name}", both, 2.0, partial(_clean, name, launcher, CLEAN_STEPS))
        yield Cell(f"slow/{name}", both, 1.5, partial(_slow, name, other, FULL))
        if name in SMALLER:
            yield Cell(f"slow-10/{name}", both, 2.0, partial(_slow, name, launcher, SMALL))
        if name in STALLING:
            yield Cell(f"stalls/{name}", both, 1.0, partial(_stalls, name, launcher))
        if name in TIMED:
            yield Cell(f"lost/{name}", both, 1.0, partial(_slow, name, other, LOST, ranks=2))
        if name in LOADED:
            yield Cell(f"busy-clean/{name}", both, 4.0, partial(_clean, name, other, BUSY_STEPS), True)
            yield Cell(f"busy-slow/{name}", both, 5.0, partial(_slow, name, launcher, BUSY), True)
    for kind, launcher, number in hangs.cases():
        measure = partial(hangs.episode, kind, launcher, number)
        yield Cell(f"hang/{kind}/{number}", key("hang"), 0.4, measure)
    for name, plan, minutes in sick.plans():
        yield Cell(f"sick/{name}", key("sick"), minutes, partial(sick.measure, plan))
    for what, ms in costs.CASES:
        yield Cell(f"cost/{what}-{ms}", key("cost"), 1.0, partial(costs.measure, what, ms))


def _size(name: str, directory: Path) -> dict[str, Any]:
    """The samples of a batch with which a whole step takes each rank TARGET_MS of CPU time."""
    small = SIZES[name]
    own = []
    for size in (small, 2 * small):
        plan = _plan(name, directory / str(size), size, SIZED_STEPS, [])
        run(RANK, plan, "torchrun")
        own.append(statistics.median(one["own_ms"] for one in _ranks(plan)))
    each = (own[1] - own[0]) / small
    size = small + (TARGET_MS - own[0]) / each if each > 0 else 2 * small
    return {"size": max(1, round(size)), "own_ms": own, "of": [small, 2 * small]}


def _clean(name: str, launcher: str, steps: int, directory: Path) -> dict[str, Any]:
    """A training without faults."""
    return _measured(_plan(name, directory / "run", size_of(name), steps, []), launcher, FULL.limit)


def _slow(
    name: str, launcher: str, schedule: Schedule, directory: Path, ranks: int = RANKS
) -> dict[str, Any]:
    """A training with faults."""
    planned = episodes(name, schedule, ranks=ranks)
    plan = _plan(name, directory / "run", size_of(name), steps_for(planned), planned, ranks)
    return _measured(plan, launcher, schedule.limit)


def _stalls(name: str, launcher: str, directory: Path) -> dict[str, Any]:
    """A training with ranks that take much longer in single steps: those of an episode count as one."""
    planned = episodes(name, STALLS)
    single = [step for one in planned for step in stalls(one)]
    plan = _plan(name, directory / "run", size_of(name), steps_for(planned), single)
    return _measured(plan, launcher, STALLS.limit, planned)


def _measured(
    plan: dict[str, Any], launcher: str, limit: int, planned: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A training, judged by its episodes, or by those `planned` of which these are the single steps."""
    run(RANK, plan, launcher)
    ranks = _ranks(plan)
    done = [episode for rank in ranks for episode in rank["done"]]
    done = [_whole(one, done) for one in planned] or done
    return {
        "launcher": launcher,
        "size": plan["size"],
        "steps": plan["steps"],
        "clean_steps": plan["steps"] - sum(one["end"] - one["start"] for one in plan["episodes"]),
        "own_ms": [round(rank["own_ms"], 2) for rank in ranks],
        "wall_ms": round(statistics.median(rank["wall_ms"] for rank in ranks), 2),
        "limit": limit,
        **judged(plan["run_dir"], plan["training"], sorted(done, key=lambda one: one["start"]), limit),
    }


def _whole(planned: dict[str, Any], done: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """An episode of which only single steps were injected."""
    mine = [one for one in done if planned["start"] <= one["start"] < planned["end"]]
    total = {"total_s": sum(one["total_s"] for one in mine)}
    return mine[0] | {name: planned[name] for name in ("start", "end")} | total


def _plan(
    name: str, run_dir: Path, size: int, steps: int, planned: list[dict[str, Any]], ranks: int = RANKS
) -> dict[str, Any]:
    return {
        "training": name,
        "run_dir": str(run_dir),
        "size": size,
        "steps": steps,
        "seed": 0,
        "episodes": planned,
        "ranks": ranks,
    }


def _ranks(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank measured of itself."""
    paths = (Path(f"{plan['run_dir']}-rank{rank}.json") for rank in range(plan["ranks"]))
    return [json.loads(path.read_text()) for path in paths]


def size_of(name: str) -> int:
    """The samples of a batch that were found for this machine; raises RuntimeError if they were not."""
    cell = next(cell for cell in cells() if cell.name == f"size/{name}")
    for row in reversed(rows()):
        if (row["cell"], row["key"], row["machine"]) == (cell.name, cell.key, machine()):
            return int(row["size"])
    raise RuntimeError(f"{cell.name} is not measured on this machine: python -m benchmarks.zoo run")


# --- results ------------------------------------------------------------------------------------------------


def rows() -> list[dict[str, Any]]:
    """All results that are kept, oldest first."""
    return [*map(json.loads, RESULTS.read_text().splitlines())] if RESULTS.exists() else []


def keep(row: dict[str, Any]) -> None:
    """Add a result to the file."""
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def valid(found: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By cell: the newest result whose key is that of the code as it is now."""
    keys = {cell.name: cell.key for cell in cells()}
    return {row["cell"]: row for row in found if keys.get(row["cell"]) == row["key"]}


def is_done(cell: Cell, row: dict[str, Any] | None) -> bool:
    """Whether a valid result need not be measured again: the size of a batch is that for one machine."""
    return row is not None and (row["machine"] == machine() or not cell.name.startswith("size/"))


def measured(cell: Cell, directory: Path, **conditions: Any) -> dict[str, Any]:
    """Measure a cell; returns the row that is kept of it."""
    begun_s = time.monotonic()
    result = cell.measure(directory)
    return {
        "cell": cell.name,
        "key": cell.key,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "seconds": round(time.monotonic() - begun_s, 1),
        "load": round(os.getloadavg()[0], 1),
        **conditions,
        **result,
    }


def machine() -> str:
    """The machine, in a few words."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} x {cpu}"


def commit() -> str:
    """The commit, with a + if files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    differs = git("status", "--porcelain", "--untracked-files=no", "--", "distsummary", "benchmarks/zoo/*.py")
    return git("rev-parse", "--short", "HEAD") + "+" * bool(differs)


@cache
def key(*parts: str, training: str = "") -> str:
    """A hash of the code of some of CODE, and of one training.

    Comments, docstrings and other trainings are no part of it.
    """
    digest = hashlib.sha256()
    for part in parts:
        for path in sorted(_files(part)):
            digest.update(f"{path.relative_to(ROOT)}\n{code(path)}\n".encode())
    if training:
        digest.update(code(ROOT / "benchmarks/zoo/trainings.py", training).encode())
    return digest.hexdigest()[:12]


def _files(part: str) -> set[Path]:
    patterns, roots = CODE[part]
    found = set()
    for pattern in patterns.split():
        before, _, rest = pattern.partition("{")
        names, _, after = rest.partition("}")
        found |= {ROOT / f"{before}{name}{after}" for name in names.split(",")}
    for root in roots:
        imported = (name for name in _imports().find_upstream_modules(root) if name.startswith(ROOMS))
        found |= {ROOT / f"{name.replace('.', '/')}.py" for name in (root, *imported)}
    return found


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph("distsummary", include_external_packages=False)


def code(path: Path, training: str = "") -> str:
    """What a file does: its syntax tree without docstrings, of the trainings only one."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        is_documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    if training:
        tree.body = [node for node in tree.body if _training(node) in ("", training)]
    return ast.dump(tree)


def _training(node: ast.stmt) -> str:
    """The name of the training that a function is; empty if it is none."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
        match decorator:
            case ast.Call(func=ast.Name(id="training"), args=[ast.Constant(value=name)]):
                return str(name)
    return ""

"""Exceptions injected into distsummary while it records trainings: level guard of `make torture`.

Each training is a process of its own, see guard_rank.py. The state is kept in a directory, so that a round
that was interrupted continues where it stopped, and several rounds are summed up.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.torture.judge import ROOT, Verdict

STEPS = 400  # of a training, one fault in every fifth: fewer than switch a part off
TRAININGS = (
    "plain", "phases", "norms", "next_step", "log_only", "operators", "compiled", "kinds", "callbacks",
    "model", "record", "ddp",
)  # fmt: skip
SHORT = ("begin", "end", "error", "close", "close_record")
SHORT_RUNS = 40  # trainings in a process of these
TIMEOUT_S = 1800


def torture_guard(
    state: Path,
    faults: int,
    seed: int,
    kinds: Sequence[str] = (*TRAININGS, *SHORT),
    *,
    steps: int = STEPS,
    short_runs: int = SHORT_RUNS,
) -> Verdict:
    """Inject at least `faults` exceptions in all, in turn in trainings of all kinds."""
    state.mkdir(parents=True, exist_ok=True)
    results = state / "results.jsonl"
    known = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    while sum(one["injected"] for one in known) < faults:
        done = [one["variant"] for one in known]
        kind = min(kinds, key=lambda name: (done.count(name), kinds.index(name)))
        for one in _train(kind, state, done.count(kind), seed, short_runs if kind in SHORT else steps):
            known.append(one)
            with results.open("a") as file:
                file.write(json.dumps(one) + "\n")
            print(_line(one), flush=True)
    verdict = Verdict(faults=sum(one["injected"] for one in known), cases=len(known))
    for kind in sorted({one["variant"] for one in known}, key=[*kinds, *(o["variant"] for o in known)].index):
        mine = [one for one in known if one["variant"] == kind]
        total = {name: sum(one[name] for one in mine) for name in ("injected", "counted")}
        sites = len({site for one in mine for site in one["sites"]})
        reached = [place for one in mine for place in one["reached"]]
        print(f"{kind}: {len(mine)} trainings, {total} at {sites} places, {len(reached)} reached the loop")
        verdict.violations += [f"{kind}: {place}" for place in reached]
        verdict.violations += [f"{kind}: {one['wrong']}" for one in mine if one["wrong"]]
    return verdict


def _train(kind: str, state: Path, number: int, seed: int, steps: int) -> list[dict[str, Any]]:
    """The results of one training; those of its ranks count as one each."""
    place, ranks = state / f"{kind}-{number}", 2 if kind == "ddp" else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(ranks):
        seen = state / f"{kind}-{rank}.json"
        command = [
            sys.executable, "-m", "tests.torture.guard_rank", kind, str(place), "--seen", str(seen),
            "--steps", str(steps), "--phase", str(number % 5), "--seed", str(seed),
        ]  # fmt: skip
        group = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"{kind}-{number}",
        }  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(group if ranks > 1 else {})}
        with (state / f"{place.name}-{rank}.log").open("w") as log:
            running.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
                )
            )
    return [_judge(kind, rank, one, state, steps) for rank, one in enumerate(running)]


def _judge(kind: str, rank: int, process: "subprocess.Popen[str]", state: Path, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = {"variant": kind, "rank": rank, "sites": [], "reached": []}
    found |= {"injected": 0, "counted": 0}
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return {**found, "wrong": "it hangs"}
    if process.returncode or not output.strip():
        return {**found, "wrong": f"exit code {process.returncode}"}
    found |= json.loads(output.splitlines()[-1])
    wrong = []
    if found["unequal"] or found.get("missing"):
        wrong.append(f"other losses, {found.get('missing', 0)} missing")
    if found["counted"] < found["injected"]:
        wrong.append(f"faults that are not in health(): {found['uncounted']}")
    # Model records the loss at every tenth step, and "kinds" makes a step of two batches
    least = steps // {"model": 50, "kinds": 4}.get(kind, 2)
    if kind not in SHORT and rank == 0 and found.get("steps", 0) < least:
        wrong.append(f"only {found.get('steps')} steps can be read")
    if found["injected"] < (1 if kind in SHORT else steps // 10):  # nearly every place had its fault
        (state / f"{kind}-{rank}.json").unlink(missing_ok=True)
    return {**found, "rank": rank, "wrong": "; ".join(wrong)}


def _line(found: dict[str, Any]) -> str:
    """What one training found, in a line."""
    bad = f"; {found['wrong']}" if found["wrong"] else ""
    return (
        f"{found['variant']} rank {found['rank']}: {found['injected']} injected, {found['counted']} counted, "
        f"{len(found['reached'])} reached the loop{bad}"
    )

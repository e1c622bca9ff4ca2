"""Eight prepared runs and their pages: `python -m tests.ui.prepared DIR [NAME ...]`.

Each is written by the project's own writers with values that are made up: healthy, slow, stalls, hung, nan,
lost, restarted and thousand.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

import distsummary as ds
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.run_dir import RunDir
from distsummary.view.report import report

RUN, BEGAN, STEPS, START_S = "00000000000000cd", 1_796_000_000.0, 600, 5.0
CONFIG = {"lr": 0.05, "batch_size": 64, "optimizer": {"name": "AdamW", "weight_decay": 0.01}, "seed": 7}
SLOW_STEPS, SOON_SLOW = range(200, 420), range(10, 31)
WAITED_S = {"hung": 97.0, "lost": 31.0}
RESTARTED = [range(1, 260), range(200, STEPS + 1)]


class Training:
    """What the ranks of a run record, by the name of the run."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name, self.noise = name, np.random.default_rng(7).normal(1.0, 0.01, (STEPS + 1, ranks))

    def is_slow(self, step: int, rank: int) -> bool:
        if self.name == "stalls":
            return rank == 1 and step % 20 == 0
        slow = SOON_SLOW if self.name == "thousand" else SLOW_STEPS
        return self.name in ("slow", "restarted", "thousand") and rank == 2 and step in slow

    def events(self, rank: int, steps: range) -> list[Event]:
        began = self.began(steps)
        return [Event(step, began + self.passed_s(steps[0], step), self.values(step, rank)) for step in steps]

    def began(self, steps: range) -> float:
        """When the attempt with these steps began: the second one, some seconds after the first ended."""
        return BEGAN if steps[0] == 1 else BEGAN + self.passed_s(1, RESTARTED[0][-1]) + 8

    def passed_s(self, first: int, last: int) -> float:
        """How long an attempt has trained when the last of these steps ends."""
        slow = sum(any(self.is_slow(step, one) for one in (1, 2)) for step in range(first, last + 1))
        saves = sum(step % 150 == 0 for step in range(first, last + 1))
        return START_S + 1e-3 * (280.0 * (last + 1 - first) + 340.0 * slow + 40.0 * saves)

    def values(self, step: int, rank: int) -> list[Value]:
        noise = float(self.noise[step, rank])
        anyone = 340.0 * any(self.is_slow(step, one) for one in (1, 2))
        mine = 340.0 * self.is_slow(step, rank)
        forward, backward, data = 190 * noise + mine, 60 * noise, 6.0
        own = forward + backward + data + 4
        loss = 3.2 * np.exp(-step / 120) + 0.05 * (2 - noise)
        is_nan = self.name == "nan" and (step > 310 or (step == 310 and rank == 1))
        loss = float("nan") if is_nan else loss
        phases = {"data/blocked": data, "forward/cpu": forward, "backward/cpu": backward}
        phases |= {"optimizer/cpu": 4.0, "wait/blocked": 20 + anyone - mine}
        if step % 150 == 0:
            phases["checkpoint/cpu"] = 40.0
        found = {"loss": loss, "lr": 0.05 * (1 - step / 700), "zz_perf/step_ms": own + 20 + anyone - mine,
                 "zz_perf/own_ms": own, "zz_perf/wait_ms": 20 + anyone - mine}  # fmt: skip
        if self.name != "thousand":
            found |= {f"zz_perf/phase/{name}_ms": value for name, value in phases.items()}
        if step % 100 == 0:
            found |= {"eval/accuracy": 0.1 if is_nan else 0.97 - 0.3 * np.exp(-step / 200)}
            found |= {"eval/loss": loss * 1.1}
        if rank == 0 and step % 20 == 0:
            found["zz_system/node/cpu_percent"] = 60.0 + 5 * noise
        return [Value("scalar", tag, float(value)) for tag, value in found.items()]


# Name -> ranks, the last step of each rank if not all, the state of the run, and lines of alerts.jsonl.
ALERT = {"time": BEGAN + 200, "attempt": 0, "until_step": None, "reported_step": 230, "lost_s": 0.0}
FORWARD = ALERT | {
    "rank": 2, "cause": "forward", "since_step": 200, "until_step": 419, "lost_s": 75.0,
    "evidence": "forward took 600 ms a step, on its peers 260 ms; train.py:88: x = self.norm(x.cpu())",
}  # fmt: skip
SEED = ALERT | {"rank": 0, "cause": "config", "since_step": 1, "evidence": "seed 8, on its peers 7"}
PREPARED: dict[str, tuple[int, int, str, list[dict]]] = {
    "healthy": (4, STEPS, "finished", []),
    "slow": (4, STEPS, "finished", [FORWARD, SEED]),
    "stalls": (4, STEPS, "finished", [
        ALERT | {"rank": 1, "cause": "data", "since_step": 20, "until_step": 600, "lost_s": 10.2,
                 "evidence": "a step of 600 ms in 30 of 600 steps; its loader waits for a file"}]),
    "hung": (4, 400, "interrupted", [
        ALERT | {"rank": 2, "cause": "hang", "since_step": 400, "lost_s": 95.0,
                 "evidence": "it is in train.py:91 (augment), the other ranks wait in all_reduce for 95 s"}]),
    "nan": (4, STEPS, "finished", [
        ALERT | {"rank": 1, "cause": "nan", "since_step": 310,
                 "evidence": "loss is nan on rank 1 alone, at the next step on all 4 ranks"}]),
    "lost": (4, 350, "interrupted", []),
    "restarted": (4, STEPS, "finished", [FORWARD | {"attempt": 1}]),
    "thousand": (1000, 40, "finished", [FORWARD | {"since_step": 10, "until_step": 30, "lost_s": 7.5}]),
}  # fmt: skip


def write(path: Path, name: str) -> Path:
    """The run of this name; returns its directory."""
    ranks, last, state, alerts = PREPARED[name]
    training = Training(name, ranks)
    parts = RESTARTED if name == "restarted" else [range(1, last + 1)]
    run_dir = RunDir(path)
    ends = [training.began(steps) + training.passed_s(steps[0], steps[-1]) for steps in parts]
    now = ends[-1] = ends[-1] + WAITED_S.get(name, 0.0)
    for rank in range(ranks):
        directory = run_dir.writer_dir("train", rank, ranks)
        entries = []
        for attempt, steps in enumerate(parts):
            writer = RankWriter(WriterSpec(directory=directory, run_id=RUN, attempt=attempt, rank=rank))
            events = training.events(rank, steps)
            writer.write(Batch(run_id=RUN, attempt=attempt, rank=rank, first_seq=1, events=events))
            writer.close()
            ended = {"state": state, "ended": ends[attempt], "error": ""}
            if attempt + 1 < len(parts):
                ended |= {"state": "failed", "error": "RuntimeError: out of memory"}
            if name == "lost" and rank == 3:
                ended = {"state": "running"}  # its heartbeats stopped
            beat = {
                "time": ends[attempt], "step": steps[-1], "phase": "closing", "step_s": 0.28, "dropped": 0,
            }  # fmt: skip
            beat |= {"total": STEPS, "own_ms": None, "wait_ms": None}
            entries.append(
                {
                    "role": "train", "attempt": attempt, "rank": rank, "world_size": ranks,
                    "pid": 9000 + rank, "pid_space": "elsewhere", "pid_start": "1", "heartbeat": beat,
                    "incarnation": f"job {attempt}", "host": f"node-{rank // 8}",
                    "started": training.began(steps), "health": {"step": steps[-1], "dropped": 0}, **ended,
                }
            )  # fmt: skip
        (directory / "manifest.json").write_text(
            json.dumps({"format": 1, "role": "train", "rank": rank, "attempts": entries})
        )
        os.utime(directory / "manifest.json", (now, now))
    attempts = [
        {"role": "train", "attempt": attempt, "world_size": ranks, "started": training.began(steps),
         "incarnation": f"job {attempt}", "config": CONFIG,
         "provenance": {"git": {"commit": "1a2b3c4d"}, "python": "3.11.7", "versions": {"torch": "2.13.0"}}}
        for attempt, steps in enumerate(parts)
    ]  # fmt: skip
    manifest = {"format": 2, "run_id": RUN, "created": BEGAN, "state": state, "attempts": attempts}
    run_dir.manifest_path.write_text(json.dumps(manifest))
    if ranks <= 16:
        ds.merge_run(path)
    # The merge judges too: the page shows what is written here.
    (path / "alerts.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in alerts))
    return path


def main(directory: Path, names: list[str]) -> None:
    """The runs and their pages next to them."""
    for name in names or PREPARED:
        report(write(directory / "runs" / name, name), out=directory / f"{name}.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

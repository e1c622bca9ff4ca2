"""Runs with a known bill, as their writers write them: healthy, slow, with stalls, hung and so on."""

import json
import math
from dataclasses import replace

import pytest

import distsummary as ds
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.records import Event, Value
from distsummary.rundir.rank_manifest import encoded, new_entry
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from tests.event_files import write_events
from tests.unit.runs.recording import RUN


def times_of(step, rank, *, ranks=4, slow=()):
    """A step of 0.5 s, and of 0.8 s where a rank is slow, with its event at its end."""
    is_slow = step in slow
    own = 300.0 + 300.0 * (is_slow and rank == 1)
    numbers = {
        "loss": 1.0 / step, "zz_perf/step_ms": 500.0 + 300.0 * is_slow, "zz_perf/data_wait_ms": 10.0,
        "zz_perf/own_ms": own, "zz_perf/wait_ms": 300.0 + 300.0 * is_slow - own,
    }  # fmt: skip
    return [Value("scalar", name, number) for name, number in numbers.items()]


def checked_bill(path, kind):
    """The bill of a run of PREPARED, whose parts were checked."""
    given, expected = PREPARED[kind]
    found = ds.open_run(prepare(path, **given), index=False).cost()
    assert math.fsum(one.seconds for one in found.parts) == pytest.approx(found.wall_s, abs=1e-6)
    attempts = given.get("attempts", [(1, 100, "finished")])
    # The first process begins three seconds before the first step is registered.
    wall_s = 3.0 + 200.0 * (len(attempts) - 1) + attempts[-1][1] + given.get("until_s", 2.0)
    assert found.wall_s == pytest.approx(wall_s, abs=0.01)
    sums = {part: sum(one.seconds for one in found.parts if one.part == part) for part in expected}
    assert sums == pytest.approx(expected, abs=0.05, rel=0.05)
    assert 0.0 < found.goodput < 1.0
    return found


def prepare(
    path, *, ranks=4, attempts=((1, 100, "finished"),), values=times_of, alerts=(), until_s=2.0, clock=None
):
    """A run whose steps take a second each: its files and manifests, as their writers write them.

    `attempts`: the first and the last step and the state of each. `clock`: of an event's time and its step,
    the time by the rank's clock.
    """
    entries = {rank: [] for rank in range(ranks)}
    listed = []
    for number, (first, last, state) in enumerate(attempts):
        began = 100.0 + first + 200.0 * number
        listed.append({"role": "train", "attempt": number, "incarnation": f"i{number}", "world_size": ranks})
        listed[-1]["started"] = began - 1.0
        for rank in range(ranks):
            times = {step: 100.0 + 200.0 * number + step for step in range(first, last + 1)}
            events = [
                Event(step, clock(time_s, step) if clock else time_s, values(step, rank))
                for step, time_s in times.items()
            ]
            directory = RunDir(path).writer_dir("train", rank, ranks)
            write_events(directory, events, run_id=RUN, attempt=number, rank=rank)
            place = Topology(rank=rank, world_size=ranks, pid_space="elsewhere", incarnation=f"i{number}")
            entry = new_entry(place, number, state, started=began - 1.0)
            ended = 100.0 + 200.0 * number + last + until_s
            entry["heartbeat"] = {"time": ended, "step": last, "spent_ms": {"start_ms": 3000}}
            entries[rank].append(entry | ({} if state == "running" else {"ended": ended}))
    for rank, own in entries.items():
        (RunDir(path).writer_dir("train", rank, ranks) / "manifest.json").write_bytes(
            encoded("train", rank, own)
        )
    run = {"format": 2, "run_id": RUN, "created": 1.0, "state": "finished", "attempts": listed}
    RunDir(path).manifest_path.write_text(json.dumps(run))
    RunDir(path).alerts_path.write_text("".join(json.dumps(one.as_json()) + "\n" for one in alerts))
    return path


ALERT = Verdict(
    rank=1, cause="data", since_step=50, until_step=69, evidence="e", reported_step=60, lost_s=6.0
)
PREPARED = {
    "healthy": ({}, {"waiting": 0.0, "start": 3.5, "data": 1.0}),
    "slow": (
        {"values": lambda step, rank: times_of(step, rank, slow=range(50, 70)), "alerts": [ALERT]},
        {"waiting": 6.0},
    ),
    "stalls": (
        {"values": lambda step, rank: times_of(step, rank, slow=range(20, 100, 20))},
        {"waiting": 1.2},
    ),
    "hung": (
        {
            "attempts": [(1, 100, "interrupted")],
            "until_s": 42.0,
            "alerts": [replace(ALERT, until_step=None, cause="hang", since_step=101, lost_s=40.0)],
        },
        {"hang": 40.0, "end": 2.0},
    ),
    "nan": (
        {"alerts": [replace(ALERT, until_step=None, cause="nan", since_step=10, lost_s=0.0)]},
        {"waiting": 0.0},
    ),
    "lost rank": (
        {
            "attempts": [(1, 100, "lost")],
            "until_s": 32.0,
            "alerts": [replace(ALERT, until_step=None, cause="lost", since_step=100, lost_s=30.0)],
        },
        {"hang": 30.0, "end": 2.0},
    ),
    "restarted": (
        {"attempts": [(1, 100, "failed"), (51, 80, "finished")]},
        {"pause": 144.0, "rollback": 49.0},
    ),
    "1,000 ranks": ({"ranks": 1000, "attempts": [(1, 20, "finished")]}, {"waiting": 0.0}),
}

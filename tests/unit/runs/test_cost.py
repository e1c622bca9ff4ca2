"""The bill: what the parts of a run's wall time are, and that they add up to it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.main import main
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.records import Value
from distsummary.runs.cost import AttemptTimes, Measured, bill
from tests.unit.runs.prepared import PREPARED, checked_bill, prepare, times_of
from tests.unit.runs.recording import record

SLOW = Verdict(
    rank=1, cause="data", since_step=51, until_step=None, evidence="e", reported_step=60, lost_s=1.0
)


def measured(own, *, wait=None, apart=None, every=1, steps=100):
    """What ranks did at one step in `every`; `own` (R,) or (steps, R) in milliseconds."""
    own = np.broadcast_to(np.asarray(own, float), (steps, np.shape(own)[-1]))[::every]
    waited = own.max(axis=1, keepdims=True) - own if wait is None else np.broadcast_to(wait, own.shape)
    ranks = np.arange(own.shape[1])
    apart = np.zeros(own.shape) if apart is None else np.broadcast_to(apart, own.shape)
    return Measured(np.arange(1, steps + 1)[::every], ranks, own, apart, waited, 0 * ranks)


def attempt(**fields):
    """100 steps of 20 ms after a second of start, with 5 ms of data each."""
    steps = np.arange(1, 101)
    step_ms = fields.pop("step_ms", np.full(100, 20.0))
    known = {
        "attempt": 0, "begun": 1000.0, "ended": 1004.0, "first_s": 1.0, "steps": steps, "step_ms": step_ms,
        "steps_s": 1e-3 * float(step_ms.sum()), "data_steps": steps, "data_ms": np.full(100, 5.0),
    }  # fmt: skip
    return AttemptTimes(**known | fields)


def rows(found):
    return {(one.part, one.rank, one.cause): round(one.seconds, 6) for one in found.parts}


def slow_after_50(ms):
    """Own times of two ranks, of which rank 1 takes longer from step 51 on."""
    own = np.full((100, 2), 10.0)
    own[50:, 1] += ms
    return own


OF_ONE_ATTEMPT = [
    (attempt(), [], {("start", None, None): 1.0, ("training", None, None): 2.5, ("data", None, None): 0.5}),
    # The first steps take longer than the others, but for their data.
    (attempt(step_ms=np.array([520.0, *[20.0] * 99])), [], {("compile", None, None): 0.5}),
    # Data of which one step in two was read.
    (attempt(data_steps=np.arange(1, 101, 2), data_ms=np.full(50, 5.0)), [], {("data", None, None): 0.5}),
    # Without a verdict, and with one; of the steps of 20 ms, one in four was measured.
    (attempt(measured=measured(slow_after_50(10.0))), [], {("waiting", 1, None): 0.5}),
    (attempt(measured=measured(slow_after_50(10.0), every=4)), [], {("waiting", 1, None): 0.48}),
    (
        attempt(measured=measured(slow_after_50(10.0))),
        [SLOW],
        {("waiting", 1, "data"): 1.0, ("training", None, None): 1.5},
    ),
    # Ranks that are slow in turns, and steps of different lengths without a culprit.
    (
        attempt(measured=measured(slow_after_50(10.0))),
        [replace(SLOW, ranks=(0, 1))],
        {("waiting", None, "data"): 1.0, ("training", None, None): 1.5},
    ),
    (
        attempt(measured=measured(slow_after_50(10.0))),
        [replace(SLOW, cause="uneven", ranks=(0, 1), lost_s=0.4)],
        {("waiting", None, "uneven"): 0.4, ("waiting", None, None): 0.1, ("training", None, None): 2.0},
    ),
    # What a rank took longer and no one waited for costs nothing.
    (attempt(measured=measured(slow_after_50(10.0), wait=0.0)), [], {("training", None, None): 2.5}),
    # Ranks that are the last now and then share a row.
    (
        attempt(measured=measured(np.tile([[10.1, *[10.0] * 3], [*[10.0] * 3, 10.1]], (50, 1)))),
        [],
        {("waiting", None, None): 0.009},
    ),
    # What is apart of a rank's own is no excess: its part says it.
    (
        attempt(
            measured=measured([10.0, 10.0], apart=[20.0, 0.0], wait=[0.0, 20.0]), spent_s={"checkpoint": 2.0}
        ),
        [],
        {("checkpoint", None, None): 2.0, ("training", None, None): 0.5},
    ),
    # Verdicts on all ranks have a row of their own.
    (
        attempt(spent_s={"recording": 0.5, "evaluation": 0.25}),
        [replace(SLOW, cause="overhead", lost_s=0.4), replace(SLOW, cause="loader", lost_s=0.3)],
        {
            ("recording", None, None): 0.1, ("recording", None, "overhead"): 0.4,
            ("data", None, None): 0.2, ("data", None, "loader"): 0.3, ("evaluation", None, None): 0.25,
        },
    ),
    # What was trained on NaN, and what came after the newest checkpoint of a run that ended, is not kept.
    (
        attempt(),
        [replace(SLOW, cause="nan", lost_s=0.0)],
        {("nan", None, None): 1.25, ("training", None, None): 1.25},
    ),
    (attempt(), [replace(SLOW, cause="nan", until_step=60)], {("training", None, None): 2.5}),
    (attempt(is_cut=True, saved=80.0), [], {("unsaved", None, None): 0.3, ("training", None, None): 1.2}),
    (
        attempt(is_cut=True, saved=80.0),
        [replace(SLOW, cause="unsaved", lost_s=0.0)],
        {("training", None, None): 1.5},
    ),
    # Two ranks that hang at a moment share the time; in a run that was killed, the rest of it is its end.
    (
        attempt(is_cut=True, ended=1011.0),
        [
            replace(SLOW, cause="hang", since_step=101, lost_s=6.0),
            replace(SLOW, cause="lost", rank=0, since_step=102, lost_s=6.0),
        ],
        {
            ("hang", 1, "hang"): 3.0, ("hang", 0, "lost"): 3.0, ("end", None, None): 2.0,
            ("training", None, None): 1.5,
        },
    ),
    # A hang that ended was within a step, which the others waited for.
    (
        attempt(
            step_ms=np.array([20.0] * 79 + [1020.0] + [20.0] * 20),
            ended=1005.0,
            measured=measured(np.array([[10.0, 10.0]] * 79 + [[10.0, 1010.0]] + [[10.0, 10.0]] * 20)),
        ),
        [replace(SLOW, cause="hang", since_step=80, until_step=80)],
        {("hang", 1, "hang"): 1.0, ("training", None, None): 2.5},
    ),
    # Half of the steps were made again.
    (attempt(repeated=51.0), [], {("training", None, None): 1.25, ("rollback", None, None): 1.25}),
    # It has recorded no step, or nothing of its times.
    (AttemptTimes(attempt=0, begun=5.0, ended=9.0), [], {("start", None, None): 4.0}),
    (AttemptTimes(attempt=0, begun=5.0, ended=9.0, steps_s=4.0), [], {("unmeasured", None, None): 4.0}),
    # Files that contradict each other: nothing is left for the training.
    (attempt(spent_s={"evaluation": 12.0}), [], {("evaluation", None, None): 3.556}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "verdicts", "expected"), OF_ONE_ATTEMPT)
def test_the_parts_of_an_attempt(one, verdicts, expected):
    found = bill([one], [(0, verdict) for verdict in verdicts])
    assert found.wall_s == pytest.approx(max(one.ended - one.begun, one.first_s + one.steps_s))
    assert math.fsum(part.seconds for part in found.parts) == pytest.approx(found.wall_s, abs=1e-9)
    known = {key: value for key, value in rows(found).items() if key in expected}
    assert known == pytest.approx(expected, abs=1e-3)


def test_attempts_have_a_pause_between_them_and_never_overlap():
    second = attempt(attempt=1, begun=1010.0, ended=1014.0)
    found = bill([second, attempt()], [])
    assert (rows(found)["pause", None, None], found.wall_s) == (6.0, 14.0)
    overlap = bill([attempt(), attempt(attempt=1, begun=1002.0, ended=1006.0)], [])
    assert overlap.wall_s == pytest.approx(6.0)


def test_what_a_rank_costs_is_saved_as_far_as_no_other_one_is_as_slow():
    own = slow_after_50(10.0)
    alone = bill([attempt(measured=measured(own))], [(0, SLOW)])
    assert alone.saved == {(1, "data"): pytest.approx(1.0)}
    both = np.column_stack([own[:, 0], own, own[:, 1] - 4.0])
    found = bill([attempt(measured=measured(both))], [(0, replace(SLOW, rank=2))])
    assert found.saved == {(2, "data"): pytest.approx(0.4)}
    assert found.as_json()["what_if"] == [{"rank": 2, "cause": "data", "seconds": pytest.approx(0.4)}]


def test_no_run_has_no_bill():
    found = bill([], [])
    assert (found.wall_s, found.parts, found.goodput) == (0.0, (), None)


@pytest.mark.parametrize("kind", [kind for kind in PREPARED if kind != "1,000 ranks"])
def test_the_parts_of_a_run_add_up_to_its_wall_time(tmp_path, kind):
    checked_bill(tmp_path, kind)


def test_the_command_prints_the_bill_in_words_and_as_json(tmp_path, capsys):
    path = prepare(tmp_path / "\x1b[31mred", **PREPARED["slow"][0])
    assert main(["cost", str(path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "  waiting for rank 1: data     6.0 s   6%\n" in said
    assert said.endswith("Without rank 1's data the run takes 6.0 s less.\n")
    assert main(["cost", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(one["seconds"] for one in found["parts"]) == pytest.approx(found["wall_s"])
    assert {"part": "waiting", "rank": 1, "cause": "data", "seconds": 6.0} in found["parts"]
    assert found["what_if"] == [{"rank": 1, "cause": "data", "seconds": pytest.approx(6.0)}]


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_run_of_one_rank_without_run_json_has_the_parts_that_it_measured(tmp_path, is_timed):
    values = times_of if is_timed else (lambda step, rank: [Value("scalar", "loss", 1.0)])
    record(tmp_path, steps=range(1, 11), values=values)
    found = ds.open_run(tmp_path, index=False).cost()
    parts = {one.part: one.seconds for one in found.parts}
    expected = {"training": 9.4, "data": 0.1} if is_timed else {"unmeasured": 9.0}
    assert (parts, found.wall_s) == (pytest.approx(expected), pytest.approx(sum(expected.values())))
    assert (found.goodput is None, found.measured) == (not is_timed, None)


def test_what_a_loop_spends_on_other_things_is_in_its_health_and_its_bill(tmp_path):
    with ds.init(tmp_path, quiet=True) as run:
        for _ in run.steps(range(4)):
            run.log(loss=1.0)
        with run.eval() as evaluation:
            run.context.step.spend("evaluation", 0.25)
            evaluation.log(accuracy=1.0)
    counters = ds.open_run(tmp_path).health["counters"][0]
    assert counters["evaluation_ms"] >= 250
    assert counters["start_ms"] > 0
    assert {"start", "evaluation"} <= {one.part for one in ds.open_run(tmp_path).cost().parts}


def test_ranks_that_measure_other_steps_are_compared_where_both_do(tmp_path):
    def of_some_steps(step, rank):
        own = [
            Value("scalar", "zz_perf/own_ms", 300.0 + 300.0 * rank),
            Value("scalar", "zz_perf/wait_ms", 300.0 - 300.0 * rank),
        ]
        return [Value("scalar", "zz_perf/step_ms", 600.0), *(own if rank or step % 2 else [])]

    found = ds.open_run(prepare(tmp_path, ranks=2, values=of_some_steps), index=False).cost()
    # Of the steps after the first ten, each took rank 1 0.3 s longer.
    assert rows(found)["waiting", 1, None] == pytest.approx(27.0)
    assert found.measured == 0.5


def test_clocks_of_ranks_that_are_apart_or_set_back_move_no_time(tmp_path):
    path = prepare(tmp_path, attempts=[(1, 50, "finished")])
    expected = ds.open_run(path, index=False).cost()
    # The clock of the ranks is a day ahead of that of the files, and set back by an hour at step 31.
    other = prepare(
        tmp_path / "other", attempts=[(1, 50, "finished")],
        clock=lambda time_s, step: time_s + 86400.0 - 3600.0 * (step > 30),
    )  # fmt: skip
    found = ds.open_run(other, index=False).cost()
    assert found.wall_s == pytest.approx(expected.wall_s, abs=0.01)
    assert rows(found)["start", None, None] == pytest.approx(6.0, abs=0.1)

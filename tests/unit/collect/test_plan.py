import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.collect.plan import dealing_group, regular_steps, share, tensor_range, tensor_steps
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.deal import Group, Steps
from distsummary.rundir.topology import Topology

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tensor_ranges.json").read_text())["cases"]


def case_name(case):
    sink = " sink" if case["sink_mode"] else ""
    return f"{case['epochs']}x{case['batch_num']} {case['collect_freq']}/{case['collect_tensor_freq']}{sink}"


def total_of(case):
    return case["epochs"] if case["sink_mode"] else case["total_steps"]


def recorded(steps, total, *, by=1):
    found, last = [], None
    for step in range(by, total + 1, by):
        if steps.due(last, step):
            found.append(step)
        last = step
    return found


def test_there_are_golden_cases():
    assert len(GOLDEN) == 47


def test_one_rank_records_mindsporess_sets_each_step_once():
    for case in GOLDEN:
        total = total_of(case)
        tensors = tensor_steps(total, case["collect_freq"], case["collect_tensor_freq"])
        assert recorded(regular_steps(case["collect_freq"]), total) == case["other_set"], case_name(case)
        assert recorded(tensors, total) == case["tensor_set"], case_name(case)


def test_the_ends_of_epochs_that_mindspore_records_twice_are_the_multiples():
    for case in (case for case in GOLDEN if not case["sink_mode"]):
        ends = range(case["batch_num"], case["total_steps"] + 1, case["batch_num"])
        tensors = tensor_steps(case["total_steps"], case["collect_freq"], case["collect_tensor_freq"])
        for steps, kind in ((regular_steps(case["collect_freq"]), "other"), (tensors, "tensor")):
            twice = [end for end in ends if steps.holds_multiple(end)]
            assert twice == case[f"{kind}_steps_epoch_end"], case_name(case)


def test_the_tensor_steps_are_dealt_round_robin():
    for case in GOLDEN:
        steps = tensor_steps(total_of(case), case["collect_freq"], case["collect_tensor_freq"])
        for size in (2, 3, 7):
            for rank in range(size):
                group = Group(index=rank, size=size)
                mine = [step for step in case["tensor_set"] if steps.turn(step, group)]
                assert mine == case["tensor_set"][rank::size], case_name(case)


@given(
    every=st.integers(1, 30), stop=st.none() | st.integers(1, 300), doubling=st.booleans(),
    jumps=st.lists(st.integers(1, 40), min_size=1, max_size=30), world=st.integers(1, 5),
)  # fmt: skip
def test_steps_that_jump_are_due_when_a_multiple_was_crossed_and_one_rank_records(
    every, stop, doubling, jumps, world
):
    steps = Steps(every=every, stop=stop, doubling=doubling)
    multiples = [m for m in range(every, 1300, every) if stop is None or m < stop]
    if doubling:
        multiples = [m for n, m in enumerate(multiples, 1) if n & (n - 1) == 0]
    last, now = None, 0
    for jump in jumps:
        now += jump
        crossed = last is None or any(last < m <= now for m in multiples)
        assert steps.due(last, now) == crossed
        assert sum(steps.turn(now, Group(index=rank, size=world)) for rank in range(world)) == 1
        last = now


def test_with_an_unknown_total_tensors_thin_out():
    assert recorded(tensor_steps(None, 10), 1000) == [1, 10, 20, 40, 80, 160, 320, 640]
    assert recorded(tensor_steps(None, 1), 20) == [1, 2, 4, 8, 16]
    assert recorded(tensor_steps(None, 10, 3), 10) == [1, 3, 6, 9]


def test_thor_steps_that_jump_hit_no_multiple_and_are_due_all_the_same():
    assert recorded(regular_steps(10), 60, by=7) == [7, 14, 21, 35, 42, 56]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((-1, 10), InvalidValueError), ((10, 0), InvalidValueError), ((10, 10, 0), InvalidValueError),
     ((10, True), InvalidTypeError), ((10.0, 10), InvalidTypeError)],
)  # fmt: skip
def test_ranges_of_nonsense_are_refused(arguments, error):
    with pytest.raises(error):
        tensor_range(*arguments)


@given(
    sizes=st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 10**9), max_size=40),
    world=st.integers(1, 9),
)
def test_every_parameter_is_one_ranks_and_the_bytes_are_balanced(sizes, world):
    shares = [share(sizes, Group(index=rank, size=world)) for rank in range(world)]
    assert sorted(name for part in shares for name in part) == sorted(sizes)
    loads = [sum(max(sizes[name], 1) for name in part) for part in shares]
    assert max(loads) - min(loads) <= max([max(size, 1) for size in sizes.values()], default=0)


def test_the_order_of_the_parameters_does_not_matter():
    sizes = {f"layer{n}": (n * 37) % 11 for n in range(20)}
    backwards = dict(reversed(sizes.items()))
    group = Group(index=1, size=3)
    assert share(sizes, group) == share(backwards, group)


def test_without_a_mesh_the_world_shares():
    assert dealing_group(Topology(rank=2, world_size=5)) == Group(index=2, size=5)


def test_with_a_mesh_only_ranks_along_data_axes_share():
    mesh = {"dp_replicate": (1, 2), "dp_shard": (2, 3), "tp": (1, 2)}
    assert dealing_group(Topology(rank=11, world_size=12, mesh=mesh)) == Group(index=1 * 3 + 2, size=6)
    assert dealing_group(Topology(rank=1, world_size=4, mesh={"tp": (1, 2)})) == Group()


def test_the_ranks_along_the_data_axes_have_all_the_turns():
    groups = {
        dealing_group(Topology(rank=0, world_size=8, mesh={"dp": (d, 2), "fsdp": (f, 2), "tp": (t, 2)})).index
        for d in range(2) for f in range(2) for t in range(2)
    }  # fmt: skip
    assert groups == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "mesh", [{"dp": (0, 3)}, {"dp": (2, 2)}, {"dp": (0, 8)}, {"dp": (-1, 2)}, {"dp": (0, 0)}]
)
def test_a_mesh_that_does_not_fit_the_world_is_refused(mesh):
    with pytest.raises(InvalidValueError):
        dealing_group(Topology(world_size=4, mesh=mesh))


@pytest.mark.parametrize("steps", [
    regular_steps(1), regular_steps(7), tensor_steps(None, 5), tensor_steps(100, 10), tensor_steps(3, 10),
    tensor_steps(0, 1),
])  # fmt: skip
def test_the_step_after_is_the_next_one_that_is_due(steps):
    for last in range(-1, 120):
        due = [step for step in range(last + 1, 260) if steps.count(step) > steps.count(last)]
        assert steps.after(last) == (due[0] if due else math.inf)

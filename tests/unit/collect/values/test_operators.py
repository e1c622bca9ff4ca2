"""What a listener receives from the taps inside of a network, without a framework."""

import gc
import logging

import numpy as np
import pytest

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect.plan import regular_steps, tensor_steps
from distsummary.collect.values import operators
from distsummary.collect.values.operators import TapListener
from distsummary.collect.values.taps import Taps
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.records import Value
from distsummary.rundir.deal import Group
from distsummary.training.callbacks import CallbackParams

logger = logging.getLogger("test")


class Received:
    """A listener that listens until the end of the test, and the health that it counts in."""

    def __init__(self, **options):
        self.health = Health()
        failures = Failures(self.health, logger)
        self.listener = TapListener(Value, lambda: failures, **options)
        operators.listen(self.listener)

    def take(self, step=1):
        taken = self.listener.take(step)
        return taken.numbers, [(value.tag, value.data) for value in taken.values]


@pytest.fixture(autouse=True)
def _no_one_listens_afterwards():
    yield
    gc.collect()
    assert not operators.is_listening()


def test_every_listener_takes_what_was_tapped_since_it_took_last():
    first, second = Received(), Received()
    operators.tap_number("a", 1.0)
    operators.tap("histogram", "h", "once")
    assert first.take() == ({"a": 1.0}, [("h", "once")])
    operators.tap_number("a", 2.0)
    assert first.take() == ({"a": 2.0}, [])
    assert second.take() == ({"a": 2.0}, [("h", "once")])
    operators.stop_listening(second.listener)
    operators.tap_number("a", 3.0)
    assert second.take() == ({}, [])
    assert first.take() == ({"a": 3.0}, [])


def test_a_paused_listener_keeps_what_it_received_before():
    last_seen = Received()
    operators.tap_number("a", 1.0)
    last_seen.listener.pause()
    operators.tap_number("a", 2.0)
    operators.tap("tensor", "t", "evaluated")
    last_seen.listener.resume()
    operators.tap_number("b", 3.0)
    assert last_seen.take() == ({"a": 1.0, "b": 3.0}, [])


def test_the_end_of_a_step_ends_a_pause():
    last_seen = Received()
    last_seen.listener.pause()  # an evaluation that raised
    last_seen.take()
    operators.tap_number("a", 1.0)
    assert last_seen.take() == ({"a": 1.0}, [])


def test_what_was_gathered_is_taken_without_what_came_later():
    last_seen = Received()
    operators.tap_number("a", 1.0)
    last_seen.listener.gather()
    operators.tap_number("a", 2.0)
    assert last_seen.take() == ({"a": 1.0}, [])
    assert last_seen.take() == ({"a": 2.0}, [])


def test_a_value_that_cannot_be_recorded_is_counted():
    def snapshot(plugin, name, value):
        raise ValueError("too large")

    last_seen = Received()
    last_seen.listener._snapshot = snapshot
    operators.tap("tensor", "t", 1)
    assert last_seen.take() == ({}, [])
    assert (last_seen.health.dropped, list(last_seen.health.errors)) == (
        {"tensor": 1},
        ["not recorded: too large"],
    )


def test_names_without_end_are_counted():
    last_seen = Received()
    for number in range(operators.MAX_NAMES + 3):
        operators.tap_number(f"n{number}", 0.0)
        operators.tap("tensor", f"n{number}", 0)
    numbers, values = last_seen.take()
    assert len(numbers) == len(values) == operators.MAX_NAMES
    assert last_seen.health.dropped == {"scalar": 3, "tensor": 3}


def test_a_name_that_is_tapped_again_is_reported_once(caplog):
    last_seen = Received(says_repeats=True)
    for _ in range(2):
        for value in (1.0, 2.0):
            operators.tap_number("a", value)
        assert last_seen.take() == ({"a": 2.0}, [])
    assert [record.message[:30] for record in caplog.records] == ["'a' was tapped several times b"]


class Late:
    """Numbers on their way from a device."""

    def __init__(self, numbers, *, is_there):
        self.numbers, self.is_there = numbers, is_there

    def is_ready(self):
        return self.is_there

    def result(self):
        return self.numbers


def test_numbers_of_a_device_come_with_a_later_step(monkeypatch):
    late = [Late({"a": 1.0}, is_there=False), Late({"a": 2.0}, is_there=True)]
    waiting = list(late)
    last_seen = Received()
    monkeypatch.setattr(operators, "_sources", [lambda: ({}, waiting.pop(0) if waiting else None)])
    assert last_seen.listener.take(1).earlier == last_seen.listener.take(2).earlier == []  # in order
    late[0].is_there = True
    assert last_seen.listener.take(3).earlier == [(1, {"a": 1.0}), (2, {"a": 2.0})]


def collected(steps, *, deal="parameters", group=None, is_parameter=False, **options):
    """(step, tags) that a collector records if everything is tapped at each step."""
    recorded = []
    taps = Taps(
        Value, Failures(Health(), logger), regular=regular_steps(10), tensors=tensor_steps(None, 10, 7),
        deal=deal, **options,
    )  # fmt: skip
    taps.group = group or Group()
    params = CallbackParams(cur_step_num=0, is_model="compatibility" in options)
    taps.begin(params, lambda step, numbers, values=(): recorded.append((step, numbers, values)))
    for step in steps:
        params.cur_step_num = step
        operators.tap_number("a", float(step))
        for plugin in ("tensor", "histogram"):
            operators.tap(plugin, plugin, np.ones(2), is_parameter=is_parameter)
        taps.record(step, {"loss": 0.5})
    taps.close()
    return {
        step: sorted(set(numbers) - {"loss"}) + [v.tag for v in values] for step, numbers, values in recorded
    }


def test_numbers_are_taken_at_every_step_the_rest_by_the_plan():
    found = collected(range(1, 31))
    assert all(tags[0] == "a" for tags in found.values())
    rest = {step: tags[1:] for step, tags in found.items() if tags[1:]}
    assert {step for step, tags in rest.items() if "histogram" in tags} == {1, 10, 20, 30}
    assert {step for step, tags in rest.items() if "tensor" in tags} == {1, 7, 14, 21, 28}


def test_as_in_mindspore_numbers_follow_the_plan_too():
    found = collected(range(1, 21), compatibility=AS_MINDSPORE)
    assert {step for step, tags in found.items() if "a" in tags} == {1, 10, 20}


@pytest.mark.parametrize("deal", ["parameters", "steps", "all"])
def test_a_parameter_is_recorded_by_one_rank_of_its_group(deal):
    groups = [Group(index=index, size=3) for index in range(3)]
    found = [collected(range(1, 31), deal=deal, group=group, is_parameter=True) for group in groups]
    times = [sum("histogram" in ranks[step] for ranks in found) for step in (1, 10, 20, 30)]
    assert times == [3 if deal == "all" else 1] * 4
    local = [collected(range(1, 11), deal=deal, group=group) for group in groups]
    assert all("histogram" in ranks[10] for ranks in local)


def test_a_given_value_goes_before_a_tapped_one():
    recorded = []
    taps = Taps(
        Value, Failures(Health(), logger), regular=regular_steps(1), tensors=regular_steps(1), deal="all"
    )
    taps.begin(CallbackParams(cur_step_num=1), lambda *given: recorded.append(given))
    operators.tap_number("loss", 9.0)
    operators.tap_number("mean", 1.0)
    operators.tap("histogram", "h", "tapped")
    given = {"loss": 0.5}
    taps.record(1, given, [Value("histogram", "h", "given")])
    taps.close()
    assert recorded == [(1, {"loss": 0.5, "mean": 1.0}, [Value("histogram", "h", "given")])]
    assert "mean" in given  # so that the run sees a NaN among tapped numbers

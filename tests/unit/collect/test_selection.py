"""Which parameters are recorded, and what is said about those that are not."""

import logging

import numpy as np
import pytest

from distsummary import init
from distsummary.collect.collector import SummaryCollector
from distsummary.collect.selection import (
    BY_DEFAULT,
    MAX_ELEMENTS,
    MAX_PARAMETERS,
    MINDSPORES,
    Selection,
    default_steps,
    within_bounds,
)
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.deal import Steps
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from tests.unit.collect.doubles import ListCoordinator, Model, train

LAYERS = {
    name: (8, 8) if "weight" in name else (8,) for n in range(3) for name in (f"{n}.weight", f"{n}.bias")
}


def test_a_model_within_the_bounds_has_histograms_of_all_its_parameters():
    assert within_bounds(LAYERS) == LAYERS.keys()


def test_weights_come_before_biases_and_what_does_not_fit_is_left_out():
    large = {"embedding": (MAX_ELEMENTS + 1,), "a.bias": (1,), "a": (MAX_ELEMENTS, 1), "b": (2, 2)}
    assert within_bounds(large) == {"a"}
    many = {f"{n}.bias": (2,) for n in range(MAX_PARAMETERS)} | {f"{n}.weight": (2, 2) for n in range(10)}
    taken = within_bounds(many)
    assert len(taken) == MAX_PARAMETERS
    assert {f"{n}.weight" for n in range(10)} < taken
    assert "189.bias" in taken
    assert "190.bias" not in taken


def test_a_number_and_a_pattern_select_in_the_order_of_the_model():
    parameters = {name: np.empty(shape) for name, shape in LAYERS.items()}
    assert Selection(first=3).of(parameters) == ["0.weight", "0.bias", "1.weight"]
    assert Selection(first=30).of(parameters) == list(LAYERS)
    assert Selection(pattern="[01].bias").of(parameters) == ["0.bias", "1.bias"]
    assert Selection(pattern="bias").of(parameters) == []
    assert BY_DEFAULT.of(parameters) == list(LAYERS)


def test_only_a_default_and_a_pattern_that_matches_nothing_are_remarked_on():
    names = [f"layer{n}" for n in range(8)]
    assert MINDSPORES.remark(names, names[:5]).startswith("3 of 8 parameters get no histograms by default")
    assert 'histograms="conv"' in BY_DEFAULT.remark(names, names[:7])
    assert BY_DEFAULT.remark(names, names) == ""
    assert BY_DEFAULT.remark([], []) == ""
    assert Selection(first=2, argument="histograms=2").remark(names, names[:2]) == ""
    pattern = Selection(pattern="fc", argument="histograms='fc'")
    assert pattern.remark(names, names[:1]) == ""
    assert "'layer4'; nothing is recorded for it" in pattern.remark(names, [])
    assert "only frozen parameters (requires_grad=False), such as 'fc.bias'" in pattern.remark(
        names, [], ["conv.bias", "fc.bias"]
    )
    assert BY_DEFAULT.remark([], [], ["fc.bias"]) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"collect_specified_data": {"histogram_regular": None}},
            "1 of 6 parameters get no histograms by default (the first 5, as in MindSpore); to choose "
            "others, pass a pattern for the beginning of their names, such as "
            'collect_specified_data={"histogram_regular": "conv"}',
        ),
    ],
)
def test_it_is_said_once_by_rank_zero(tmp_path, writers, caplog, options, said):
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        train(
            SummaryCollector(tmp_path, 1, topology=topology, coordinator=ListCoordinator(), **options),
            steps=3,
        )
    assert [r.message.startswith(said) for r in caplog.records if r.levelno >= logging.WARNING] == [True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"histograms": "fc"}, "histograms='fc' matches the beginning of none of the 6 names of parameters"),
        (
            {"collect_specified_data": {"histogram_regular": "weight"}},
            r"\['histogram_regular'\]='weight' matches .*; '.\*weight' would match 6 of them",
        ),
        ({"collect_specified_data": {"tensor_regular": "fc"}}, r"\['tensor_regular'\]='fc' matches the"),
        ({"gradients": "layer"}, "gradients looks into a torch.nn.Module, got a network of type Model"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_when_the_training_begins(tmp_path, writers, options, said):
    with pytest.raises((InvalidValueError, InvalidTypeError), match=said):
        train(SummaryCollector(tmp_path, 1, **options), steps=3)
    with pytest.raises((InvalidValueError, InvalidTypeError), match=said):
        init(tmp_path, watch=Model(), **options)


def test_a_stage_of_a_pipeline_may_hold_no_match(tmp_path, writers, caplog):
    options = {"histograms": "fc", "coordinator": ListCoordinator()}
    topology = Topology(world_size=2, mesh={"pp": (0, 2)})
    train(SummaryCollector(tmp_path, 1, topology=topology, **options), steps=3)
    assert "histograms='fc' matches the beginning of none of the 6 names" in caplog.text
    with pytest.raises(InvalidValueError, match=r"pass mesh=\{'pp': \(stage, stages\)\}"):
        train(SummaryCollector(tmp_path, 1, topology=Topology(world_size=2), **options), steps=3)


@pytest.mark.parametrize(
    "specified", [{"tensor_regular": ".*"}, {"histogram_regular": "layer"}, {"gradient_regular": "layer"}]
)
def test_a_pattern_without_a_model_is_refused(tmp_path, specified):
    with pytest.raises(InvalidValueError, match="got watch=None; pass the model"):
        init(tmp_path, collect_specified_data=specified)


def test_parameters_that_are_added_removed_and_frozen_meanwhile_cost_nothing_else(tmp_path, writers):
    model, collector = Model(), SummaryCollector(tmp_path, 1, histograms=True)

    class Change:
        def __iter__(self):
            yield 1
            del model.parameters["layer2.weight"]
            model.parameters["head.weight"] = np.ones((2, 2))
            yield 2

    with Run(callbacks=collector, network=model) as run:
        for _ in run.steps(Change()):
            pass
    assert "head.weight/auto" in writers[0].values("histogram", 2)
    assert "layer2.weight/auto" not in writers[0].values("histogram", 2)
    assert len(writers[0].values("histogram", 1)) == len(writers[0].values("histogram", 2)) == 6
    assert collector.health().errors == {}


def test_many_elements_are_recorded_that_many_times_more_rarely():
    assert default_steps(10, 0) == default_steps(10, 1_000_000) == Steps(every=10, doubling=True)
    assert default_steps(10, 1_000_001).after(1) == 20
    assert [default_steps(10, 11_000_000).after(step) for step in (1, 110, 220)] == [110, 220, 440]


def test_by_default_histograms_come_ever_more_rarely_and_by_choice_at_every_due_step(tmp_path, writers):
    for histograms, expected in ((True, [1, 2, 4, 8, 16]), (".*", [1, *range(2, 17, 2)])):
        train(SummaryCollector(tmp_path, 2, histograms=histograms), steps=8, epochs=2)
        assert writers[0].steps("histogram") == expected
        assert writers[0].steps("scalar", "learning_rate/auto") == [1, *range(2, 17, 2)]

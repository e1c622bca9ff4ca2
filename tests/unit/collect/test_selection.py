"""Which parameters are recorded, and what is said about those that are not."""

import logging

import numpy as np
import pytest

from distsummary import init
from distsummary.collect.selection import MINDSPORES, Selection
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from tests.refusals import refused
from tests.unit.collect.doubles import ListCoordinator, Model, train

LAYERS = [f"{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]


def test_a_pattern_selects_by_the_beginning_of_names_and_a_number_the_first_of_them():
    assert Selection().of(LAYERS) == LAYERS
    assert Selection(most=3).of(LAYERS) == ["0.weight", "0.bias", "1.weight"]
    assert Selection(most=30).of(LAYERS) == LAYERS
    assert Selection(pattern="[01].bias").of(LAYERS) == ["0.bias", "1.bias"]
    assert Selection(pattern=".*bias", most=2).of(LAYERS) == ["0.bias", "1.bias"]
    assert Selection(pattern="bias").of(LAYERS) == []


def test_only_the_default_and_a_pattern_that_matches_nothing_are_remarked_on():
    names = [f"layer{n}" for n in range(8)]
    assert MINDSPORES.remark(names, names[:5]).startswith("3 of 8 parameters get no histograms by default")
    assert MINDSPORES.remark(names[:5], names[:5]) == ""
    assert MINDSPORES.remark([], []) == ""
    assert MINDSPORES.remark([], [], ["fc.bias"]) == ""
    assert Selection(most=2, argument="histograms='.*'").remark(names, names[:2]) == ""
    pattern = Selection(pattern="fc", argument="histograms='fc'")
    assert pattern.remark(names, names[:1]) == ""
    assert "'layer4'; nothing is recorded for it" in pattern.remark(names, [])
    assert "only frozen parameters (requires_grad=False), such as 'fc.bias'" in pattern.remark(
        names, [], ["conv.bias", "fc.bias"]
    )


def test_parameters_without_histograms_are_reported_once_by_rank_zero(tmp_path, writers, caplog):
    for rank in range(2):
        options = {"topology": Topology(rank=rank, world_size=2), "coordinator": ListCoordinator()}
        chosen = {"histogram_regular": None}
        train(SummaryCollector(tmp_path, 1, collect_specified_data=chosen, **options), steps=3)
    said = (
        "1 of 6 parameters get no histograms by default (the first 5, as in MindSpore); to choose "
        "others, pass a pattern for the beginning of their names, such as "
        'collect_specified_data={"histogram_regular": "conv"}'
    )
    assert [r.message.startswith(said) for r in caplog.records if r.levelno >= logging.WARNING] == [True]


@pytest.mark.parametrize(
    ("options", "of_init", "said"),
    [
        ({"histograms": "fc"}, {}, "histograms='fc' matches the beginning of none of the 6 names of param"),
        (
            {"collect_specified_data": {"histogram_regular": "weight"}},
            *({"histograms": "weight"}, "='weight' matches .*; '.\\*weight' would match 6 of them"),
        ),
        ({"collect_specified_data": {"tensor_regular": "fc"}}, {"tensors": "fc"}, "='fc' matches the begin"),
        ({"gradients": "layer"}, {}, "gradients looks into a torch.nn.Module, got a network of type Model"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_when_the_training_begins(
    tmp_path, writers, options, of_init, said
):
    refused(
        InvalidTypeError if "gradients" in options else InvalidValueError,
        (lambda: train(SummaryCollector(tmp_path, 1, **options), steps=3), said),
        (lambda: init(tmp_path, watch=Model(), **(of_init or options)), said),
    )


def test_a_stage_of_a_pipeline_may_hold_no_match(tmp_path, writers, caplog):
    options = {"histograms": "fc", "coordinator": ListCoordinator()}
    topology = Topology(world_size=2, mesh={"pp": (0, 2)})
    train(SummaryCollector(tmp_path, 1, topology=topology, **options), steps=3)
    assert "histograms='fc' matches the beginning of none of the 6 names" in caplog.text
    with pytest.raises(InvalidValueError, match=r"pass mesh=\{'pp': \(stage, stages\)\}"):
        train(SummaryCollector(tmp_path, 1, topology=Topology(world_size=2), **options), steps=3)


@pytest.mark.parametrize("field", ["tensors", "histograms", "gradients"])
def test_a_pattern_without_a_model_is_refused(tmp_path, field):
    with pytest.raises(InvalidValueError, match=f"{field}='layer' .* got watch=None; pass the model"):
        init(tmp_path, **{field: "layer"})


def test_parameters_that_are_added_removed_and_frozen_meanwhile_cost_nothing_else(tmp_path, writers):
    model, collector = Model(), SummaryCollector(tmp_path, 1, histograms=".*")

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

"""The histograms of a watched model whose parameters share memory or change during the training."""

import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.errors import InvalidTypeError
from distsummary.events.reader import read_directory


class Tied(nn.Module):
    """The head shares the weights of the embedding, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight


def histograms(path) -> dict[int, list[str]]:
    """Step -> the tags of its histograms."""
    found: dict[int, list[str]] = {}
    for event in read_directory(path):
        for value in event.values:
            if value.plugin == "histogram":
                found.setdefault(event.step, []).append(value.tag.removesuffix("/auto"))
    return {step: sorted(tags) for step, tags in found.items()}


def test_shared_memory_is_recorded_once_and_a_changed_model_continues(tmp_path):
    model = Tied()
    with ds.init(tmp_path, watch=model, histograms=".*", collect_freq=1) as run:
        for number in run.steps(range(5)):
            if number == 1:
                model.body.requires_grad_(False)
            elif number == 2:
                model.adapter = nn.Linear(4, 2)
            elif number == 3:
                del model.body
            elif number == 4:
                model.head.weight = nn.Parameter(torch.ones(8, 4))
        health = run.health()
    assert (health.errors, health.dropped) == ({}, {})
    assert histograms(tmp_path) == {
        1: ["body.bias", "body.weight", "embedding.weight"],
        2: ["embedding.weight"],
        3: ["adapter.bias", "adapter.weight", "embedding.weight"],
        4: ["adapter.bias", "adapter.weight", "embedding.weight"],
        5: ["adapter.bias", "adapter.weight", "embedding.weight", "head.weight"],
    }


def test_lazy_parameters_have_histograms_once_they_exist(tmp_path):
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with ds.init(tmp_path, watch=model, histograms=".*", collect_freq=1) as run:
        for _ in run.steps(range(2)):
            model(torch.ones(1, 4))
        assert run.health().errors == {}
    assert [len(tags) for tags in histograms(tmp_path).values()] == [4, 4]


def test_watching_a_model_records_nothing_of_it_that_no_one_named(tmp_path):
    model = nn.Linear(2, 2)
    with ds.init(tmp_path, watch=model, collect_freq=1) as run:
        for _ in run.steps(range(3)):
            model(torch.ones(1, 2))
    assert {value.plugin for event in read_directory(tmp_path) for value in event.values} <= {
        "scalar",
        "text",
    }


def test_no_more_histograms_are_recorded_than_were_asked_for(tmp_path):
    model, record = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))), ds.Record(max_histograms=3)
    with ds.init(tmp_path, watch=model, histograms=".*weight", record=record) as run:
        list(run.steps(range(1)))
    assert histograms(tmp_path) == {1: ["0.weight", "1.weight", "2.weight"]}


@pytest.mark.parametrize("watch", [[nn.Linear(1, 1)], nn.Linear(1, 1).parameters(), torch.ones(1), nn.Linear])
def test_what_is_no_module_is_refused_naming_watch(tmp_path, watch):
    with pytest.raises(InvalidTypeError, match=rf"watch must be .* got {type(watch).__name__}"):
        ds.init(tmp_path, watch=watch)

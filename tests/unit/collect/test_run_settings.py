"""The arguments of both doors become the same settings, and a wrong one is refused by its name."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from distsummary.collect.config import read_config
from distsummary.collect.options import check_specified
from distsummary.collect.record_options import Record
from distsummary.collect.run_settings import RunSettings, settings_of
from distsummary.collect.selection import Selection
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.topology import Topology
from tests.refusals import refused

NOTHING: dict[str, Any] = {
    "histograms": False, "gradients": False, "tensors": False, "graph": False, "norms": False,
    "checksums": True, "collect_freq": 10, "system_metrics": True, "config": read_config(None),
    "labels": {}, "define": {},
}  # fmt: skip


def settings(record: Record | None = None, **given: Any) -> RunSettings:
    return settings_of(record, None, **NOTHING | given)


def test_what_no_one_names_is_not_read_from_the_model() -> None:
    found = settings().collected
    assert (found.histogram, found.gradient, found.tensor, found.graph) == (None, None, None, None)
    assert (found.input_data, found.landscape) == (False, None)
    assert found.metric
    assert found.train_lineage
    assert found.eval_lineage
    assert found.dataset_graph
    assert not settings().norms


def test_the_names_of_mindspore_and_ours_choose_the_same() -> None:
    path = {"intervals": [[1, 2, 3]]}
    keys = {
        "collect_metric": False, "collect_graph": True, "collect_input_data": True,
        "collect_landscape": path, "collect_train_lineage": False, "collect_eval_lineage": True,
        "collect_dataset_graph": False,
    }  # fmt: skip
    theirs = check_specified(keys, False, histograms="fc", gradients=".*")
    record = Record(
        images=True, metric=False, train_lineage=False, dataset_graph=False, collect_landscape=path
    )
    assert settings(record, histograms="fc", gradients=".*", graph="modules").collected == theirs


def test_a_count_limits_histograms_of_parameters_and_of_gradients() -> None:
    found = settings(Record(max_histograms=3), histograms=".*", gradients="fc", tensors=".*").collected
    assert found.histogram == Selection(pattern=".*", most=3, argument="histograms='.*'")
    assert found.gradient == Selection(pattern="fc", most=3, argument="gradients='fc'")
    assert found.tensor == Selection(pattern=".*", argument="tensors='.*'")


def test_how_values_are_written_comes_from_record() -> None:
    record = Record(
        formats=["tensorboard"], rotate_bytes=4096, delivery="synced", overload="drop",
        raise_exception=True, export_npy=True, tensor_freq=7, deal="all", collectors="process",
    )  # fmt: skip
    found = settings(record)
    writer = found.writer
    assert writer.limits.rotate_bytes == 4096
    assert (writer.delivery, writer.overload, writer.raise_exception) == ("synced", "drop", True)
    assert found.record == record


def test_several_ranks_write_mindspores_files_unless_others_are_chosen() -> None:
    both, one = ("mindspore", "tensorboard"), ("tensorboard",)
    assert [settings().formats_of_ranks(world_size) for world_size in (1, 2)] == [both, ("mindspore",)]
    chosen = settings(Record(formats=one))
    assert [chosen.formats_of_ranks(world_size) for world_size in (1, 2)] == [one, one]
    ranks = settings(Record(rank_formats=[*reversed(both)]))
    assert [ranks.formats_of_ranks(world_size) for world_size in (1, 2)] == [both, both]


WRONG: dict[str, tuple[Any, type[Exception]]] = {
    "images": (1, InvalidTypeError), "metric": (None, InvalidTypeError),
    "train_lineage": (0, InvalidTypeError), "eval_lineage": ("yes", InvalidTypeError),
    "dataset_graph": (1, InvalidTypeError), "max_histograms": (0, InvalidValueError),
    "tensor_freq": (True, InvalidTypeError),
    "collect_landscape": ([], InvalidTypeError), "deal": ("ranks", InvalidValueError),
    "private": ("no", InvalidTypeError),
    "formats": (["csv"], InvalidValueError), "rank_formats": ([], InvalidValueError),
    "export_npy": ("npy", InvalidTypeError),
    "collectors": ("threads", InvalidValueError), "rotate_bytes": (1, InvalidValueError),
    "rotate_s": (0, InvalidValueError), "keep_bytes": (2**20, InvalidValueError),
    "delivery": ("lost", InvalidValueError),
    "overload": ("raise", InvalidValueError), "ship_bytes": (-1, InvalidValueError),
    "raise_exception": (1, InvalidTypeError),
}  # fmt: skip


def test_each_option_of_record_refuses_what_it_is_not() -> None:
    assert WRONG.keys() == {field.name for field in fields(Record)}
    for name, (value, error) in WRONG.items():
        with pytest.raises(error, match=name):
            Record(**{name: value})


def test_the_bound_of_bulk_values_is_an_integer_of_16_mebibytes_or_more() -> None:
    for given in (True, 2.0**25, "33554432", np.float64(2**25), [2**25]):
        with pytest.raises(InvalidTypeError, match=r"^keep_bytes must be int or None, got "):
            Record(keep_bytes=given)  # type: ignore[arg-type]
    for given in (0, -1, 2**24 - 1):
        with pytest.raises(InvalidValueError, match=r"^keep_bytes must be >= 16777216, got"):
            Record(keep_bytes=given)
    assert settings(Record(keep_bytes=np.int64(2**24))).writer.limits.keep_bytes == 2**24  # type: ignore[arg-type]


def test_a_wrong_argument_is_refused_by_its_name() -> None:
    wrong: Any = settings_of
    without = "got watch=None; pass the model"
    refused(
        InvalidTypeError,
        (lambda: settings(norms="float64"), "^norms must be"),
        (lambda: settings(system_metrics=1), "^system_metrics must be"),
        (lambda: settings(graph=True), "^graph must be"),
        (lambda: wrong(Diagnose(), None, **NOTHING), "record must be Record"),
        (lambda: wrong(None, Record(), **NOTHING), "diagnose must be Diagnose"),
    )
    refused(
        InvalidValueError,
        (lambda: settings(collect_freq=0), "^collect_freq must be"),
        (lambda: settings(checksums=0), "^checksums must be"),
        (lambda: settings(tensors="("), "^tensors must be"),
        (lambda: settings(checksums=3).refuse_unfit(None, Topology()), without),
        (lambda: settings(norms=True).refuse_unfit(None, Topology()), without),
        (lambda: settings(histograms=".*").refuse_unfit(None, Topology()), without),
    )

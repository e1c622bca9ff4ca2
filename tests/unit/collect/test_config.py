"""A configuration of any kind becomes plain data; nothing in it ends a training."""

import argparse
import enum
import json
import logging
import math
import types
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from distsummary.collect.config import MAX_ENTRIES, MAX_ITEMS, MAX_TEXT, read_config
from distsummary.errors import InvalidTypeError


@dataclass(slots=True)
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.99)
    extra: dict[str, Any] = field(default_factory=lambda: {"fused": None})


class Model(BaseModel):
    width: int = 8
    inner: dict[str, bool] = {"bias": True}  # pydantic copies it


class Base:
    seed = 7
    lr = 0.5

    def method(self) -> None: ...

    @property
    def derived(self) -> int:
        return 3


class Settings(Base):
    lr = 0.25
    _hidden = 1


class Colour(enum.Enum):
    RED = 1
    NAMED = (1, 2)


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class HostileMapping(Mapping[str, Any]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("a closed file")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)


def activation(x: float) -> float:
    return x


def adjusted() -> Settings:
    settings = Settings()
    settings.epochs = 3  # type: ignore[attr-defined]
    return settings


@pytest.mark.parametrize(
    ("source", "flat"),
    [
        (None, {}),
        ({}, {}),
        ({"lr": 0.1, 3: 4}, {"lr": 0.1, "3": 4}),
        (Optimizer(), {"lr": 0.1, "betas": "[0.9, 0.99]", "extra.fused": "None"}),
        ({"opt": Optimizer()}, {"opt.lr": 0.1, "opt.betas": "[0.9, 0.99]", "opt.extra.fused": "None"}),
        (argparse.Namespace(amp=False, gpus=[0, 1]), {"amp": "False", "gpus": "[0, 1]"}),
        (types.SimpleNamespace(a=types.SimpleNamespace(b=1)), {"a.b": 1}),
        (namedtuple("Point", "x y")(1, 2), {"x": 1, "y": 2}),
        (Model(), {"width": 8, "inner.bias": "True"}),
        (OmegaConf.create({"a": {"b": 1}, "c": "${a.b}", "d": "???"}), {"a.b": 1, "c": 1, "d": "???"}),
        (OmegaConf.create({"c": "${nowhere}"}), {"c": "${nowhere}"}),
        ({"list": OmegaConf.create([1, 2])}, {"list": "[1, 2]"}),
        (Settings, {"seed": 7, "lr": 0.25}),
        (adjusted(), {"seed": 7, "lr": 0.25, "epochs": 3}),
    ],
    ids=lambda source: type(source).__name__,
)
def test_a_source_of_any_kind_gives_its_entries(source: object, flat: dict[str, Any]) -> None:
    assert read_config(source).flat == flat


@pytest.mark.parametrize("source", [3, "a", [1], max, object(), np.zeros(3)])
def test_a_source_without_names_is_refused(source: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"config must have named values, got .* pass a dict"):
        read_config(source)


def test_a_source_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(
        InvalidTypeError, match=r"HostileMapping cannot be read \(RuntimeError: a closed file"
    ):
        read_config(HostileMapping())


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (None, None), (True, True), (np.True_, True), (np.int64(3), 3), (np.float32(0.1), 0.1),
        (np.longdouble(0.5), 0.5), (np.array(2.5), 2.5), (np.array([[4]]), 4), (np.arange(3), [0, 1, 2]),
        (math.nan, "nan"), (-math.inf, "-inf"), (2**70, 2**70), ("text", "text"), ("\udcff", "\\udcff"),
        (PurePosixPath("a/b"), "a/b"), (Colour.RED, 1), (Colour.NAMED, "NAMED"),
        ((1, (2, None)), [1, [2, None]]), ({3, 1}, [1, 3]), (frozenset(), []), ({}, {}),
        (activation, f"{__name__}.activation"), (Optimizer, f"{__name__}.Optimizer"), (len, "len"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_that_json_has_a_form_for_is_recorded_silently(value, recorded, caplog):
    nested = read_config({"a": value}).nested
    assert nested == {"a": recorded}
    assert json.loads(json.dumps(nested, allow_nan=False)) == nested
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"ab", "b'ab'"), (1 + 2j, "(1+2j)"), (10**5000, "<int>"), (object(), "<object object>"),
        (Hostile(), "<Hostile instance>"), (HostileMapping(), f"<{__name__}.HostileMapping object>"),
        (partial(activation, 2), "functools.partial(<function activation>, 2)"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_any_other_value_becomes_its_repr_without_addresses_and_is_named_once(value, text, caplog):
    assert read_config({"a": {"b": value}, "c": value}).flat == {"a.b": text, "c": text}
    [record] = caplog.records
    assert record.getMessage() == (
        "config: a.b, c recorded by repr(), because JSON cannot hold them (give numbers, texts, lists or "
        "dicts to choose what is recorded)"
    )


def test_a_dtype_is_recorded_by_its_name_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert read_config({"a": np.dtype("float32")}).flat == {"a": "float32"}
    assert not caplog.records


def test_ranks_that_need_not_say_it_do_not(caplog: pytest.LogCaptureFixture) -> None:
    assert read_config({"a": object()}, is_quiet=True).flat
    assert not caplog.records


def test_a_cycle_and_a_deep_structure_end(caplog: pytest.LogCaptureFixture) -> None:
    cycle: dict[str, Any] = {"lr": 0.1}
    cycle["self"], cycle["list"] = cycle, [cycle]
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"in": deep}
    config = read_config({"cycle": cycle, "deep": deep})
    assert config.nested["cycle"]["lr"] == 0.1
    assert isinstance(config.nested["cycle"]["self"], str)
    json.dumps(config.nested)


def test_what_is_too_long_is_shortened_and_named(caplog: pytest.LogCaptureFixture) -> None:
    config = read_config({"prompt": "x" * (MAX_TEXT + 1), "steps": list(range(MAX_ITEMS + 5))})
    assert len(config.nested["prompt"]) == MAX_TEXT
    assert config.nested["steps"][-2:] == [MAX_ITEMS - 1, "... 5 more"]
    assert "prompt, steps shortened" in caplog.text


def test_what_is_too_much_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    config = read_config({"many": {str(i): i for i in range(MAX_ENTRIES + 10)}, "last": 1})
    assert len(config.flat) == MAX_ENTRIES - 1  # "many" is an entry, too
    assert "11 entries of many, 1 entries left out" in caplog.text


def test_of_two_entries_with_one_flat_name_both_are_in_the_nested_form(caplog: pytest.LogCaptureFixture):
    config = read_config({"a.b": 1, "a": {"b": 2}})
    assert (config.flat, config.nested) == ({"a.b": 1}, {"a.b": 1, "a": {"b": 2}})
    assert "a.b left out" in caplog.text


class Client:
    def __repr__(self) -> str:
        return "Client(api_key='k3y', url='https://me:pw@host/x', retries=3)"


def test_secrets_are_replaced_wherever_they_stand(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    source = {
        "password": "k3y", "db": {"hf_token": "k3y", "token": None, "use_auth": True, "pin": {"secret": 42}},
        "auth": {"user": "k3y", "codes": [42, "k3y"]},
        "command": ["run.py", "--api-key", "k3y", "--token=k3y"],
        "url": "postgres://me:k3y@host/db", "note": "hf_abcdefghijklmnop1234", "client": Client(),
        "hf_abcdefghijklmnop1234": 1, "max_tokens": 512,
    }  # fmt: skip
    config = read_config(source)
    text = json.dumps([config.nested, config.flat]) + " ".join(caplog.messages)
    assert not [secret for secret in ("k3y", "42", "pw@", "abcdefghijklmnop") if secret in text]
    assert config.nested["db"] == {
        "hf_token": "***", "token": None, "use_auth": True, "pin": {"secret": "***"},
    }  # fmt: skip
    assert config.nested["client"] == "Client(api_key=***, url='https://***@host/x', retries=3)"
    assert config.nested["max_tokens"] == 512

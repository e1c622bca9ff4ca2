"""CheckpointConfig: MindSpore's arguments, properties and errors."""

import inspect
import sys

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, MissingExtraError
from distsummary.training.checkpoint_config import CheckpointConfig

PROPERTIES = [
    "save_checkpoint_steps",
    "save_checkpoint_seconds",
    "keep_checkpoint_max",
    "keep_checkpoint_per_n_minutes",
    "integrated_save",
    "async_save",
    "saved_network",
    "enc_key",
    "enc_mode",
    "append_dict",
]
KEY = b"0123456789ABCDEF"


class Net:
    """A model of NumPy."""

    def __init__(self):
        self.parameters = {"w": np.zeros(2, np.float32)}


def test_the_arguments_and_their_defaults_are_mindspores():
    given = inspect.signature(CheckpointConfig).parameters
    assert {name: p.default for name, p in given.items() if p.kind is p.POSITIONAL_OR_KEYWORD} == {
        "save_checkpoint_steps": 1,
        "save_checkpoint_seconds": 0,
        "keep_checkpoint_max": 5,
        "keep_checkpoint_per_n_minutes": 0,
        "integrated_save": True,
        "async_save": False,
        "saved_network": None,
        "append_info": None,
        "enc_key": None,
        "enc_mode": "AES-GCM",
        "exception_save": False,
    }


def test_the_properties_and_the_policy():
    net = Net()
    config = CheckpointConfig(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5, saved_network=net)
    assert [getattr(config, name) for name in PROPERTIES] == [
        1, None, 5, None, True, False, net, None, "AES-GCM", None,
    ]  # fmt: skip
    assert config.get_checkpoint_policy() == {
        "save_checkpoint_steps": 1,
        "save_checkpoint_seconds": None,
        "keep_checkpoint_max": 5,
        "keep_checkpoint_per_n_minutes": None,
        "saved_network": net,
    }


@pytest.mark.parametrize(
    ("given", "steps", "seconds", "keep_max", "keep_minutes"),
    [
        ((10, 20, 30, 40), 10, None, 30, None),
        ((0, 20, 0, 40), 0, 20, 0, 40),
        ((None, 20, None, None), None, 20, 1, None),
        ((5, 0, 0, 0), 5, None, 1, 0),
        ((0, 0, 3, 0), 0, 0, 3, None),
    ],
)
def test_one_number_cancels_the_other(given, steps, seconds, keep_max, keep_minutes):
    config = CheckpointConfig(*given)
    assert (config.save_checkpoint_steps, config.save_checkpoint_seconds) == (steps, seconds)
    assert (config.keep_checkpoint_max, config.keep_checkpoint_per_n_minutes) == (keep_max, keep_minutes)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (None, None),
        ([], None),
        (["step_num", "epoch_num"], {"step_num": 0, "epoch_num": 0}),
        (
            ["epoch_num", {"lr": 0.1, "note": "a", "on": True}],
            {"epoch_num": 0, "lr": 0.1, "note": "a", "on": True},
        ),
    ],
)
def test_append_dict(info, expected):
    assert CheckpointConfig(append_info=info).append_dict == expected


NUMBERS = PROPERTIES[:4]
BAD = [
    *((name, value, InvalidTypeError, TypeError) for name in NUMBERS for value in (1.0, True, "1")),
    *((name, -1, InvalidValueError, ValueError) for name in NUMBERS),
    ("integrated_save", None, InvalidTypeError, TypeError),
    ("integrated_save", 1, InvalidTypeError, TypeError),
    ("exception_save", 1, InvalidTypeError, TypeError),
    ("async_save", 1, InvalidTypeError, TypeError),
    ("async_save", None, InvalidTypeError, TypeError),
    ("async_save", "fork", InvalidValueError, ValueError),
    ("saved_network", "net", InvalidTypeError, TypeError),
    ("append_info", {"a": 1}, InvalidTypeError, TypeError),
    ("append_info", ["epoch"], InvalidValueError, ValueError),
    ("append_info", [1], InvalidTypeError, TypeError),
    ("append_info", [{"a": 1}, {"b": 2}], InvalidTypeError, TypeError),
    ("append_info", [{1: 1}], InvalidTypeError, TypeError),
    ("append_info", [{"a": None}], InvalidTypeError, TypeError),
    ("append_info", [{"a": [1]}], InvalidTypeError, TypeError),
    ("enc_key", "0123456789ABCDEF", InvalidValueError, ValueError),
    ("enc_key", b"short", InvalidValueError, ValueError),
    ("enc_mode", 1, InvalidValueError, ValueError),
    ("enc_mode", "SM4-CBC", InvalidValueError, ValueError),
    ("format", "pickle", InvalidValueError, ValueError),
]


@pytest.mark.parametrize(("field", "value", "ours", "builtin"), BAD)
def test_bad_arguments_are_refused_as_by_mindspore(field, value, ours, builtin):
    with pytest.raises(ours, match=field) as caught:
        CheckpointConfig(**{field: value})
    assert isinstance(caught.value, builtin)


@pytest.mark.parametrize("nothing", [0, None])
def test_something_must_be_saved_or_kept(nothing):
    with pytest.raises(InvalidValueError, match="must not all be 0 or None"):
        CheckpointConfig(nothing, nothing, nothing, nothing)


def test_a_key_without_its_package_names_the_remedy(monkeypatch, hide_package):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    hide_package("cryptography")
    with pytest.raises(MissingExtraError, match="pip install cryptography"):
        CheckpointConfig(enc_key=KEY)

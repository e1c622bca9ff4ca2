"""CheckpointConfig: MindSpore's arguments, properties and errors."""

import sys

import numpy as np
import pytest

from distsummary.errors import InvalidValueError, MissingExtraError
from distsummary.training.checkpoint_config import CheckpointConfig
from tests.refusals import refused

PROPERTIES = [
    "save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max",
    "keep_checkpoint_per_n_minutes", "integrated_save", "async_save", "saved_network", "enc_key",
    "enc_mode", "append_dict",
]  # fmt: skip
KEY = b"0123456789ABCDEF"


class Net:
    """A model of NumPy."""

    def __init__(self):
        self.parameters = {"w": np.zeros(2, np.float32)}


def test_the_properties_and_the_policy():
    net = Net()
    config = CheckpointConfig(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5, saved_network=net)
    assert [getattr(config, name) for name in PROPERTIES] == [
        1, None, 5, None, True, False, net, None, "AES-GCM", None,
    ]  # fmt: skip
    assert config.get_checkpoint_policy() == {
        "save_checkpoint_steps": 1, "save_checkpoint_seconds": None, "keep_checkpoint_max": 5,
        "keep_checkpoint_per_n_minutes": None, "saved_network": net,
    }  # fmt: skip


def test_arguments_that_mindspore_takes_are_refused():
    refused(
        InvalidValueError,
        (lambda: CheckpointConfig(enc_key=b"short"), "enc_key must have 16, 24 or 32 bytes"),
        (lambda: CheckpointConfig(enc_mode="SM4-CBC"), "enc_mode must be one of"),
        (lambda: CheckpointConfig(format="pickle"), "format must be one of"),
    )


def test_a_key_without_its_package_names_the_remedy(monkeypatch, hide_package):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    hide_package("cryptography")
    with pytest.raises(MissingExtraError, match="pip install cryptography"):
        CheckpointConfig(enc_key=KEY)

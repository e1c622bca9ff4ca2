"""What libraries for GPUs may do while a landscape computes, in whichever way the user's code has set it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from distsummary.landscapes.model.torch_backends import backends

cudnn: Any = torch.backends.cudnn
every: Any = torch.backends

pytestmark = pytest.mark.skipif(not hasattr(cudnn, "conv"), reason="torch 2.9 has two ways to set TF32")

WAYS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "new: products": partial(setattr, every.cuda.matmul, "fp32_precision", "tf32"),
    "new: all": partial(setattr, every, "fp32_precision", "tf32"),
    "new: nothing of all": partial(setattr, every, "fp32_precision", "ieee"),
    "new: cuDNN": partial(setattr, cudnn, "fp32_precision", "tf32"),
    "old: products": partial(setattr, every.cuda.matmul, "allow_tf32", True),
    "old: cuDNN": partial(setattr, cudnn, "allow_tf32", False),
    "old: medium": lambda: torch.set_float32_matmul_precision("medium"),
}


def settings() -> list[Any]:
    parts = [every.cuda.matmul, cudnn.conv, cudnn.rnn, every.mkldnn.matmul, cudnn, every]
    return [*(part.fp32_precision for part in parts), cudnn.benchmark, cudnn.deterministic]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Settings made in one way, and afterwards torch's own."""
    WAYS[request.param]()
    yield request.param
    every.fp32_precision = cudnn.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    every.cuda.matmul.fp32_precision = every.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_what_was_asked_for_and_both_ways_report_it(way: str, tf32: bool) -> None:
    """Where they disagree the old one raises, and with it torch's own `cudnn.flags`."""
    before = settings()
    with backends(tf32=tf32):
        assert settings()[:3] == ["tf32" if tf32 else "ieee"] * 3
        assert every.cuda.matmul.allow_tf32 == cudnn.allow_tf32 == tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        with cudnn.flags(enabled=False):
            pass
    assert settings() == before


def test_a_setting_of_the_old_way_comes_back(way: str) -> None:
    asked = every.cuda.matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    before = torch.get_float32_matmul_precision() if way.startswith("old") else None
    with backends(tf32=False):
        pass
    assert (every.cuda.matmul.allow_tf32, cudnn.allow_tf32) == asked
    assert before in (None, torch.get_float32_matmul_precision())


def test_algorithms_are_not_chosen_by_timing() -> None:
    with cudnn.flags(enabled=None, benchmark=True):
        with backends(tf32=False):
            assert (cudnn.benchmark, cudnn.deterministic) == (False, True)
        assert (cudnn.benchmark, cudnn.deterministic) == (True, False)

"""Settings of torch's GPU libraries while a landscape is computed: rounding to TF32, choice of algorithms."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

_cudnn: Any = torch.backends.cudnn  # Any, because torch replaces these modules by objects
_backends: Any = torch.backends


@contextmanager
def backends(*, tf32: bool) -> Iterator[None]:
    """During the block, allow or forbid rounding float32 products to TF32, and fix the choice of algorithms.

    cudnn.benchmark would choose algorithms by timing, so that processes might differ; cudnn.deterministic
    excludes algorithms that add in an undefined order.
    """
    with ExitStack() as restore:
        for name, value in {"benchmark": False, "deterministic": True}.items():
            restore.callback(setattr, _cudnn, name, getattr(_cudnn, name))
            setattr(_cudnn, name, value)
        parts = _parts()
        restore.callback(
            _set,
            _Settings(
                _or_none(torch.get_float32_matmul_precision),
                _or_none(lambda: bool(_cudnn.allow_tf32)),
                [part.fp32_precision for part in parts],
            ),
        )
        new = ["tf32" if tf32 else "ieee"] * len(parts)
        _set(_Settings("high" if tf32 else "highest", tf32, new))
        yield


class _Settings(NamedTuple):
    """The TF32 settings in torch's old and new API; None where reading an old setting raises.

    Torch before 2.9 has only the old API. Since 2.9, reading an old setting raises if a program has set only
    new settings, as many programs do. Therefore this module sets both, to the same values.
    """

    matmul: str | None
    convolutions: bool | None
    parts: list[str]  # the new settings, one for each of `_parts()`


def _set(asked: _Settings) -> None:
    """Apply settings; an old setting that is None gets the value of the new one."""
    is_tf32 = [part == "tf32" for part in asked.parts]
    torch.set_float32_matmul_precision(asked.matmul or ("high" if is_tf32[0] else "highest"))
    _cudnn.allow_tf32 = is_tf32[1] if asked.convolutions is None else asked.convolutions
    for part, precision in zip(_parts(), asked.parts, strict=True):
        part.fp32_precision = precision


def _parts() -> list[Any]:
    """The backends that have TF32 settings of their own in the new API; empty before torch 2.9."""
    if not hasattr(_cudnn, "conv"):
        return []
    return [_backends.cuda.matmul, _cudnn.conv, _cudnn.rnn, _backends.mkldnn.matmul]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:
        return None

"""Settings of torch's GPU libraries while a landscape is computed: rounding to TF32, choice of algorithms."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

_cudnn: Any = torch.backends.cudnn  # both Any: objects in place of modules
_backends: Any = torch.backends


@contextmanager
def backends(*, tf32: bool) -> Iterator[None]:
    """Round products of float32 to TF32 or not, and use the same algorithms each time and in every process.

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
    """The settings of TF32 in torch's old and new API; None where reading the old one raises.

    Before torch 2.9 there is only the old API. Since then, reading the old one raises after a program has set
    only the new one, as many do. Therefore both are set here, to the same.
    """

    matmul: str | None
    convolutions: bool | None
    parts: list[str]  # the new API, for each of `_parts()`


def _set(asked: _Settings) -> None:
    """Apply settings; None in the old API is replaced by the value of the new one."""
    is_tf32 = [part == "tf32" for part in asked.parts]
    torch.set_float32_matmul_precision(asked.matmul or ("high" if is_tf32[0] else "highest"))
    _cudnn.allow_tf32 = is_tf32[1] if asked.convolutions is None else asked.convolutions
    for part, precision in zip(_parts(), asked.parts, strict=True):
        part.fp32_precision = precision


def _parts() -> list[Any]:
    """The backends that the new API sets one by one, and the old one together; empty before torch 2.9."""
    if not hasattr(_cudnn, "conv"):
        return []
    return [_backends.cuda.matmul, _cudnn.conv, _cudnn.rnn, _backends.mkldnn.matmul]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:
        return None

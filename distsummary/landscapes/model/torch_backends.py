"""What torch's libraries for GPUs may do while a landscape computes: round to TF32, and choose by timing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

_cudnn: Any = torch.backends.cudnn  # modules made of classes
_backends: Any = torch.backends


@contextmanager
def backends(*, tf32: bool) -> Iterator[None]:
    """Products of float32 are rounded to TF32 or not, and algorithms are the same each time and everywhere.

    cudnn.benchmark takes the one that was the fastest just now, which is another in another process; some
    that cudnn.deterministic excludes add in any order.
    """
    with ExitStack() as restore:
        for name, value in {"benchmark": False, "deterministic": True}.items():
            restore.callback(setattr, _cudnn, name, getattr(_cudnn, name))
            setattr(_cudnn, name, value)
        restore.callback(_set, _settings())
        parts = ["tf32" if tf32 else "ieee"] * len(_parts())
        _set(_Settings("high" if tf32 else "highest", tf32, parts))
        yield


class _Settings(NamedTuple):
    """Of TF32, in both of torch's ways to say it; None for what it does not tell, as they contradict.

    Until 2.8 there is but the old way. Since then it raises where it is asked for what the new one has set,
    and the new one alone, which many now use, leaves the old one behind: so both are set, and agree.
    """

    matmul: str | None
    convolutions: bool | None
    parts: list[str]  # the new way: of what `_parts` gives


def _settings() -> _Settings:
    return _Settings(
        _told(torch.get_float32_matmul_precision),
        _told(lambda: bool(_cudnn.allow_tf32)),
        [part.fp32_precision for part in _parts()],
    )


def _set(asked: _Settings) -> None:
    """Take settings; what was not told becomes what the new way says."""
    is_tf32 = [part == "tf32" for part in asked.parts]
    torch.set_float32_matmul_precision(asked.matmul or ("high" if is_tf32[0] else "highest"))
    _cudnn.allow_tf32 = is_tf32[1] if asked.convolutions is None else asked.convolutions
    for part, precision in zip(_parts(), asked.parts, strict=True):
        part.fp32_precision = precision


def _parts() -> list[Any]:
    """Whose precision the new way sets: products on a GPU, cuDNN's, and products on a CPU, as the old one."""
    if not hasattr(_cudnn, "conv"):
        return []
    return [_backends.cuda.matmul, _cudnn.conv, _cudnn.rnn, _backends.mkldnn.matmul]


def _told(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:
        return None

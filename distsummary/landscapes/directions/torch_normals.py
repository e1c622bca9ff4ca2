"""Draws the random normals `philox-bm-v1`, which module `normals` defines, on the device of a torch model.

Philox4x64 with 10 rounds (Salmon et al. 2011, table 2), computed in torch's int64: its products wrap around
and its shifts keep the sign. The random words equal NumPy's bit for bit. The device computes logarithm, sine
and cosine in float64 by its own functions, so a normal may differ from NumPy's in its last float32 bit.
"""

import math

import torch
from torch import Tensor

from distsummary.landscapes.directions.normals import BLOCK, philox

PIECE = 1 << 22  # normals drawn at a time: enough to keep the device busy, with limited temporary memory
_WORDS = 4  # random words per step of the counter
_ROUNDS = 10
_FACTORS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_LOW = 0xFFFFFFFF
_UNIT = 2.0**-53


def device_normals(seed: int, axis: int, name: str, start: int, stop: int, device: torch.device) -> Tensor:
    """What `random_normals` returns, as a tensor drawn on the device: float32 (stop - start,)."""
    out = torch.empty(stop - start, dtype=torch.float32, device=device)
    for first in range(start, stop, PIECE):
        last = min(first + PIECE, stop)
        steps = torch.arange(first // _WORDS, -(-last // _WORDS), dtype=torch.int64, device=device)
        drawn = _normals(*_words(seed, axis, name, steps))
        skipped = first % _WORDS
        out[first - start : last - start] = drawn[skipped : skipped + last - first]
    return out


def _words(seed: int, axis: int, name: str, steps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words for each counter step; `steps` are numbered across all blocks of the parameter."""
    keys = [int(word) for word in philox(seed, axis, name, 0).state["state"]["key"]]
    blocks = steps // (BLOCK // _WORDS)
    # NumPy increments its counter before it draws.
    a = steps % (BLOCK // _WORDS) + 1
    b, c, d = torch.zeros_like(a), blocks, torch.zeros_like(a)
    for _ in range(_ROUNDS):
        (high_a, low_a), (high_c, low_c) = _product(a, _FACTORS[0]), _product(c, _FACTORS[1])
        a = high_c.bitwise_xor_(b).bitwise_xor_(_signed(keys[0]))
        c = high_a.bitwise_xor_(d).bitwise_xor_(_signed(keys[1]))
        b, d = low_c, low_a
        keys = [key + step for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return a, b, c, d


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 64 bits of unsigned products, from products of 32-bit halves."""
    low, high = x & _LOW, _upper(x)
    factor_low, factor_high = factor & _LOW, factor >> 32
    middle = _upper(low * factor_low).add_(low.mul_(factor_high))
    other = (middle & _LOW).add_(high * factor_low)
    return high.mul_(factor_high).add_(_upper(middle)).add_(_upper(other)), x * _signed(factor)


def _upper(x: Tensor) -> Tensor:
    return (x >> 32).bitwise_and_(_LOW)


def _signed(word: int) -> int:
    """The int64 whose 64 bits are the lowest 64 bits of `word`."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _normals(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Normals from the four words of each step by the Box-Muller transform, float32 (4 * steps,)."""
    radius = _uniform(torch.stack([a, c], dim=1)).add_(_UNIT).log_().mul_(-2.0).sqrt_()
    angle = _uniform(torch.stack([b, d], dim=1)).mul_(2.0 * math.pi)
    both = torch.stack([angle.cos().mul_(radius), angle.sin().mul_(radius)], dim=2)
    return both.float().reshape(-1)


def _uniform(words: Tensor) -> Tensor:
    """The upper 53 bits of each word, as a fraction in [0, 1), float64."""
    return (words >> 11).bitwise_and_((1 << 53) - 1).double().mul_(_UNIT)

"""Data of the zoo: synthetic, equal for equal seeds."""

import zlib

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.zoo.nets import CLASSES, CONTEXT, IMAGE, VOCABULARY

POOL = 256  # so many samples are different


class Images(Dataset[tuple[Tensor, int]]):
    """So many images (3, 16, 16) with their classes."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self._count = count
        self._images = torch.randn(POOL, 3, IMAGE, IMAGE, generator=generator)
        self._classes = torch.randint(CLASSES, (POOL,), generator=generator).tolist()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its class."""
        return self._images[index % POOL] + 0.01 * (index // POOL % 8), self._classes[index % POOL]


class Photos(Dataset[tuple[Tensor, int]]):
    """Images that are compressed; when one is read first, it is decoded, scaled, and kept for all workers."""

    def __init__(self, count: int, side: int = 64) -> None:
        generator = np.random.default_rng(count)
        pixels = generator.integers(256, size=(32, side, side, 3), dtype=np.uint8)
        self._files = [zlib.compress(one.tobytes()) for one in pixels]
        self._count, self._side = count, side
        self._images = torch.zeros(count, 3, IMAGE, IMAGE, dtype=torch.uint8).share_memory_()
        self._is_decoded = torch.zeros(count, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its class."""
        if not self._is_decoded[index]:
            raw = np.frombuffer(zlib.decompress(self._files[index % len(self._files)]), np.uint8)
            image = torch.tensor(raw).view(1, self._side, self._side, 3).permute(0, 3, 1, 2).float()
            small = functional.interpolate(image, IMAGE, mode="bicubic", antialias=True)
            self._images[index], self._is_decoded[index] = small[0].clamp(0, 255), True
        return self._images[index] / 255, index % CLASSES


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """So many stretches of a text: tokens (64,) and the tokens that follow each of them."""

    def __init__(self, count: int) -> None:
        self._count, self._text = count, text()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens, and the tokens that follow."""
        begin = 31 * index % (len(self._text) - CONTEXT - 1)
        stretch = self._text[begin : begin + CONTEXT + 1]
        return stretch[:-1], stretch[1:]


def text() -> Tensor:
    """A text of tokens (20,000,)."""
    return torch.randint(VOCABULARY, (20_000,), generator=torch.Generator().manual_seed(0))

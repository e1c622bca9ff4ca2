"""Operations that read few rows of a large parameter, or one part after the other: they need no whole.

An embedding looks up some rows. The outputs of a linear layer are made of one row each; in parts they have
the same bits where the library adds each up in the same order, which is tried out once: the order hangs on
shapes, not on values.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from distsummary.landscapes.directions.torch_normals import PIECE
from distsummary.landscapes.directions.torch_rows import draws
from distsummary.landscapes.engines.inference.torch_outlines import (
    Outlines,
    Values,
    are_alike,
    fresh,
    in_place_of,
)
from distsummary.landscapes.model.torch_memory import ALIGNMENT_BYTES

LARGE_BYTES = 1 << 24  # of a parameter, beyond which it is worth while
PART_BYTES = 1 << 23
SPARSE = 4  # an embedding has so many times the rows that are looked up, or is made whole
_ROWS = 64  # parts of a linear layer begin at multiples, where its memory is aligned


class ByRows:
    """`by_rows(func, run, args, fill)` is what an operation gives, or None where it needs all rows at once.

    `run` runs it, `fill` gives values to other arguments.
    """

    def __init__(self, outlines: Outlines, values: Values) -> None:
        self._outlines, self._values = outlines, values
        self._is_exact: dict[Any, bool] = {}

    def __call__(
        self, func: Any, run: Callable[..., Any], args: Sequence[Any], fill: Callable[[Any], Any]
    ) -> Any:
        """See ByRows."""
        if func is torch.ops.aten.embedding.default and (name := self._large(args[0])):
            return self._embedding(run, name, args[0], args[1])
        if func is torch.ops.aten.linear.default and (name := self._large(args[1])):
            inputs, bias = fill((args[0], args[2] if len(args) > 2 else None))
            return self._linear(run, name, inputs, args[1], bias)
        return None

    def _large(self, weight: Tensor) -> str | None:
        """The name of a matrix that is large and must be made; None for any other."""
        if weight.dim() != 2 or weight.nbytes <= LARGE_BYTES:
            return None
        name = self._outlines.name(weight)
        return name if name is not None and self._values.borrowed(name) is None else None

    def _embedding(self, run: Callable[..., Any], name: str, weight: Tensor, indices: Tensor) -> Any:
        rows, places = torch.unique(indices, return_inverse=True)
        if not 0 < len(rows) * SPARSE <= len(weight) or rows[0] < 0 or rows[-1] >= len(weight):
            return None
        if draws(weight.device):  # by as many operations for thousands of rows as for one
            spans = _spans(rows.tolist(), max(1, PIECE // weight[0].numel()))
        else:
            spans = ([*range(*ends)] for ends in _runs(rows.tolist()))
        return run(torch.cat([self._picked(name, span) for span in spans]), places)

    def _picked(self, name: str, rows: Sequence[int]) -> Tensor:
        made = self._values.rows(name, rows[0], rows[-1] + 1)
        return made if len(made) == len(rows) else made[[row - rows[0] for row in rows]]

    def _linear(
        self, run: Callable[..., Any], name: str, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Any:
        place = inputs.data_ptr() % ALIGNMENT_BYTES
        key = (name, inputs.shape, inputs.stride(), inputs.dtype, place, bias is None)
        if key not in self._is_exact:
            self._is_exact[key] = self._try_out(run, name, inputs, weight, bias)
        if not self._is_exact[key]:
            return None
        shape = *inputs.shape[:-1], len(weight)
        out = inputs.new_empty(shape)
        for start, stop in _parts(weight):
            part = in_place_of(weight, self._values.rows(name, start, stop))
            out[..., start:stop] = run(inputs, part, None if bias is None else bias[start:stop])
        return out

    def _try_out(
        self, run: Callable[..., Any], name: str, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> bool:
        """Whether the parts are the whole, with the user's values."""
        own = self._outlines.own[name]
        if not are_alike(own, weight):
            return False
        whole = run(inputs, in_place_of(weight, own), bias)
        return whole.is_contiguous() and all(
            torch.equal(
                run(
                    inputs,
                    in_place_of(weight, _copied(own[start:stop])),
                    bias[start:stop] if bias is not None else None,
                ),
                whole[..., start:stop],
            )
            for start, stop in _parts(weight)
        )


def _copied(rows: Tensor) -> Tensor:
    return fresh(rows.shape, rows).copy_(rows)


def _parts(weight: Tensor) -> Iterator[tuple[int, int]]:
    step = max(_ROWS, PART_BYTES // weight[0].nbytes // _ROWS * _ROWS)
    return ((start, min(start + step, len(weight))) for start in range(0, len(weight), step))


def _spans(numbers: Sequence[int], length: int) -> Iterator[list[int]]:
    """Ascending numbers in groups that lie within so many."""
    return (list(group) for _, group in groupby(numbers, lambda number: number // length))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (start, stop) of those that follow each other."""
    breaks = [at for at, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
    return ((numbers[start], numbers[stop - 1] + 1) for start, stop in pairwise([0, *breaks, len(numbers)]))

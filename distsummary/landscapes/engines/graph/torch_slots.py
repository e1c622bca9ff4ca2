"""The memory of slots: their values at the centre, along the axes, and at a point or at several."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from distsummary.landscapes.engines.graph.torch_trace import aten, is_channels_last
from distsummary.landscapes.model.torch_memory import Flat, dense_strides, pinned

FAR = 1e38  # what a sum in float32 can be without overflow


class ChunkFlat(Flat):
    """Slots of several points at once: each has a block (chunk, *shape) of its own.

    `are_data`: channels-last pictures lie as convolutions of several points want them, see `groups`.
    """

    def __init__(
        self, outlines: Mapping[str, Tensor], device: torch.device, chunk: int, *, are_data: bool
    ) -> None:
        super().__init__(outlines, device)
        self._steps = torch.zeros(chunk, dtype=self._row.dtype, device=device)
        self._owners: list[object] = []
        self._blocks = {
            name: torch.zeros(chunk * outline.numel(), dtype=outline.dtype, device=device).as_strided(
                (chunk, *shape), _block_strides(outline, chunk, are_data)
            )
            for (name, outline), (_, shape, _) in zip(outlines.items(), self._views.values(), strict=True)
        }
        self._moves = {name: self._operands(name, block) for name, block in self._blocks.items()}

    def name_of(self, tensor: Tensor) -> str | None:
        """The slot that a tensor is of, whole or in part; None: of none."""
        place = tensor.untyped_storage().data_ptr()
        return next((n for n, b in self._blocks.items() if b.untyped_storage().data_ptr() == place), None)

    def block(self, name: str) -> Tensor:
        """The values of a slot, (chunk, *shape)."""
        return self._blocks[name]

    def lay(self, name: str, owner: object, memory: Tensor, order: Callable[[Tensor], Tensor]) -> None:
        """Have a slot move in `memory` (chunk, numbers), whose order `order` gives to a tensor (*shape).

        `owner`: without which the memory is none.
        """
        self._owners.append(owner)
        start, shape, _ = self._views[name]
        place = slice(start, start + shape.numel())
        for flat in (self._base, self._x, self._y, self._row):
            flat[place] = order(self._view(flat, name))
        self._moves[name] = (self._row[place], self._x[place], self._steps.view(-1, 1), memory)

    def _operands(self, name: str, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        row, along_x = (self._view(flat, name).unsqueeze(0) for flat in (self._row, self._x))
        return row, along_x, self._steps.view(-1, *[1] * (block.dim() - 1)), block

    def points(self) -> Iterator[tuple[str, Tensor]]:
        """By name what the points' values are read from, (chunk, *shape)."""
        return iter(self._blocks.items())

    def load(self, xs: Sequence[float]) -> None:
        """Say where the next points are; what lacks to a chunk is filled up with the last."""
        padded = [*xs, *[xs[-1]] * (len(self._steps) - len(xs))]
        steps = torch.tensor(padded, dtype=self._steps.dtype)
        self._steps.copy_(pinned(steps, self._steps.device), non_blocking=True)

    def move(self) -> None:
        """Go there."""
        for row, along_x, steps, block in self._moves.values():
            torch.addcmul(row, along_x, steps, out=block)


def _block_strides(outline: Tensor, chunk: int, are_data: bool) -> tuple[int, ...]:
    strides = dense_strides(outline)
    if not (are_data and is_channels_last(outline)):
        return (outline.numel(), *strides)
    n, one, h, w = strides
    return (outline.shape[1], n * chunk, one, h * chunk, w * chunk)


class DeviceFlat(Flat):
    """Slots of one point whose place is read on the device, as a captured graph needs it."""

    def __init__(self, outlines: Mapping[str, Tensor], device: torch.device) -> None:
        super().__init__(outlines, device)
        self._step = torch.zeros((), dtype=self._row.dtype, device=device)

    def load(self, xs: Sequence[float]) -> None:
        """Say where the next point is."""
        self._step.fill_(xs[0])

    def move(self) -> None:
        """Go there."""
        torch.addcmul(self._row, self._x, self._step, out=self._point)


class RectifiedFlat(Flat):
    """Slots of one point that are read through a ReLU alone, on a CPU: they are kept behind it.

    The operation that does both at once makes infinity the largest number: it is used where none can be.
    """

    _sizes: tuple[float, ...] = ()
    _row_size = 0.0

    def set_plane(
        self, centre: Mapping[str, Tensor], x: Mapping[str, Tensor], y: Mapping[str, Tensor]
    ) -> None:
        """See Flat."""
        super().set_plane(centre, x, y)
        self._sizes = tuple(float(flat.abs().max()) for flat in (self._base, self._x, self._y))

    def set_row(self, y: float) -> None:
        """See Flat."""
        super().set_row(y)
        self._row_size = self._sizes[0] + abs(y) * self._sizes[2]

    def move(self) -> None:
        """Go there."""
        if self._row_size + abs(self._at) * self._sizes[1] < FAR:
            aten._add_relu.out(self._row, self._x, alpha=self._at, out=self._point)
        else:  # also where a size is NaN
            super().move()
            self._point.relu_()

"""A cut graph at work: its slots filled in a plane, its point part bound to a batch, or to tiles of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap

from distsummary.landscapes.engines.graph.torch_affine import InDouble, Parts, hoist, widened
from distsummary.landscapes.engines.graph.torch_calls import bind
from distsummary.landscapes.engines.graph.torch_cuda_graphs import Captures
from distsummary.landscapes.engines.graph.torch_fusions import add_in_convolutions, in_place, take_relu
from distsummary.landscapes.engines.graph.torch_groups import take_in_biases
from distsummary.landscapes.engines.graph.torch_packed import pack_weights
from distsummary.landscapes.engines.graph.torch_rewrites import ANYWHERE, ON_CPU
from distsummary.landscapes.engines.graph.torch_slots import ChunkFlat, DeviceFlat, RectifiedFlat
from distsummary.landscapes.engines.graph.torch_tiles import Tile, narrowed, resized, tiles
from distsummary.landscapes.engines.graph.torch_trace import Node, placeholders, record
from distsummary.landscapes.model.torch_measure import join
from distsummary.landscapes.model.torch_memory import Flat

Plane = Sequence[tuple[Tensor, Tensor, Tensor]]  # of each moved tensor: centre, along x, along y


class Program:
    """A cut graph for one kind of batch in one plane, and the slots that all its batches share."""

    def __init__(self, parts: Parts, plane: Plane, chunk: int, options: Sequence[str]) -> None:
        self.parts, self.chunk, self.options = parts, chunk, options
        self.shared: Flat | None = None
        self._plane = plane
        self._device = plane[0][0].device
        # what was chosen on a GPU goes on where there is none: on a CPU, step by step
        self.is_captured = "cuda_graph" in options and self._device.type == "cuda"
        self.captures = Captures(self._device) if self.is_captured else None
        self._is_eager_cpu = self._device.type == "cpu" and "compile" not in options
        is_single = self._is_eager_cpu and chunk == 1
        self._is_rectified = is_single and take_relu(parts.point.graph, parts.shared, parts.slots)
        self._tiles = tiles(parts) if is_single else []
        self._tile_graphs = {tile.size: resized(parts.point, tile.size) for tile in self._tiles}
        self._steps: dict[fx.GraphModule, tuple[fx.GraphModule, fx.GraphModule]] = {}
        self._packed: dict[int, Tensor] | None = None
        self._results: dict[Any, Tensor] = {}
        self._at: tuple[float, Sequence[float]] | None = None  # where the shared slots are

    def bind(self, fixed: Sequence[Tensor]) -> "list[Bound]":
        """The program for a batch, whose reading is the sum of the readings of what is returned."""
        constants = self.parts.constants(*fixed)
        values, shared = self._values(constants), self.parts.shared
        if self.shared is None:
            kind = DeviceFlat if self.is_captured else Flat
            inputs = placeholders(self.parts.point.graph)[:shared]
            self.shared = self._filled(kind, inputs, [row[:shared] for row in values])
        own = [row[shared:] for row in values]
        return [self._bound(tile, own, constants) for tile in self._tiles or (None,)]

    def go(self, y: float, xs: Sequence[float]) -> None:
        """Move the shared slots to the next points, unless they are there."""
        if self.shared is None or self._at == (y, xs):
            return
        if self._at is None or self._at[0] != y:
            self.shared.set_row(y)
        self.shared.load(xs)
        if not self.is_captured:  # it moves in the captured graph
            self.shared.move()
        self._at = (y, xs)

    def _values(self, constants: Sequence[Tensor]) -> list[list[Tensor]]:
        """The slots at the centre, and along x and y, in float64."""
        wide = [widened(constant) for constant in constants]
        run = InDouble(self.parts.affine).run
        centre = run(*[c.double() for c, _, _ in self._plane], *wide)
        along = []
        for axis in (1, 2):
            end = run(*[tensors[0].double() + tensors[axis] for tensors in self._plane], *wide)
            along.append([there - here for there, here in zip(end, centre, strict=True)])
        return [list(centre), *along]

    def _bound(
        self, tile: Tile | None, own: Sequence[Sequence[Tensor]], constants: Sequence[Tensor]
    ) -> "Bound":
        shared, slots, point = self.parts.shared, self.parts.slots, self.parts.point
        if tile:
            inputs = placeholders(point.graph)
            own = [narrowed(row, inputs[shared:slots], tile) for row in own]
            constants = narrowed(constants, inputs[slots:], tile)
            point = self._tile_graphs[tile.size]
        kind = RectifiedFlat if self._is_rectified else DeviceFlat if self.is_captured else Flat
        memory = self._filled(kind, placeholders(point.graph)[shared:slots], own, are_data=True)
        flats = [flat for flat in (self.shared, memory) if flat is not None]
        values = [value for flat in flats for _, value in flat.points()]
        return Bound(self, memory, self._calls(point, values, constants))

    def _filled(
        self,
        kind: type[Flat],
        inputs: Sequence[Node],
        values: Sequence[Sequence[Tensor]],
        *,
        are_data: bool = False,
    ) -> Flat | None:
        """Memory for slots, with their values at the centre, along x and along y."""
        outlines = {str(n): node.meta["val"] for n, node in enumerate(inputs)}
        if not outlines:
            return None
        if self.chunk == 1:
            flat = kind(outlines, self._device)
        else:
            flat = ChunkFlat(outlines, self._device, self.chunk, are_data=are_data)
        flat.set_plane(*({str(n): t for n, t in enumerate(row)} for row in values))
        return flat

    def _calls(
        self, point: fx.GraphModule, slots: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> Callable[[], Sequence[Tensor]]:
        """The point part with these tensors, which stay where they are."""
        if point not in self._steps:
            self._steps[point] = self._made_steps(point, slots, constants)
        prepare, step = self._steps[point]
        arguments = list(prepare(*slots, *constants))
        if isinstance(self.shared, ChunkFlat) and self._is_eager_cpu:
            if self._packed is None:
                self._packed = pack_weights(step.graph, arguments, self.shared)
                step.recompile()
            for number, weights in self._packed.items():
                arguments[number] = weights
        calls = bind(step.graph, arguments, self._results) if self._is_eager_cpu else None
        return calls or partial(step, *arguments)

    def _made_steps(
        self, point: fx.GraphModule, slots: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """(prepare, point), see `affine.hoist`."""
        if self.chunk > 1:
            point = self._over_points(slots, constants)
            take_in_biases(point.graph)
        is_compiled = "compile" in self.options
        if not is_compiled:
            in_place(point.graph, self.parts.shared, self.parts.slots)
        if self._is_eager_cpu:
            add_in_convolutions(point.graph, self.parts.shared, self.parts.slots)
        prepare, step = hoist(point, self.parts.slots)
        if is_compiled:
            step.compile(dynamic=False, fullgraph=True)
        return prepare, step

    def _over_points(self, slots: Sequence[Tensor], constants: Sequence[Tensor]) -> fx.GraphModule:
        """The point part with one more axis, the first, for its slots and results."""
        function = vmap(self.parts.point, in_dims=(0,) * len(slots) + (None,) * len(constants))
        decompositions = ON_CPU if self._device.type == "cpu" else ANYWHERE
        with _without_advice():
            return fx.GraphModule({}, record(function, [*slots, *constants], decompositions))


class Bound:
    """A program with a batch in it, or with a tile of one.

    Args:
        own: the memory of the slots that data is in, if there are any.
        step: the point part, bound to the slots' memory.
    """

    def __init__(self, program: Program, own: Flat | None, step: Callable[[], Sequence[Tensor]]) -> None:
        self.program = program
        self._own, self._step = own, step
        self._row: float | None = None
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    @property
    def is_large(self) -> bool:
        """Whether its own slots are more than those it shares."""
        shared = self.program.shared
        return self._own is not None and (shared is None or self._own.nbytes > shared.nbytes)

    def read(self, y: float, points: Sequence[Sequence[float]]) -> Tensor:
        """Readings (points, columns) at chunks of a row."""
        self._set_row(y)
        read = self._replay if self.program.is_captured else self._reading
        found = torch.stack([read(y, xs) for xs in points])
        count = len(points) * self.program.chunk
        return found.reshape(count, -1)[: sum(map(len, points))]

    def _set_row(self, y: float) -> None:
        if self._own is not None and self._row != y:
            self._own.set_row(y)
            self._row = y

    def _reading(self, y: float, xs: Sequence[float]) -> Tensor:
        """Of a chunk, in memory of its own. Own slots always move: the step may have written to them."""
        self.program.go(y, xs)
        if self._own is not None:
            self._own.load(xs)
            self._own.move()
        return self._joined()

    def _joined(self) -> Tensor:
        columns = self._step()
        if len(columns) == 1:
            return columns[0].clone()
        if self.program.chunk == 1:
            return join(columns)
        return torch.cat([c.reshape(self.program.chunk, -1).double() for c in columns], dim=1)

    def _replay(self, y: float, xs: Sequence[float]) -> Tensor:
        """All work of the points as one launch."""
        self.program.go(y, xs)
        if self._own is not None:
            self._own.load(xs)
        if self._captured is None:
            self._captured = self._capture()
        graph, readings = self._captured
        graph.replay()
        return readings.clone()

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        flats = [flat for flat in (self.program.shared, self._own) if flat is not None]

        def work() -> Tensor:
            for flat in flats:
                flat.move()
            return self._joined()

        assert self.program.captures is not None
        return self.program.captures.capture(work)


@contextmanager
def _without_advice() -> Iterator[None]:
    """What has no form for several points (an LSTM) is recorded for one after the other, as torch does it.

    It also prints a line for each such call, to be reported to its developers: a chunk that does not pay is
    not taken anyway. Whether the lines are printed cannot be asked; they are unless somebody said otherwise.
    """
    functorch: Any = torch._C._functorch  # no stub has it
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)


def read_row(bound: Sequence[Bound], y: float, points: Sequence[Sequence[float]]) -> dict[Bound, Tensor]:
    """Readings (points, columns) of each at all chunks of a row.

    What has more slots of its own than it shares stays in a cache from one point to the next; the others
    take turns at every point, so that what they share moves once.
    """
    large = {one: one.read(y, points) for one in bound if one.is_large or len(bound) == 1}
    small = [one for one in bound if one not in large]
    found = [[one.read(y, [chunk]) for one in small] for chunk in points]
    return large | {one: torch.cat(read) for one, read in zip(small, zip(*found, strict=True), strict=True)}

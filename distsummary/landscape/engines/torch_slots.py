"""A cut graph at work: the memory of its slots, and its point part bound to a plane and a batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap

from distsummary.landscape.engines.torch_affine import InDouble, Parts, hoist, widened
from distsummary.landscape.engines.torch_calls import bind
from distsummary.landscape.engines.torch_fusions import in_place, take_relu
from distsummary.landscape.engines.torch_measure import join
from distsummary.landscape.engines.torch_memory import Flat
from distsummary.landscape.engines.torch_rewrites import ANYWHERE, ON_CPU
from distsummary.landscape.engines.torch_trace import aten, record, results

FAR = 1e38  # what a sum in float32 can be without overflow
WARM_UPS = 3  # before a CUDA graph is captured: libraries choose their kernels in them
Plane = Sequence[tuple[Tensor, Tensor, Tensor]]  # of each moved tensor: centre, along x, along y


class ChunkFlat(Flat):
    """Slots of several points at once: each has a block (chunk, *shape) of its own."""

    def __init__(self, outlines: Mapping[str, Tensor], device: torch.device, chunk: int) -> None:
        super().__init__(outlines, device)
        self._steps = torch.zeros(chunk, dtype=self._row.dtype, device=device)
        self._blocks = {
            name: torch.zeros(chunk * outline.numel(), dtype=outline.dtype, device=device).as_strided(
                (chunk, *shape), (outline.numel(), *strides)
            )
            for (name, outline), (_, shape, strides) in zip(
                outlines.items(), self._views.values(), strict=True
            )
        }
        self._moves = [self._operands(name, block) for name, block in self._blocks.items()]

    def _operands(self, name: str, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        row, along_x = (self._view(flat, name).unsqueeze(0) for flat in (self._row, self._x))
        return row, along_x, self._steps.view(-1, *[1] * (block.dim() - 1)), block

    def points(self) -> Iterator[tuple[str, Tensor]]:
        """By name what the points' values are read from, (chunk, *shape)."""
        return iter(self._blocks.items())

    def load(self, xs: Sequence[float]) -> None:
        """Say where the next points are; what lacks to a chunk is filled up with the last."""
        padded = [*xs, *[xs[-1]] * (len(self._steps) - len(xs))]
        self._steps.copy_(torch.tensor(padded, dtype=self._steps.dtype))

    def move(self) -> None:
        """Go there."""
        for row, along_x, steps, block in self._moves:
            torch.addcmul(row, along_x, steps, out=block)


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


class Program:
    """A cut graph for one kind of batch in one plane, and the slots that all its batches share."""

    def __init__(self, parts: Parts, plane: Plane, chunk: int, options: Sequence[str]) -> None:
        self.parts, self.chunk, self.options = parts, chunk, options
        self._plane = plane
        self._device = plane[0][0].device
        self._outlines = [node.meta["val"] for node in results(parts.affine.graph)]
        self._steps: tuple[fx.GraphModule, fx.GraphModule] | None = None
        self._results: dict[Any, Tensor] = {}
        self.shared: Flat | None = None
        self._is_eager_cpu = self._device.type == "cpu" and "compile" not in options
        self._is_rectified = (
            self._is_eager_cpu and chunk == 1 and take_relu(parts.point.graph, parts.shared, parts.slots)
        )

    def memory(self, constants: Sequence[Tensor]) -> Flat | None:
        """The memory of a batch's own slots, filled; the first batch also fills the shared one."""
        values, shared = self._values(constants), self.parts.shared
        kind = DeviceFlat if "cuda_graph" in self.options else Flat
        if self.shared is None:
            self.shared = self._filled(slice(0, shared), values, kind)
        return self._filled(slice(shared, None), values, RectifiedFlat if self._is_rectified else kind)

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

    def _filled(self, part: slice, values: Sequence[Sequence[Tensor]], kind: type[Flat]) -> Flat | None:
        outlines = {str(n): outline for n, outline in enumerate(self._outlines[part])}
        if not outlines:
            return None
        is_one = self.chunk == 1
        flat = kind(outlines, self._device) if is_one else ChunkFlat(outlines, self._device, self.chunk)
        flat.set_plane(*({str(n): t for n, t in enumerate(row[part])} for row in values))
        return flat

    def bind(self, slots: Sequence[Tensor], constants: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        """The point part with these tensors, which stay where they are."""
        if self._steps is None:
            self._steps = self._made_steps(slots, constants)
        prepare, step = self._steps
        arguments = prepare(*slots, *constants)
        calls = bind(step.graph, arguments, self._results) if self._is_eager_cpu else None
        return calls or partial(step, *arguments)

    def _made_steps(
        self, slots: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """(prepare, point), see `torch_affine.hoist`."""
        point = self.parts.point if self.chunk == 1 else self._over_points(slots, constants)
        is_compiled = "compile" in self.options
        if not is_compiled:
            in_place(point.graph, self.parts.shared, self.parts.slots)
        prepare, step = hoist(point, self.parts.slots)
        if is_compiled:
            step.compile(dynamic=False, fullgraph=True)
        return prepare, step

    def _over_points(self, slots: Sequence[Tensor], constants: Sequence[Tensor]) -> fx.GraphModule:
        """The point part with one more axis, the first, for its slots and results."""
        function = vmap(self.parts.point, in_dims=(0,) * len(slots) + (None,) * len(constants))
        decompositions = ON_CPU if self._device.type == "cpu" else ANYWHERE
        return fx.GraphModule({}, record(function, [*slots, *constants], decompositions))


class Bound:
    """A program with a batch in it."""

    def __init__(self, program: Program, fixed: Sequence[Tensor]) -> None:
        constants = program.parts.constants(*fixed)
        self._own = program.memory(constants)
        self.program = program
        self._flats = [flat for flat in (program.shared, self._own) if flat is not None]
        slots = [memory for flat in self._flats for _, memory in flat.points()]
        self._step = program.bind(slots, constants)
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def at(self, x: float, y: float) -> Tensor:
        """The reading (columns,) of one point, shared slots included."""
        for flat in self._flats:
            flat.set_row(y)
            flat.load([x])
            flat.move()
        return self._readings()[0]

    def set_row(self, y: float) -> None:
        """Once a row; the shared slots are the program's."""
        if self._own is not None:
            self._own.set_row(y)

    def read(self, xs: Sequence[float]) -> Tensor:
        """Readings (points, columns) at x of one chunk; the program's slots must have been moved there."""
        if self._own is not None:
            self._own.load(xs)
        if "cuda_graph" in self.program.options:
            return self._replay()[: len(xs)]
        if self._own is not None:
            self._own.move()
        return self._readings()[: len(xs)]

    def _readings(self) -> Tensor:
        columns = self._step()
        if self.program.chunk == 1:
            return join(columns).unsqueeze(0)
        if len(columns) == 1:
            return columns[0].reshape(self.program.chunk, -1)
        return torch.cat([column.reshape(self.program.chunk, -1).double() for column in columns], dim=1)

    def _replay(self) -> Tensor:
        """All work of the points as one launch."""
        if self._captured is None:
            self._captured = self._capture()
        graph, readings = self._captured
        graph.replay()
        return readings.clone()

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        def work() -> Tensor:
            for flat in self._flats:
                flat.move()
            return self._readings()

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            readings = work()
        return graph, readings

"""Runs a cut graph (see `torch_affine`): fills its slots for a plane, binds it to batches, captures it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, fx
from torch.func import vmap

from distsummary.errors import CannotTraceError
from distsummary.frameworks.torch_private import no_vmap_advice, one_compile_thread
from distsummary.landscapes.engines.graph.torch_affine import CutGraph, InDouble, hoist, widened
from distsummary.landscapes.engines.graph.torch_fx import Node, placeholders
from distsummary.landscapes.engines.graph.torch_rewrites import ANYWHERE, ON_CPU, in_place
from distsummary.landscapes.engines.graph.torch_trace import record
from distsummary.landscapes.model.torch_measure import join
from distsummary.landscapes.model.torch_memory import Flat, is_full, pinned
from distsummary.landscapes.model.user_code import first_line

WARM_UPS = 3  # runs before a capture; in them libraries choose their kernels

Plane = Sequence[tuple[Tensor, Tensor, Tensor]]  # for each moved tensor: centre, direction x, direction y


class Program:
    """A cut graph for one plane and for batches of equal layout, and the slots that these batches share."""

    def __init__(self, cut: CutGraph, plane: Plane, chunk: int, options: Sequence[str]) -> None:
        self.cut, self.chunk = cut, chunk
        self.shared: Flat | None = None
        self._plane = plane
        self._device = plane[0][0].device
        # An engine with the option cuda_graph may run on a machine without a GPU; then nothing is captured.
        is_captured = "cuda_graph" in options and self._device.type == "cuda"
        self.captures = Captures(self._device) if is_captured else None
        self._is_compiled = "compile" in options
        self._steps: tuple[fx.GraphModule, fx.GraphModule] | None = None
        self._at: tuple[float, Sequence[float]] | None = None  # the points (y, xs) that the shared slots hold

    def bind(self, fixed: Sequence[Tensor]) -> "BoundProgram":
        """Bind the program to a batch; `fixed`: the model's fixed tensors, then the batch's tensors."""
        constants = self.cut.constants(*fixed)
        shared = self.cut.shared
        # Three lists, float64: the slots at the centre, and their changes along directions x and y.
        wide = [widened(constant) for constant in constants]
        run = InDouble(self.cut.affine).run
        values = [list(run(*[c.double() for c, _, _ in self._plane], *wide))]
        # An affine value changes along a direction by its value one step away minus that at the centre.
        for axis in (1, 2):
            end = run(*[tensors[0].double() + tensors[axis] for tensors in self._plane], *wide)
            values.append([there - here for there, here in zip(end, values[0], strict=True)])
        inputs = placeholders(self.cut.point.graph)
        # The first batch fills the shared slots and prepares the graphs; later ones only add their own slots.
        if self.shared is None:
            self.shared = self._filled(inputs[:shared], [row[:shared] for row in values])
        own = self._filled(inputs[shared : self.cut.slots], [row[shared:] for row in values])
        slots = [value for flat in (self.shared, own) if flat is not None for _, value in flat.points()]
        if self._steps is None:
            self._steps = self._prepared(slots, constants)
        prepare, step = self._steps
        return BoundProgram(self, own, step, prepare(*slots, *constants))

    def go(self, y: float, xs: Sequence[float]) -> None:
        """Compute the shared slots at the points (y, xs), unless they were last computed there."""
        if self.shared is None or self._at == (y, xs):
            return
        if self._at is None or self._at[0] != y:
            self.shared.set_row(y)
        self.shared.load(xs)
        # With captures, the captured graph computes the slots.
        if self.captures is None:
            self.shared.move()
        self._at = (y, xs)

    def _filled(self, inputs: Sequence[Node], values: Sequence[Sequence[Tensor]]) -> Flat | None:
        """Memory for slots, filled with `values` (centre, along x, along y); None if there are no slots."""
        outlines = {str(n): node.meta["val"] for n, node in enumerate(inputs)}
        if not outlines:
            return None
        if self.chunk > 1:
            flat: Flat = ChunkFlat(outlines, self._device, self.chunk)
        else:
            flat = (Flat if self.captures is None else DeviceFlat)(outlines, self._device)
        flat.set_plane(*({str(n): t for n, t in enumerate(row)} for row in values))
        return flat

    def _prepared(
        self, slots: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """(prepare, step): graphs to run once per batch and at every point, respectively; see `hoist`."""
        point = self.cut.point
        # The slots and the results get a new first axis, over the points of a chunk.
        if self.chunk > 1:
            over_points = vmap(point, in_dims=(0,) * len(slots) + (None,) * len(constants))
            decompositions = ON_CPU if self._device.type == "cpu" else ANYWHERE
            with no_vmap_advice():
                point = fx.GraphModule({}, record(over_points, [*slots, *constants], decompositions))
        if not self._is_compiled:
            in_place(point.graph, self.cut.shared, self.cut.slots)
        prepare, step = hoist(point, self.cut.slots)
        if self._is_compiled:
            _compile(step, prepare(*slots, *constants))
        return prepare, step


class BoundProgram:
    """A program bound to a batch.

    Args:
        own: the memory of the slots that depend on the batch; None if there are none.
        step: the graph that runs at every point.
        arguments: the arguments of `step`, at fixed addresses; slots are passed as views of their memory.
    """

    def __init__(
        self, program: Program, own: Flat | None, step: fx.GraphModule, arguments: Sequence[Tensor]
    ) -> None:
        self.program = program
        self._own, self._step, self._arguments = own, step, arguments
        self._row: float | None = None
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def read(self, y: float, xs: Sequence[float]) -> Tensor:
        """Readings (points, columns), see `Tally`, at a chunk's points; later calls do not overwrite them."""
        self.program.go(y, xs)
        if self._own is not None:
            if self._row != y:
                self._own.set_row(y)
                self._row = y
            self._own.load(xs)
        if self.program.captures is None:
            found = self._readings(self._own)
        else:
            # One launch of the captured graph does all the work at these points. The result is copied,
            # because the replay for another batch may overwrite it.
            if self._captured is None:
                self._captured = self.program.captures.capture(
                    lambda: self._readings(self.program.shared, self._own)
                )
            graph, readings = self._captured
            graph.replay()
            found = readings.clone()
        return found.reshape(self.program.chunk, -1)[: len(xs)]

    def _readings(self, *moving: Flat | None) -> Tensor:
        """Compute the slots `moving`, then run `step`, which may overwrite the batch's own slots."""
        for flat in moving:
            if flat is not None:
                flat.move()
        columns: Sequence[Tensor] = self._step(*self._arguments)
        if len(columns) == 1:
            # The only column may be a slot, which changes at the next point.
            return columns[0].clone()
        if self.program.chunk == 1:
            return join(columns)
        return torch.cat([c.reshape(self.program.chunk, -1).double() for c in columns], dim=1)


class ChunkFlat(Flat):
    """Slots at several points at once: each slot has a block (chunk, *shape) of its own."""

    def __init__(self, outlines: Mapping[str, Tensor], device: torch.device, chunk: int) -> None:
        super().__init__(outlines, device)
        self._steps = torch.zeros(chunk, dtype=self._row.dtype, device=device)
        self._blocks = {
            name: torch.zeros(chunk * shape.numel(), dtype=outlines[name].dtype, device=device).as_strided(
                (chunk, *shape), (shape.numel(), *strides)
            )
            for name, (_, shape, strides) in self._views.items()
        }
        # Views that broadcast to the shape of a block. They stay valid: all values are written in place.
        self._operands = [
            (
                self._view(self._row, name).unsqueeze(0),
                self._view(self._x, name).unsqueeze(0),
                self._steps.view(-1, *[1] * (block.dim() - 1)),
                block,
            )
            for name, block in self._blocks.items()
        ]

    def points(self) -> Iterator[tuple[str, Tensor]]:
        """The values of each slot at the points, (chunk, *shape), by name."""
        return iter(self._blocks.items())

    def load(self, xs: Sequence[float]) -> None:
        """Set the next points; a short chunk is padded with its last point."""
        padded = [*xs, *[xs[-1]] * (len(self._steps) - len(xs))]
        steps = torch.tensor(padded, dtype=self._steps.dtype, device="cpu")
        self._steps.copy_(pinned(steps, self._steps.device), non_blocking=True)

    def move(self) -> None:
        """Compute the slots at these points."""
        for row, along_x, steps, block in self._operands:
            torch.addcmul(row, along_x, steps, out=block)


class DeviceFlat(Flat):
    """The slots (see `torch_affine`) at a point; x is in device memory, where captured work can read it."""

    def __init__(self, outlines: Mapping[str, Tensor], device: torch.device) -> None:
        super().__init__(outlines, device)
        self._step = torch.zeros((), dtype=self._row.dtype, device=device)

    def load(self, xs: Sequence[float]) -> None:
        """Set the next point."""
        self._step.fill_(xs[0])

    def move(self) -> None:
        """Compute the slots at this point."""
        torch.addcmul(self._row, self._x, self._step, out=self._point)


class Captures:
    """The CUDA graphs of one GPU: one launch of a graph runs all of its operations.

    They are replayed one after another and share a memory pool. A replay may overwrite the result of another
    graph, so a result is copied before the next replay. Captures run on a stream of their own, because after
    a capture torch drops the stream's cuBLAS workspace: on a shared stream, graphs captured by other code
    might still use it. The first graph is kept because the pool lives only as long as a graph that uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture `work`; returns the graph and the tensor that each replay writes its result to."""
        pool = None if self._first is None else self._first.pool()
        graph = torch.cuda.CUDAGraph()
        # With another current device nothing would be captured.
        with torch.cuda.device(self._device):
            warm, caller = _warm_up_stream(self._device), torch.cuda.current_stream()
            warm.wait_stream(caller)
            with torch.cuda.stream(warm):
                for _ in range(WARM_UPS):
                    work()
            caller.wait_stream(warm)
            # torch.cuda.graph leaves the stream current if ending a capture raises; this `with` resets it.
            # With the error mode "global", allocations by other threads (a running training) would fail.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                readings = work()
        self._first = self._first or graph
        return graph, readings


@cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of a GPU for warm-ups: cuBLAS keeps memory for each stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _compile(step: fx.GraphModule, arguments: Sequence[Tensor]) -> None:
    """Compile a graph with torch.compile for arguments like these; raises CannotTraceError if that fails."""
    try:
        step.compile(dynamic=False, fullgraph=True)
        with one_compile_thread():
            # The first call compiles.
            step(*arguments)
    except Exception as error:
        # The compiler, and the C++ compiler that it calls, may fail in any way.
        if is_full(error):
            raise
        raise CannotTraceError(f"torch.compile cannot compile the loss: {first_line(error)}") from error

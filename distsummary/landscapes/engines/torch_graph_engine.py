"""The graph engine: the loss recorded once, cut at what is affine in the point, and only the rest done there.

For each plane and batch the slots (see `graph.affine`) get memory; a point is two additions and the rest of
the graph. Chunks of points go through the same graph with one more axis (torch.func.vmap, so that matrix
products become batched ones). Data that is streamed has no slots of its own.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from distsummary.errors import CannotTraceError
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.graph.torch_affine import Parts, cut
from distsummary.landscapes.engines.graph.torch_program import Bound, Program, read_row
from distsummary.landscapes.engines.graph.torch_rewrites import ANYWHERE, ON_CPU, rewrite
from distsummary.landscapes.engines.graph.torch_rows import mark
from distsummary.landscapes.engines.graph.torch_trace import (
    batch_tensors,
    objects,
    placeholders,
    reason,
    record,
    results,
    signature,
    trace,
)
from distsummary.landscapes.engines.torch_engines import Loaded, TorchRowEngine, is_near
from distsummary.landscapes.model.torch_loan import Attributes, preserved
from distsummary.landscapes.model.torch_measure import on_host
from distsummary.landscapes.model.torch_memory import is_full, plane_tensors
from distsummary.landscapes.model.user_code import in_batch

STEP = 0.5  # of the parameters' length: where it is proved, far enough that what is left out shows

SLOT_BYTES = 1 << 30  # that the slots of data may take; beyond, moving them costs what they save


class TorchGraphEngine(TorchRowEngine):
    """See `Engine`. Checkpoints, and a point that chunks leave alone at the end, go the row engine's way.

    Raises CannotTraceError when the loss cannot be recorded.
    """

    def _layout(self) -> None:
        super()._layout()
        if self.bn_mode == "recompute":
            raise CannotTraceError("the graph engine does not recompute running statistics")
        kinds = {tensor.dtype for tensor in self._loan.moved.values()}
        if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
            raise CannotTraceError(
                f"the graph engine moves parameters all float32 or all float64, not {kinds}"
            )
        if len(places := {tensor.device for tensor in self._loan.tensors.values()}) > 1:
            raise CannotTraceError(f"the graph engine computes on one device, not on {places}")
        self._before = Attributes(self._loan.model)
        self._graphs: dict[Any, fx.Graph] = {}
        self._programs: dict[Any, Program] = {}
        self._bound: dict[Loaded, list[Bound]] = {}
        self._unique = list({id(t): (n, t) for n, t in self._loan.tensors.items()}.values())

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        directions = recipe.make(centre)
        super().set_plane(centre, directions)
        self._programs.clear()
        self._bound.clear()
        names = [n for n in self._loan.moved if directions.x[n].any() or directions.y[n].any()]
        moved = {name: self._loan.moved[name] for name in names or list(self._loan.moved)[:1]}
        parts = plane_tensors(centre, directions, moved)
        self._plane = {n: tuple(t[n].to(self._loan.device) for t in parts) for n in parts[0]}

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        step = self.choice.chunk
        if step > 1 and len(xs) % step == 1:  # wherever rows are cut, the same point is alone
            alone = super()._readings(y, xs[-1:], batches)
            return torch.cat([self._readings(y, xs[:-1], batches), alone], dim=1) if len(xs) > 1 else alone
        points = [tuple(float(x) for x in xs[n : n + step]) for n in range(0, len(xs), step)]
        with torch.autocast(self._loan.device.type, enabled=False):  # the caller's; its own is recorded
            bound = [in_batch(loaded.name, self._bind, loaded) for loaded in batches]
            found = read_row([part for parts in bound for part in parts], float(y), points)
        return torch.stack([_sum([found[part] for part in parts]) for parts in bound])

    def _bind(self, loaded: Loaded) -> list[Bound]:
        """The program with the batch in it, in parts; proved when it is new, kept unless data is streamed."""
        if loaded in self._bound:
            return self._bound[loaded]
        key = signature(loaded.batch)
        if key not in self._graphs:
            self._graphs[key] = self._record(loaded.batch)
        if key in self._programs:
            bound = self._programs[key].bind(self._fixed(loaded.batch))
        else:
            plane: Any = list(self._plane.values())  # triples
            parts = self._cut(self._graphs[key], self._kept_like(key))
            program = Program(parts, plane, self.choice.chunk, self.choice.options)
            bound = program.bind(self._fixed(loaded.batch))
            self._prove(bound, loaded)
            self._programs[key] = program  # now: what fails once is not used when it is asked for again
        if not self.is_streamed:
            self._bound[loaded] = bound
        return bound

    def _prove(self, bound: Sequence[Bound], loaded: Loaded) -> None:
        """Raise CannotTraceError unless the program gives what the model's own code gives, off the centre."""
        step = STEP * self._reach()
        points = (0.0, step) if self.choice.chunk > 1 else (step,)  # where points are mixed up two show it
        try:
            found = on_host(_sum([part.read(step, [points])[-1] for part in bound]))
        except RuntimeError as error:
            if is_full(error):
                raise
            raise CannotTraceError(f"the recorded loss cannot be evaluated: {reason(error)}") from error
        expected = on_host(super()._readings(step, np.array([step]), [loaded])[0, 0])
        if not is_near(found, expected, self._evaluation.precision):
            raise CannotTraceError(
                f"the recorded loss gives {found.tolist()} where the model gives {expected.tolist()}: "
                "it depends on more than parameters, buffers and batch"
            )

    def _reach(self) -> float:
        """Where in the plane the parameters have changed by as much as they are."""
        centre, *along = (
            float(sum(t.double().square().sum() for t in part) ** 0.5)
            for part in zip(*self._plane.values(), strict=True)
        )
        return centre / max(along) if centre and max(along) else 1.0

    def _record(self, batch: Any) -> fx.Graph:
        if self.is_streamed and (held := objects(batch)):
            raise CannotTraceError(
                f"streamed batches hold a {type(held[0]).__name__}, which a recording takes for the same in "
                "all; give tensors, or engine='row'"
            )
        on_cpu = self._loan.device.type == "cpu"
        # Attention as products and a softmax has a form for chunks, the fused kernels have none.
        attention = sdpa_kernel(SDPBackend.MATH) if self.choice.chunk > 1 else nullcontext()
        with attention, preserved(self._loan.model):  # tensors without values must not stay in it
            self._before.restore()  # what a batch has left in it would be the same at all points
            graph = trace(
                self._loan.model, self._measure, dict(self._unique), batch, ON_CPU if on_cpu else ANYWHERE
            )
        moving = {id(tensor) for tensor in self._loan.moved.values()}
        inputs = zip(self._unique, placeholders(graph), strict=False)
        moved = [node for (_, tensor), node in inputs if id(tensor) in moving]
        rewrite(graph, moved, on_cpu=on_cpu, by_layout=on_cpu and self.choice.chunk == 1)
        return graph

    def _kept_like(self, key: Any) -> int:
        """How many batches that are kept share a graph; 0 where none is."""
        if self.is_streamed:
            return 0
        return sum(signature(loaded.batch) == key for name in self._data for loaded in self._batches(name))

    def _cut(self, graph: fx.Graph, batches: int) -> Parts:
        """The graph's parts; with data in slots only where that of so many batches is not too large."""
        inputs = placeholders(graph)
        nodes = {id(tensor): node for (_, tensor), node in zip(self._unique, inputs, strict=False)}
        moved = [nodes[id(self._loan.moved[name])] for name in self._plane]
        data = inputs[len(self._unique) :]
        mark(graph, moved, data)
        parts = cut(graph, moved, data, with_data=batches > 0)
        own = [node.meta["val"] for node in results(parts.affine.graph)][parts.shared :]
        size = sum(slot.numel() * slot.element_size() for slot in own) * (4 + self.choice.chunk) * batches
        return parts if size <= SLOT_BYTES else cut(graph, moved, data, with_data=False)

    def _fixed(self, batch: Any) -> list[Tensor]:
        """What the constants are made of: tensors that do not move, and the batch."""
        moving = {id(self._loan.moved[name]) for name in self._plane}
        return [t.data for _, t in self._unique if id(t) not in moving] + batch_tensors(batch)


def _sum(readings: Sequence[Tensor]) -> Tensor:
    """One after another: torch's sum would add in an order that depends on how many points there are."""
    return readings[0] if len(readings) == 1 else reduce(torch.add, [r.double() for r in readings])


def warm_up() -> None:
    """Load what recording needs, a second's work: once a process."""
    record(torch.neg, [torch.zeros(1)])

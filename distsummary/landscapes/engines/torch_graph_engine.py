"""The graph engine: records the loss once as a graph, and splits off its part that is affine in the point.

The results of that part, the slots (see `graph.torch_affine`), are prepared once per plane and batch. A point
then costs one addition per slot and one run of the rest of the graph. All points of a chunk go through the
rest together, along a new axis (torch.func.vmap turns matrix products into batched products). The option
"compile" compiles the rest with torch.compile. With streamed data, no slots depend on the data.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from distsummary.errors import CannotTraceError
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.graph.torch_affine import CutGraph, cut
from distsummary.landscapes.engines.graph.torch_fx import placeholders, results
from distsummary.landscapes.engines.graph.torch_program import BoundProgram, Program
from distsummary.landscapes.engines.graph.torch_rewrites import (
    ANYWHERE,
    ON_CPU,
    fold_batch_norms,
    turn_weights,
)
from distsummary.landscapes.engines.graph.torch_trace import (
    batch_tensors,
    objects,
    reason,
    record,
    signature,
    trace,
)
from distsummary.landscapes.engines.torch_engines import Loaded, TorchRowEngine, is_near
from distsummary.landscapes.model.torch_loan import Attributes, preserved
from distsummary.landscapes.model.torch_measure import on_host
from distsummary.landscapes.model.torch_memory import is_full, plane_tensors
from distsummary.landscapes.model.user_code import in_batch

STEP = 0.5  # distance from the centre at which a recording is checked, relative to the centre's norm
SLOT_BYTES = 1 << 30  # limit for slots that depend on data: updating larger ones costs the time they save


class TorchGraphEngine(TorchRowEngine):
    """See `Engine`. Evaluates checkpoints, and a single point left over in a row, as the row engine does.

    Raises CannotTraceError if the loss cannot be recorded.
    """

    def _layout(self) -> None:
        super()._layout()
        if self.bn_mode == "recompute":
            raise CannotTraceError("the graph engine does not recompute running statistics")
        kinds = {tensor.dtype for tensor in self._loan.moved.values()}
        if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
            raise CannotTraceError(
                f"the graph engine needs all varied parameters in float32 or all in float64, got {kinds}"
            )
        if len(places := {tensor.device for tensor in self._loan.tensors.values()}) > 1:
            raise CannotTraceError(f"the graph engine computes on one device, not on {places}")
        self._before = Attributes(self._loan.model)
        self._graphs: dict[Any, fx.Graph] = {}
        self._programs: dict[Any, Program] = {}
        self._bound: dict[Loaded, BoundProgram] = {}
        self._unique = list({id(t): (n, t) for n, t in self._loan.tensors.items()}.values())

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        directions = recipe.make(centre)
        super().set_plane(centre, directions)
        self._programs.clear()
        self._bound.clear()
        # Parameters that neither direction changes count as fixed, so that less depends on the point. At
        # least one must move, even in a plane that changes nothing.
        names = [n for n in self._loan.moved if directions.x[n].any() or directions.y[n].any()]
        moved = {name: self._loan.moved[name] for name in names or list(self._loan.moved)[:1]}
        tensors = plane_tensors(centre, directions, moved)
        self._plane = {n: tuple(t[n].to(self._loan.device) for t in tensors) for n in tensors[0]}

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        step = self.choice.chunk
        # The row's last point is left over wherever a worker's chunks begin: they are multiples of `step`.
        if step > 1 and len(xs) % step == 1:
            alone = super()._readings(y, xs[-1:], batches)
            return torch.cat([self._readings(y, xs[:-1], batches), alone], dim=1) if len(xs) > 1 else alone
        points = [tuple(float(x) for x in xs[n : n + step]) for n in range(0, len(xs), step)]
        # This switches off the caller's autocast; the model's own autocast is part of the recorded graph.
        with torch.autocast(self._loan.device.type, enabled=False):
            bound = [in_batch(loaded.name, self._bind, loaded) for loaded in batches]
            # All batches are evaluated for one chunk before the next, so that shared slots are computed once.
            found = [torch.stack([one.read(float(y), chunk) for one in bound]) for chunk in points]
        return torch.cat(found, dim=1)

    def _bind(self, loaded: Loaded) -> BoundProgram:
        """Bind the program to a batch. A new program is checked first.

        The bound program is kept for the next call, unless data is streamed.
        """
        if loaded in self._bound:
            return self._bound[loaded]
        key = signature(loaded.batch)
        if key not in self._graphs:
            self._graphs[key] = self._record(loaded.batch)
        program = self._programs.get(key)
        if program is None:
            plane: Any = list(self._plane.values())  # (centre, x, y) of each tensor
            program = Program(self._cut(key), plane, self.choice.chunk, self.choice.options)
        moving = {id(self._loan.moved[name]) for name in self._plane}
        fixed = [t.data for _, t in self._unique if id(t) not in moving]
        bound = program.bind([*fixed, *batch_tensors(loaded.batch)])
        if key not in self._programs:
            self._prove(bound, loaded)
            # The program is kept only after the check, so that none that failed is used.
            self._programs[key] = program
        if not self.is_streamed:
            self._bound[loaded] = bound
        return bound

    def _record(self, batch: Any) -> fx.Graph:
        """Record the loss of a batch, and rewrite the graph."""
        if self.is_streamed and (held := objects(batch)):
            raise CannotTraceError(
                f"streamed batches hold a {type(held[0]).__name__}, which would be recorded as a constant "
                "for all batches; give tensors, or use engine='row'"
            )
        on_cpu = self._loan.device.type == "cpu"
        # vmap can batch attention that is written as products and a softmax, but not fused kernels.
        attention = sdpa_kernel(SDPBackend.MATH) if self.choice.chunk > 1 else nullcontext()
        # No fake tensor may stay in the model's attributes, and nothing that a batch left there be recorded.
        with attention, preserved(self._loan.model):
            self._before.restore()
            graph = trace(
                self._loan.model, self._measure, dict(self._unique), batch, ON_CPU if on_cpu else ANYWHERE
            )
        moving = {id(tensor) for tensor in self._loan.moved.values()}
        inputs = zip(self._unique, placeholders(graph), strict=False)
        fold_batch_norms(graph)
        if on_cpu:
            turn_weights(graph, [node for (_, tensor), node in inputs if id(tensor) in moving])
        return graph

    def _cut(self, key: Any) -> CutGraph:
        """Cut the graph for batches with the signature `key`; slots depend on data only if they are small."""
        graph = self._graphs[key]
        inputs = placeholders(graph)
        nodes = {id(tensor): node for (_, tensor), node in zip(self._unique, inputs, strict=False)}
        moved = [nodes[id(self._loan.moved[name])] for name in self._plane]
        data = inputs[len(self._unique) :]
        # A batch has to keep those slots that depend on it, which a streamed batch cannot.
        kept = [] if self.is_streamed else [one for name in self._data for one in self._batches(name)]
        count = sum(signature(loaded.batch) == key for loaded in kept)
        found = cut(graph, moved, data, with_data=count > 0)
        own = [node.meta["val"] for node in results(found.affine.graph)][found.shared :]
        # A batch has its slots at the centre, along x and y, at x = 0 of the row, and at a chunk's points.
        size = sum(slot.numel() * slot.element_size() for slot in own) * (4 + self.choice.chunk) * count
        return found if size <= SLOT_BYTES else cut(graph, moved, data, with_data=False)

    def _prove(self, bound: BoundProgram, loaded: Loaded) -> None:
        """Raise CannotTraceError unless program and model give equal losses at a point off the centre."""
        # The parameters change by half their norm, so that the loss shows whatever the recording misses.
        centre, *along = (
            float(sum(t.double().square().sum() for t in tensors) ** 0.5)
            for tensors in zip(*self._plane.values(), strict=True)
        )
        step = STEP * (centre / max(along) if centre and max(along) else 1.0)
        # Two points show whether evaluating a chunk mixes up its points.
        points = (0.0, step) if self.choice.chunk > 1 else (step,)
        try:
            found = on_host(bound.read(step, points)[-1])
        except RuntimeError as error:
            # The errors of torch.compile are RuntimeErrors too.
            if is_full(error):
                raise
            raise CannotTraceError(f"the recorded loss cannot be evaluated: {reason(error)}") from error
        expected = on_host(super()._readings(step, np.array([step]), [loaded])[0, 0])
        if not is_near(found, expected, self._evaluation.precision):
            raise CannotTraceError(
                f"the recorded loss gives {found.tolist()} where the model gives {expected.tolist()}: "
                "the loss depends on more than parameters, buffers and batch"
            )


def warm_up() -> None:
    """Load the modules that recording needs; this takes about a second, once per process."""
    record(torch.neg, [torch.zeros(1, dtype=torch.float32, device="cpu")])

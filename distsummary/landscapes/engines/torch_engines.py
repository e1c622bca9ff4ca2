"""Engines for torch models that run the user's code unchanged: the naive loop and the row engine.

- naive: writes every parameter again at every point. In float64 it is the reference for all other engines.
- row: computes centre + y * direction_y once per row, in a flat buffer; adds x * direction_x at each point.

Two more engines have modules of their own: `torch_graph_engine` records the user's code, and
`torch_inference_engine` needs hardly more memory than the model.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.frameworks.torch_private import BATCH_NORMS, writes_to
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.engine import Task, processor
from distsummary.landscapes.engines.engine_choice import LOOSE, EngineChoice
from distsummary.landscapes.model.batches import leaves
from distsummary.landscapes.model.data import batch_facts, batch_rows, data_sets
from distsummary.landscapes.model.quantities import (
    REDUCED,
    BatchFacts,
    Tally,
    quantity_names,
)
from distsummary.landscapes.model.torch_loan import Loan, placed
from distsummary.landscapes.model.torch_measure import Measure, join, on_host
from distsummary.landscapes.model.torch_memory import (
    Flat,
    as_channels_last,
    exceeds_device,
    plane_tensors,
    to_device,
)
from distsummary.landscapes.model.user_code import batch_name, in_batch

REPEATED = 1e-5  # allowed relative difference of two evaluations: GPUs may sum in different orders
PROOF = 1e-4  # allowed relative difference between the model's own code and another way of computing

_log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A batch on the device, with its facts (such as its weight and rows) and its name for messages."""

    batch: Any
    facts: BatchFacts
    name: str


class TorchEngine:
    """The common part of engines for torch models: the borrowed model, its data, and the loop over batches.

    Batches are kept on the model's device, or read again for each call of `row_values` (see
    `Evaluation.streamed`). Parameters that are not varied, and buffers, keep the values of the centre. Mode
    "standard" evaluates in eval mode, "mindspore" in training mode (batch statistics, dropout).

    Its attributes are what an `Engine` reports of itself, and the borrowed model's state.

    Args:
        device: where to move the model; None: it stays where it is.
    """

    def __init__(self, task: Task, device: str | None = None) -> None:
        self.choice = task.choice or EngineChoice()
        self.name = self.choice.label
        self._evaluation, self._mode = task.evaluation, task.mode
        data = data_sets(task.batches, streamed=self._evaluation.streamed)
        self.quantities = quantity_names(self._evaluation, list(data))
        self._dtype = torch.float64 if self._evaluation.precision == "float64" else None
        self._centre: Weights = {}
        self._is_at_centre = False
        self._loan = Loan(
            task.model,
            task.names,
            device=device,
            training=task.mode == "mindspore",
            dtype=self._dtype,
            tf32=self._evaluation.precision == "tf32",
            in_place=self.choice.engine == "inference",
        )
        try:
            inner, there = self._loan.model, self._loan.device
            self.bn_mode = "batch" if task.mode == "mindspore" else self._evaluation.bn_mode or "eval"
            # In standard mode the loan has put every module into eval mode; bn_mode decides about these.
            self._norms = [m for m in inner.modules() if isinstance(m, BATCH_NORMS)]
            for norm in self._norms if task.mode == "standard" else ():
                norm.train(self.bn_mode == "batch")
            metrics = self._evaluation.metrics.items()
            moved = {name: placed(metric, inner, there, self._dtype) for name, metric in metrics}
            loss_fn = placed(task.loss_fn, inner, there, self._dtype)
            self._measure = Measure(inner, loss_fn, replace(self._evaluation, metrics=moved), there)
            # Batches that do not fit on the device are streamed too, unless every point needs all of them
            # twice, for its running statistics.
            self.is_streamed = bool(self._evaluation.streamed)
            if not self.is_streamed and self.bn_mode != "recompute":
                self.is_streamed = exceeds_device((b for source in data.values() for b in source), there)
            self._layout()
            self._data: dict[str, Any] = dict(data)  # the user's batches if streamed, else Loaded
            if not self.is_streamed:
                self._data = {name: list(self._on_device(name, source)) for name, source in data.items()}
            self.samples = self._begin(*next(iter(data.items())))
        except BaseException:
            self.close()
            raise

    @property
    def on_gpu(self) -> bool:
        """Whether the engine computes on a GPU."""
        return self._loan.device.type == "cuda"

    @property
    def clock(self) -> Callable[[], float]:
        """The clock to time the engine with: CPU seconds, or wall-clock seconds if it computes on a GPU."""
        return time.process_time if self._loan.device.type == "cpu" else time.perf_counter

    @property
    def hardware(self) -> str:
        """The processor or GPU, and the torch version; where both are equal, results have the same bits."""
        if self.on_gpu:
            name = torch.cuda.get_device_name(self._loan.device)
        else:
            name = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        return f"{name}, torch {torch.__version__}"

    @property
    def parameters(self) -> int:
        """The number of elements in the parameters that are varied."""
        return sum(tensor.numel() for tensor in self._loan.moved.values())

    @property
    def has_pictures(self) -> bool:
        """Whether the model may convolve pictures: some weights and some data have four axes."""
        found = next(iter(self._data.values()))
        batch = next(iter(found))
        held = leaves(batch.batch if isinstance(batch, Loaded) else batch)
        data, weights = (x for x in held if isinstance(x, Tensor)), self._loan.moved.values()
        return any(t.dim() == 4 for t in weights) and any(t.dim() == 4 for t in data)

    def _layout(self) -> None:
        """Allocate the memory of the parameters that are varied."""

    def _on_device(self, name: str, source: Iterable[Any]) -> Iterator[Loaded]:
        return (self._loaded(batch, batch_name(number, name)) for number, batch in enumerate(source, 1))

    # A loss may differentiate with respect to data from the batch.
    @torch.inference_mode(False)
    def _loaded(self, batch: Any, name: str) -> Loaded:
        moved = to_device(batch, self._loan.device, self._dtype)
        if "channels_last" in self.choice.options:
            moved = as_channels_last(moved)
        return Loaded(moved, batch_facts(batch, self._mode, name), name)

    def _batches(self, name: str) -> Iterable[Loaded]:
        return self._on_device(name, self._data[name]) if self.is_streamed else self._data[name]

    def _begin(self, name: str, first: Iterable[Any]) -> int:
        """Probe the loss with the first batch of the data set `first`; returns how many rows `first` has."""
        rows = 0
        for batch in first:
            if not rows:
                loaded = self._loaded(batch, batch_name(1, name))
                in_batch(loaded.name, self._probe, batch, loaded.batch)
            rows += batch_rows(batch)
        if not rows:
            raise InvalidValueError("batches must hold at least one batch, got none")
        return rows

    @torch.inference_mode()
    def _probe(self, given: Any, batch: Any) -> None:
        """Find out whether the loss is random, and which tensors the model writes to.

        `given` is the user's batch, `batch` the same batch on the device. Raises LandscapeError if the loss
        differs each time although torch draws the same numbers, or if channels-last memory changes it.
        """
        tensors = list(self._loan.tensors.values())
        versions = [writes_to(tensor) for tensor in tensors]
        self._measure.probe(batch)

        def repeats() -> bool:
            first, second = (on_host(self._reading(batch)) for _ in range(2))
            return np.allclose(first, second, rtol=REPEATED, atol=0, equal_nan=True)

        # In training mode dropout is on. Otherwise two readings show whether the loss is random; if it is,
        # seeding the generators before each reading must make them equal.
        self._is_random = self._mode == "mindspore"
        is_surprise = not self._is_random and not repeats()
        self._is_random |= is_surprise
        if self._is_random and not repeats():
            raise LandscapeError(
                "the model gives different losses for the same parameters and batch, even with the same "
                "random numbers of torch; switch off its other randomness, such as augmentation; if it "
                "writes to its batch, let it write to copies"
            )
        if is_surprise:
            _log.warning("the loss is random; it gets the same random numbers at every point")
        # Tensors that a reading changes, such as running statistics, are restored after each reading.
        self._written = [t for t, seen in zip(tensors, versions, strict=True) if writes_to(t) != seen]
        if "channels_last" in self.choice.options and not self._is_random:
            as_given = to_device(given, self._loan.device, self._dtype)
            expected, found = (on_host(self._reading(one)) for one in (as_given, batch))
            # Code that computes memory positions itself, such as as_strided, would otherwise read wrong
            # numbers without an error.
            if not is_near(found, expected, self._evaluation.precision):
                raise LandscapeError(
                    f"the model gives {found.tolist()} for pictures in channels-last memory and "
                    f"{expected.tolist()} for the same pictures in their own layout: its code computes "
                    "positions in memory, or rounds too coarsely; leave channels_last out of engine="
                )

    def _reading(self, batch: Any) -> Tensor:
        """The reading of a batch (its loss and other columns of `Tally`) for the model's current values."""
        if self._is_random:
            self._loan.seed()
        return join(self._measure(batch))

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        self._centre, self._is_at_centre = centre, False

    def _place(self, state: Weights) -> None:
        """Write the values of a state, by name, to the model's tensors."""
        self._loan.place(state)

    @torch.inference_mode()
    def row_values(self, y: float, xs: Array) -> Array:
        """See Engine."""
        if not self._is_at_centre:
            self._place(self._centre)
            self._is_at_centre = True
        return self._values(len(xs), lambda batches: self._readings(y, xs, batches))

    @torch.inference_mode()
    def state_values(self, state: Weights) -> Array:
        """See Engine."""
        self._is_at_centre = False
        self._place(state)
        return np.asarray(self._values(1, lambda batches: self._read_here(batches)[:, None])[0])

    def _values(self, count: int, read: Callable[[Sequence[Loaded]], Tensor]) -> Array:
        """The quantities at `count` points; `read(batches)` gives (batches, points, columns)."""
        tallies = {
            name: Tally(self._evaluation, count, has_rows=self._measure.has_rows) for name in self._data
        }
        batches = ((tally, loaded) for name, tally in tallies.items() for loaded in self._batches(name))
        if self.is_streamed:
            for tally, loaded in batches:
                tally.add(on_host(read([loaded]))[0], loaded.facts)
        else:
            # All batches are launched before this thread waits, once, for the device.
            held = list(batches)
            readings = on_host(read([loaded for _, loaded in held]))
            for (tally, loaded), reading in zip(held, readings, strict=True):
                tally.add(reading, loaded.facts)
        return np.concatenate([tally.values() for tally in tallies.values()], axis=1)

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        """The readings of these batches at points of a row of the plane, (batches, points, columns)."""
        raise NotImplementedError

    def _read_here(self, batches: Sequence[Loaded]) -> Tensor:
        """The readings of these batches for the model's current values, (batches, columns)."""
        # The running statistics are averaged over the batches of the first data set, at this point.
        if self.bn_mode == "recompute":
            for norm in self._norms:
                norm.reset_running_stats()
                norm.momentum = None  # a cumulative average
                norm.train()
            for loaded in self._batches(next(iter(self._data))):
                in_batch(loaded.name, self._measure, loaded.batch)
            for norm in self._norms:
                norm.eval()
        readings = []
        for loaded in batches:
            before = [tensor.clone() for tensor in self._written]
            readings.append(in_batch(loaded.name, self._reading, loaded.batch))
            for tensor, value in zip(self._written, before, strict=True):
                # The next batch and the next point must start from the same values.
                tensor.copy_(value)
        return torch.stack(readings)

    def close(self) -> None:
        """See Engine."""
        self._loan.give_back()


def is_near(found: Array, expected: Array, precision: str) -> bool:
    """Whether two readings of a batch differ by no more than rounding."""
    # The size of the loss counts for all columns, because metrics may be near 0.
    size = abs(expected[0]) if np.isfinite(expected[0]) else 0.0
    rtol = LOOSE if precision in REDUCED else PROOF
    return np.allclose(found, expected, rtol=rtol, atol=rtol * size, equal_nan=True)


class TorchNaiveEngine(TorchEngine):
    """The naive loop; with `precision="float64"` it is the reference for all engines."""

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        super().set_plane(centre, recipe)
        parts = plane_tensors(centre, recipe, self._loan.moved)
        self._plane = [(t, *(part[n].to(t) for part in parts)) for n, t in self._loan.moved.items()]

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        found = []
        for x in xs:
            for tensor, centre, along_x, along_y in self._plane:
                tensor.copy_(centre).add_(along_x, alpha=float(x)).add_(along_y, alpha=float(y))
            found.append(self._read_here(batches))
        return torch.stack(found, dim=1)


class TorchRowEngine(TorchEngine):
    """Changes all parameters of one dtype and device with one operation, see `Flat`."""

    def _layout(self) -> None:
        groups: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        if "channels_last" in self.choice.options:
            for tensor in self._loan.tensors.values():
                tensor.data = as_channels_last(tensor.data)
        for name, tensor in self._loan.moved.items():
            groups.setdefault((tensor.device, tensor.dtype), {})[name] = tensor
        self._groups = [Flat(group, device) for (device, _), group in groups.items()]
        # The parameters become views of the flat vectors: one operation on a vector changes them all.
        for group in self._groups:
            for name, memory in group.points():
                self._loan.moved[name].data = memory.copy_(self._loan.moved[name].data)
        self._row: float | None = None

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        super().set_plane(centre, recipe)
        self._row = None
        parts = plane_tensors(centre, recipe, self._loan.moved)
        for group in self._groups:
            group.set_plane(*parts)

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        if self._row != y:
            for group in self._groups:
                group.set_row(float(y))
            self._row = float(y)
        found = []
        for x in xs:
            for group in self._groups:
                group.load([float(x)])
                group.move()
            found.append(self._read_here(batches))
        return torch.stack(found, dim=1)

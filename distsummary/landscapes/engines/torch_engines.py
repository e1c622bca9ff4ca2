"""Engines for torch models that run the user's code as it is: the naive loop and the row engine.

- naive: every parameter anew at every point. The reference; in float64 what all are compared with.
- row: theta + y * v once a row into a flat buffer, + x * u once a point.

`torch_graph_engine` has the one that records the code and evaluates what it does, `torch_inference_engine`
the one that needs hardly more memory than the model.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.base import processor
from distsummary.landscapes.engines.engine_choice import LOOSE, EngineChoice
from distsummary.landscapes.model.batches import leaves
from distsummary.landscapes.model.data import Data, batch_facts, batch_rows, data_sets
from distsummary.landscapes.model.quantities import (
    REDUCED,
    BatchFacts,
    Evaluation,
    Tally,
    quantity_names,
    refuse_unfit,
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

REPEATED = 1e-5  # relative: GPUs add in any order
PROOF = 1e-4  # relative difference from the model's own code that another way to compute may have

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A batch on the device, what it counts and what it is called."""

    batch: Any
    facts: BatchFacts
    name: str


class TorchEngine:
    """What all engines for torch models share: the loan of the model, the data, the way through the batches.

    Args:
        model: moved to `device` if one is given, else it stays where it is.
        loss_fn, batches: see `user_code.bind_loss`; batches may be data sets by name. They are kept on the
            model's device, or read once for each call of `row_values` (`Evaluation.streamed`).
        names: the parameters that move. All others, and the buffers, keep the values of the centre.
        mode: "standard" evaluates in eval mode, "mindspore" in training mode (batch statistics, dropout).
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        batches: Iterable[Any] | Data,
        *,
        names: Sequence[str],
        mode: str = "standard",
        device: str | None = None,
        evaluation: Evaluation | None = None,
        choice: EngineChoice | None = None,
    ) -> None:
        self.choice = choice or EngineChoice()
        self.name = self.choice.label
        self._evaluation, self._mode = evaluation or Evaluation(), mode
        refuse_unfit(self._evaluation, mode, is_torch=True)
        data = data_sets(batches, streamed=self._evaluation.streamed)
        self.quantities = quantity_names(self._evaluation, list(data))
        self._dtype = torch.float64 if self._evaluation.precision == "float64" else None
        self._loan = Loan(
            model,
            names,
            device=device,
            training=mode == "mindspore",
            threads=self.choice.threads,
            dtype=self._dtype,
            tf32=self._evaluation.precision == "tf32",
            in_place=self.choice.engine == "inference",
        )
        try:
            self.bn_mode = self._set_bn_mode()
            self._measure = self._measured(loss_fn)
            self.is_streamed = self._streams(data)
            self._layout()
            self._data = {name: self._kept(name, source) for name, source in data.items()}
            self.samples = self._begin(*next(iter(data.items())))
        except BaseException:
            self.close()
            raise
        self._centre: Weights = {}
        self._is_at_centre = False

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return self._loan.device.type == "cuda"

    @property
    def clock(self) -> Callable[[], float]:
        """What its work is timed with: CPU seconds, or those of the wall where a GPU is waited for."""
        return time.process_time if self._loan.device.type == "cpu" else time.perf_counter

    @property
    def hardware(self) -> str:
        """The processor or GPU and the torch version: results are the same bits where this is the same."""
        if self.on_gpu:
            name = torch.cuda.get_device_name(self._loan.device)
        else:
            name = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        return f"{name}, torch {torch.__version__}"

    @property
    def parameters(self) -> int:
        """How many numbers move."""
        return sum(tensor.numel() for tensor in self._loan.moved.values())

    @property
    def has_pictures(self) -> bool:
        """Whether convolutions over pictures may be in it: weights and data with four axes."""
        found = next(iter(self._data.values()))
        batch = next(iter(found))
        held = leaves(batch.batch if isinstance(batch, Loaded) else batch)
        data, weights = (x for x in held if isinstance(x, Tensor)), self._loan.moved.values()
        return any(t.dim() == 4 for t in weights) and any(t.dim() == 4 for t in data)

    def _measured(self, loss_fn: Any) -> Measure:
        """The loss and the metrics where the model computes."""
        model, device = self._loan.model, self._loan.device
        there = {
            name: placed(metric, model, device, self._dtype)
            for name, metric in self._evaluation.metrics.items()
        }
        loss_fn = placed(loss_fn, model, device, self._dtype)
        return Measure(model, loss_fn, replace(self._evaluation, metrics=there), device)

    def _set_bn_mode(self) -> str:
        asked = self._evaluation.bn_mode
        if self._mode == "mindspore":
            return "batch"
        self._norms = [
            m for m in self._loan.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
        ]
        for norm in self._norms:
            norm.train(asked == "batch")
        return asked or "eval"

    def _layout(self) -> None:
        """Choose the memory of the parameters that move."""

    def _streams(self, data: Data) -> bool:
        """Whether the data is asked to be streamed, or takes too much of the device's own memory."""
        if self._evaluation.streamed or self.bn_mode == "recompute":
            return bool(self._evaluation.streamed)
        return exceeds_device((batch for source in data.values() for batch in source), self._loan.device)

    def _kept(self, name: str, source: Iterable[Any]) -> Iterable[Any]:
        """The batches on the device, or the loader."""
        return source if self.is_streamed else list(self._on_device(name, source))

    def _on_device(self, name: str, source: Iterable[Any]) -> Iterator[Loaded]:
        return (self._loaded(batch, batch_name(number, name)) for number, batch in enumerate(source, 1))

    @torch.inference_mode(False)  # losses may differentiate what is made of the batch, streamed ones too
    def _loaded(self, batch: Any, name: str) -> Loaded:
        moved = to_device(batch, self._loan.device, self._dtype)
        if "channels_last" in self.choice.options:
            moved = as_channels_last(moved)
        counted = to_device(batch, "cpu") if self._evaluation.classes else batch
        return Loaded(moved, batch_facts(counted, self._mode, self._evaluation, name), name)

    def _begin(self, name: str, first: Iterable[Any]) -> int:
        """Probe the loss with the first batch; returns the rows of the first data set, called `name`."""
        rows, tensors = 0, list(self._loan.tensors.values())
        for batch in first:
            if not rows:
                probed = self._loaded(batch, batch_name(1, name))
                versions = [tensor._version for tensor in tensors]
                in_batch(probed.name, self._probe, probed.batch)
                self._written = [t for t, seen in zip(tensors, versions, strict=True) if t._version != seen]
                if "channels_last" in self.choice.options and not self._is_random:
                    in_batch(probed.name, self._check_layout, batch, probed.batch)
            rows += batch_rows(batch)
        if not rows:
            raise InvalidValueError("batches must hold at least one batch, got none")
        return rows

    def _probe(self, batch: Any) -> None:
        """Learn what the loss is like; raises LandscapeError for one that is another each time."""
        self._measure.probe(batch)
        self._is_random = self._mode == "mindspore"  # dropout is on
        is_surprise = not self._is_random and not self._repeats(batch)
        self._is_random |= is_surprise
        if self._is_random and not self._repeats(batch):
            raise LandscapeError(
                "the model gives other losses for the same parameters and batch, also with the same random "
                "numbers of torch; switch off what is random in it, such as augmentation, and let it write "
                "to copies of its batch"
            )
        if is_surprise:
            _log.warning("the loss is random; it gets the same random numbers at every point")

    @torch.inference_mode()
    def _repeats(self, batch: Any) -> bool:
        """Whether a second evaluation gives the same."""
        first, second = (on_host(self._reading(batch)) for _ in range(2))
        return np.allclose(first, second, rtol=REPEATED, atol=0, equal_nan=True)

    @torch.inference_mode()
    def _check_layout(self, given: Any, turned: Any) -> None:
        as_given = to_device(given, self._loan.device, self._dtype)
        expected, found = (on_host(self._reading(batch)) for batch in (as_given, turned))
        # Code that computes places in memory, such as as_strided, raises nothing and reads other numbers.
        if not is_near(found, expected, self._evaluation.precision):
            raise LandscapeError(
                f"the model gives {found.tolist()} for pictures in channels-last memory and "
                f"{expected.tolist()} for the same pictures as they are: it finds numbers by their places in "
                "memory, or loses digits there; leave channels_last out of engine="
            )

    def _reading(self, batch: Any) -> Tensor:
        """The reading (columns,) of the model as it is."""
        if self._is_random:
            self._loan.seed()
        return join(self._measure(batch))

    def _batches(self, name: str) -> Iterable[Loaded]:
        return self._on_device(name, self._data[name]) if self.is_streamed else self._data[name]

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        self._centre, self._is_at_centre = centre, False

    def _place(self, state: Weights) -> None:
        """Take whole values by name."""
        self._loan.place(state)

    @torch.inference_mode()
    def row_values(self, y: float, xs: Array) -> Array:
        """See Engine."""
        if not self._is_at_centre:
            self._place(self._centre)
            self._is_at_centre = True
        return self._values(len(xs), lambda points, batches: self._readings(y, xs[points], batches))

    @torch.inference_mode()
    def state_values(self, state: Weights) -> Array:
        """See Engine."""
        self._is_at_centre = False
        self._place(state)
        return np.asarray(self._values(1, lambda _, batches: self._here(batches)[:, None])[0])

    def _values(self, count: int, read: Any) -> Array:
        """The quantities of `count` points; `read(points, batches)` gives (batches, points, columns)."""
        tallies = {
            name: Tally(self._evaluation, count, has_rows=self._measure.has_rows) for name in self._data
        }
        if self.is_streamed or self._evaluation.stops_early:
            for name, tally in tallies.items():
                self._in_turns(name, tally, read)
        else:
            batches = [(tally, loaded) for name, tally in tallies.items() for loaded in self._batches(name)]
            everywhere = slice(None)
            readings = on_host(read(everywhere, [loaded for _, loaded in batches]))
            for (tally, loaded), reading in zip(batches, readings, strict=True):
                tally.add(everywhere, reading, loaded.facts)
        return np.concatenate([tally.values() for tally in tallies.values()], axis=1)

    def _in_turns(self, name: str, tally: Tally, read: Any) -> None:
        """Batch by batch, for the points that still need one."""
        for loaded in self._batches(name):
            points = tally.active
            if not len(points):
                return
            tally.add(points, on_host(read(points, [loaded]))[0], loaded.facts)

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        """Readings (batches, points, columns) in a row of the plane."""
        raise NotImplementedError

    def _here(self, batches: Sequence[Loaded]) -> Tensor:
        """Readings (batches, columns) of the model as it is."""
        if self.bn_mode == "recompute":
            self._recompute_statistics()
        return torch.stack([in_batch(loaded.name, self._read, loaded.batch) for loaded in batches])

    def _read(self, batch: Any) -> Tensor:
        """Its reading; what the model writes to its tensors is put back, for the next batch and point."""
        before = [tensor.clone() for tensor in self._written]
        reading = self._reading(batch)
        for tensor, value in zip(self._written, before, strict=True):
            tensor.copy_(value)
        return reading

    def _recompute_statistics(self) -> None:
        """Running statistics of these parameters: the mean over the first data set's batches."""
        for norm in self._norms:
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative average
            norm.train()
        for loaded in self._batches(next(iter(self._data))):
            in_batch(loaded.name, self._measure, loaded.batch)
        for norm in self._norms:
            norm.eval()

    def close(self) -> None:
        """See Engine."""
        self._loan.give_back()


def is_near(found: Array, expected: Array, precision: str) -> bool:
    """Whether two readings of a batch differ by no more than rounding."""
    size = abs(expected[0]) if np.isfinite(expected[0]) else 0.0  # the loss: a metric may be near 0
    rtol = LOOSE if precision in REDUCED else PROOF
    return np.allclose(found, expected, rtol=rtol, atol=rtol * size, equal_nan=True)


class TorchNaiveEngine(TorchEngine):
    """The plain loop, with `precision="float64"` the reference of all engines."""

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
            found.append(self._here(batches))
        return torch.stack(found, dim=1)


class TorchRowEngine(TorchEngine):
    """One operation moves all parameters of a dtype and device; see `Flat`."""

    def _layout(self) -> None:
        groups: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        if "channels_last" in self.choice.options:
            for tensor in self._loan.tensors.values():
                tensor.data = as_channels_last(tensor.data)
        for name, tensor in self._loan.moved.items():
            groups.setdefault((tensor.device, tensor.dtype), {})[name] = tensor
        self._groups = [Flat(group, device) for (device, _), group in groups.items()]
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
            found.append(self._here(batches))
        return torch.stack(found, dim=1)

"""The norms of every parameter of a torch model at every step, measured around the optimizer's step.

Each rank measures the elements that it holds: no collective operation runs, the merge adds up the ranks. On
an accelerator, nothing waits: the results are copied to the host while the training continues.
"""

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distsummary.base.failures import Failures
from distsummary.base.guard import passes
from distsummary.collect.checkpoint_keeper import ENDED_LATE
from distsummary.collect.values.norm_source import UpdateDeal
from distsummary.collect.values.sources import Source
from distsummary.format.check_tags import LAG, NONFINITE_TAGS
from distsummary.format.norms import COLUMNS, NORMS_TAG, ParameterNorms, ParameterTable
from distsummary.format.records import Array, Value
from distsummary.frameworks.base import Pending
from distsummary.frameworks.torch import FRAMEWORK
from distsummary.frameworks.torch_modules import memory, unwrap
from distsummary.frameworks.torch_optimizer import OptimizerSteps
from distsummary.frameworks.torch_squares import (
    device_largest,
    device_sums,
    flat,
    host_changes,
    host_sums,
    working_dtype,
)
from distsummary.rundir.deal import Group
from distsummary.training.callbacks import CallbackParams
from distsummary.training.finite import FiniteCheck
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import RECORDING

logger = logging.getLogger(__name__)

NONFINITE_TAG = "norms/nonfinite"  # of the text that names the first parameter
PARAGRAPH = "\n\n"  # between texts of a value; TensorBoard shows Markdown
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_PLAIN = (Tensor, nn.Parameter)


class Norms(Source):
    """Measures every parameter of a model at every step.

    The gradient is that which the optimizer sees, after unscaling and clipping. The weight is that after the
    optimizer's step. If a parameter is stepped several times in a step of the run, the last time counts. A
    step of the run in which no optimizer stepped has no norms.

    Args:
        model: a torch.nn.Module, which `norm_source.refuse_unmeasured` does not refuse.
        context: of the run, whose phases count the time that this takes as that of recording.
        precision: "float32" or "float64"; see `host_sums`.
        group, mesh: see `UpdateDeal`.
        finite: receives the first parameter that is not finite.
        failures: counts what cannot be measured.
        is_quiet: whether another rank says what is the same on all ranks.
    """

    what = "norms"  # due at every step

    def __init__(
        self,
        model: nn.Module,
        context: StepContext,
        *,
        precision: str,
        group: Group,
        mesh: Mapping[str, tuple[int, int]],
        finite: FiniteCheck,
        failures: Failures,
        is_quiet: bool = False,
    ) -> None:
        self._model, self._context, self._precision = model, context, _DTYPES[precision]
        self._group, self._mesh = group, mesh
        self._finite, self._failures = finite, failures
        self._is_quiet = is_quiet
        self._said: set[str] = set()
        self._texts: deque[str] = deque()
        # kind, name and step of the first parameter that is not finite, for the judge of the ranks
        self._sick: deque[tuple[str, str, int]] = deque()
        self._sick_kinds: set[str] = set()
        self._listed: _Listed | None = None
        self._deal: UpdateDeal | None = None
        self._measured: _Measured | None = None  # what was measured in the current step
        self._snapshots = _Snapshots()
        # How many steps of the run each optimizer has stepped in: with the numbers of the steps themselves,
        # an optimizer that steps at every eighth of them would always have the same turn.
        self._turns: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._nonfinite: dict[str, set[int]] = {"weight": set(), "gradient": set()}  # on devices, lately
        self._has_steps, self._has_norms = False, False
        self._optimizers = OptimizerSteps(model, before=self._before, after=self._after, failures=failures)
        if next(model.parameters(), None) is None:
            self._say("the model has no parameters, so there is nothing to measure")

    def close(self) -> None:
        """Measure no more; a second call does nothing."""
        self._optimizers.close()
        if self._has_steps and not self._has_norms and next(self._model.parameters(), None) is not None:
            self._failures.count(
                "norms: none were measured, since no torch.optim.Optimizer that holds parameters of the "
                "watched model stepped in a step of the run; call optimizer.step() inside of run.steps; "
                "where the optimizer holds copies, as ZeRO's does, log its own norm, of DeepSpeed: "
                "run.log(grad_norm=engine.get_global_grad_norm())"
            )
            self._has_steps = False

    def deal_among(self, group: Group) -> None:
        """See `Source`: the updates of the parameters that are whole on these ranks."""
        self._group, self._deal = group, None

    def plan(self, last: int) -> None:
        """See `Source`: every step is due."""

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`: the norms of the step, and once a text that names what is not finite."""
        measured, self._measured = self._measured, None
        self._has_steps = True
        for optimizer in measured.stepped if measured is not None else ():
            self._turns[optimizer] = self._turns.get(optimizer, 0) + 1
        found = []
        if measured is None or not measured.is_weighed or not measured.norms.table.names:
            pass  # no optimizer has stepped, or not to the end
        elif context.ended_late:
            self._has_norms = True
            self._failures.count(ENDED_LATE, dropped={"norms": 1})
        else:
            self._has_norms = True
            norms = PendingNorms(measured.norms, measured.arriving, lambda norms: self._look(step, norms))
            found.append(Value("norms", NORMS_TAG, norms if norms.is_pending else norms.result()))
        texts = []
        while self._texts:  # other threads may add to it
            texts.append(self._texts.popleft())
        if texts:  # one value: of several under a tag at a step, only the last would be kept
            found.append(Value("text", NONFINITE_TAG, PARAGRAPH.join(texts)))
        while self._sick:
            found += self._nonfinite_values(*self._sick.popleft(), step)
        return found

    def _nonfinite_values(self, kind: str, name: str, since: int, step: int) -> list[Value]:
        """The number of a parameter, and how many steps ago it was found to be not finite."""
        names = [each for each, _ in unwrap(self._model).named_parameters()]
        if name not in names:
            return []
        tag = NONFINITE_TAGS[kind]
        numbers = {tag: float(names.index(name)), tag + LAG: float(step - since)}
        return [Value("scalar", each, number) for each, number in numbers.items()]

    def _before(self) -> None:
        """Measure the gradients, and copy the weights whose update is due."""
        with torch.no_grad(), self._context.within(RECORDING):
            listed, measured = self._current()
            step = self._optimizers.current
            measured.is_skipped = False
            found_inf, scale = step.found_inf, step.scale
            if found_inf is not None and found_inf.is_cpu and step.is_skipped():
                measured.is_skipped = True
                return
            held = listed.held_by(step.optimizer)
            places, gradients, refused = [], [], []
            parameters, has_gradient = listed.parameters, measured.norms.has_gradient
            for place in held:
                gradient = parameters[place].grad
                if gradient is None:
                    has_gradient[place] = False
                elif type(gradient) is Tensor:
                    places.append(place)
                    gradients.append(gradient)
                elif _has_layout_of(gradient, parameters[place]):
                    places.append(place)
                    gradients.append(_local(gradient))
                else:
                    has_gradient[place] = False
                    refused.append(listed.table.names[place])
            has_gradient[places] = True
            self._measure("gradient", places, gradients, measured, scale)
            if found_inf is not None and not found_inf.is_cpu:
                measured.arriving.append((_forget_if_skipped(places), FRAMEWORK.snapshot(found_inf)))
            if refused:
                self._failures.count(
                    f"norms: the gradient of {refused[0]!r}"
                    + (f" and {len(refused) - 1} more are" if len(refused) > 1 else " is")
                    + " split over the mesh in another way than the parameter, such as a pending sum "
                    "(Partial), whose norm needs communication; it is left out: call p.grad = "
                    "p.grad.redistribute(placements=p.placements) before optimizer.step()"
                )
            measured.stepped.add(step.optimizer)
            due = self._dealt(listed).due(self._turns.get(step.optimizer, 0), held)
            self._snapshots.take({place: flat(listed.local(place)) for place in due}, self._precision)

    def _after(self) -> None:
        """Measure the weights and the updates."""
        with torch.no_grad(), self._context.within(RECORDING):
            measured, listed = self._measured, self._listed
            if measured is None or listed is None or measured.is_skipped:
                return
            held = listed.held_by(self._optimizers.current.optimizer)
            # all weights once, also those that no optimizer holds; at a step's further optimizers only theirs
            places = held if measured.is_weighed else range(len(listed.parameters))
            measured.is_weighed = True
            self._measure("weight", places, listed.locals(places), measured)
            self._measure_updates(listed, measured)

    def _current(self) -> "tuple[_Listed, _Measured]":
        """The parameters, listed again if they changed, and what is measured in this step."""
        if self._measured is not None and self._listed is not None:
            return self._listed, self._measured  # of this step, with one optimizer for each parameter
        if self._listed is None or not self._listed.is_unchanged():
            before, self._listed = self._listed, _Listed(self._model)
            if before is not None and before.table == self._listed.table:
                self._listed.table = before.table  # whose bytes are known
            self._deal = None
            self._nonfinite = {"weight": set(), "gradient": set()}
            for reason in self._listed.left_out:
                self._say(reason)
        self._measured = _Measured(self._listed.table)
        return self._listed, self._measured

    def _say(self, reason: str) -> None:
        """Say once what is not measured; one rank says it for all."""
        if reason not in self._said and not self._is_quiet:
            logger.warning("norms: %s", reason)
        self._said.add(reason)

    def _dealt(self, listed: "_Listed") -> UpdateDeal:
        if self._deal is None:
            self._deal = UpdateDeal(listed.table, listed.splits, self._group, self._mesh)
        return self._deal

    def _measure(
        self,
        kind: str,
        places: Sequence[int],
        tensors: Sequence[Tensor],
        measured: "_Measured",
        scale: Tensor | None = None,
    ) -> None:
        """Measure tensors: those on the host at once, those on devices when their results arrive."""
        there = [index for index, one in enumerate(tensors) if not one.is_cpu]
        if len(there) < len(tensors):
            mine, own = tensors, places
            if there:
                hosts = [index for index, one in enumerate(tensors) if one.is_cpu]
                mine, own = [tensors[index] for index in hosts], [places[index] for index in hosts]
            sums, counts = host_sums(mine, self._precision)
            if scale is not None:
                sums /= float(scale.item()) ** 2
            _fill(measured.norms, kind, own, sums, counts)
        if there:
            flats = {places[index]: flat(tensors[index]) for index in there}
            self._measure_there(kind, flats, measured, scale)

    def _measure_updates(self, listed: "_Listed", measured: "_Measured") -> None:
        """Measure what the optimizer's step added to the parameters that were copied before it."""
        pairs = {place: (flat(listed.local(place)), copy) for place, copy in self._snapshots.given_back()}
        hosts = [place for place, (one, _) in pairs.items() if one.is_cpu]
        if hosts:
            sums, most = host_changes([pairs[place] for place in hosts], self._precision)
            _fill_update(measured.norms, hosts, sums, most)
        there = {place: pair for place, pair in pairs.items() if not pair[0].is_cpu}
        if there:
            changes = {place: torch.sub(one, copy, out=copy) for place, (one, copy) in there.items()}
            self._measure_there("update", changes, measured)

    def _measure_there(
        self, kind: str, flats: Mapping[int, Tensor], measured: "_Measured", scale: Tensor | None = None
    ) -> None:
        """Measure tensors on devices, by place; their results are on their way to the host."""
        flats = {place: one for place, one in flats.items() if one.numel()}
        for device in {one.device for one in flats.values()}:
            places = [place for place, one in flats.items() if one.device == device]
            here = [flats[place] for place in places]
            if kind == "update":
                packed = torch.cat((device_sums(here, ()), device_largest(here)))
                measured.arriving.append((_arrive_updates(places), FRAMEWORK.snapshot(packed)))
                continue
            known = self._nonfinite[kind]
            # Whether a sum is finite is only known later, so the elements of those that lately were not are
            # counted; at the first step, the count is 1, which says that there are some.
            counted = [index for index, place in enumerate(places) if place in known]
            packed = device_sums(here, counted)
            if scale is not None:
                packed[: len(places)] /= scale.to(device, packed.dtype).square()
            arrive = _arrive(kind, places, counted, known)
            measured.arriving.append((arrive, FRAMEWORK.snapshot(packed)))

    def _look(self, step: int, norms: ParameterNorms) -> None:
        """Report the first parameter that is not finite; may be called from any thread."""
        for kind in ("gradient", "weight"):
            counts = getattr(norms, f"{kind}_nonfinite")
            bad = np.flatnonzero(counts)
            if not len(bad):
                continue
            first, table = int(bad[0]), norms.table
            if kind not in self._sick_kinds:
                self._sick_kinds.add(kind)
                self._sick.append((kind, table.names[first], step))
            others = f" (and those of {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
            found = (
                f"the {kind} of {table.names[first]!r} has {int(counts[first])} of "
                f"{table.local_sizes[first]} elements that are not finite at step {step} on rank "
                f"{self._finite.rank}{others}"
            )
            if self._finite.report(f"norms/{kind}", found):
                self._texts.append(found)


class PendingNorms:
    """The norms of a step, some of which may still be on their way from a device.

    Args:
        norms: filled by `result`.
        arriving: the results of devices, and what puts them into `norms`.
        look: called once with the complete norms.
    """

    __slots__ = ("_arriving", "_is_seen", "_look", "_norms")

    def __init__(
        self,
        norms: ParameterNorms,
        arriving: "list[tuple[Callable[[ParameterNorms, Array], None], Pending]]",
        look: Callable[[ParameterNorms], None],
    ) -> None:
        self._norms, self._arriving, self._look = norms, arriving, look
        self._is_seen = False

    @property
    def is_pending(self) -> bool:
        """Whether results are still to come from a device."""
        return bool(self._arriving)

    @property
    def nbytes(self) -> int:
        """The bytes of the columns and of the results to come."""
        return self._norms.nbytes + sum(copy.nbytes for _, copy in self._arriving)

    def result(self) -> ParameterNorms:
        """Wait for the results and return the norms."""
        while self._arriving:
            fill, copy = self._arriving.pop(0)
            fill(self._norms, np.asarray(copy.result()))
        if not self._is_seen:
            self._is_seen = True
            self._look(self._norms)
        return self._norms


class _Measured:
    """What was measured so far in a step of the run."""

    __slots__ = ("arriving", "is_skipped", "is_weighed", "norms", "stepped")

    def __init__(self, table: ParameterTable) -> None:
        n = len(table.names)
        columns = {name: np.full(n, default, dtype) for name, (dtype, default) in COLUMNS.items()}
        columns["has_gradient"].fill(False)
        self.norms = ParameterNorms(table, **columns)
        self.arriving: list[tuple[Callable[[ParameterNorms, Array], None], Pending]] = []
        self.is_weighed = False  # whether weights were measured: an optimizer has stepped
        self.stepped: set[Optimizer] = set()
        self.is_skipped = False  # whether GradScaler leaves out the optimizer's current step


class _Listed:
    """The parameters of a model: those that share memory once, frozen ones too."""

    def __init__(self, model: nn.Module) -> None:
        self.is_unchanged = FRAMEWORK.watch(model)
        self.left_out: list[str] = []  # why some parameters are not measured
        named = [(name, one) for name, one in unwrap(model).named_parameters() if self._is_known(name, one)]
        first = {memory(one): name for name, one in reversed(named)}
        named = [(name, one) for name, one in named if first[memory(one)] == name]
        self.parameters: list[Tensor] = [one for _, one in named]
        self.table = ParameterTable(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(one.shape) for one in self.parameters),
            local_sizes=tuple(_local(one).numel() for one in self.parameters),
            starts=tuple(_start(one) for one in self.parameters),
        )
        self.splits = [FRAMEWORK.split_axes(one) for one in self.parameters]
        self._is_distributed = any(type(one) not in _PLAIN for one in self.parameters)
        self._places = {id(one): place for place, one in enumerate(self.parameters)}
        self._held: weakref.WeakKeyDictionary[Optimizer, tuple[list[int], list[int]]]
        self._held = weakref.WeakKeyDictionary()

    def _is_known(self, name: str, parameter: Tensor) -> bool:
        """Whether the parameter has elements to measure; if not, notes why."""
        if nn.parameter.is_lazy(parameter):
            return False  # listed again when it gets its shape
        local = _local(parameter)
        if not local.is_floating_point() and not local.is_complex():
            self.left_out.append(f"{name!r} is left out: {local.dtype} holds no real numbers")
        elif local.is_meta:
            self.left_out.append(f"{name!r} is left out: on the device meta it has no values")
        elif type(local) not in _PLAIN and (reason := _cannot_measure(local)):
            self.left_out.append(f"{name!r} is left out: {reason}")
        else:
            return True
        return False

    def local(self, place: int) -> Tensor:
        """This rank's part of a parameter, as it is now."""
        return _local(self.parameters[place])

    def locals(self, places: Sequence[int]) -> list[Tensor]:
        """This rank's parts of parameters, as they are now."""
        parameters = self.parameters
        if not self._is_distributed:
            return [parameters[place] for place in places]
        return [_local(parameters[place]) for place in places]

    def held_by(self, optimizer: Optimizer) -> list[int]:
        """The places of the parameters that an optimizer holds."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._held.get(optimizer)
        if known is not None and known[0] == sizes:
            return known[1]
        ids: Iterable[int] = (id(one) for group in optimizer.param_groups for one in group["params"])
        held = sorted({self._places[key] for key in ids if key in self._places})
        self._held[optimizer] = sizes, held
        return held


class _Snapshots:
    """Copies of parameters before a step; the memory of those on the host is used again."""

    def __init__(self) -> None:
        self._memory: dict[torch.dtype, Tensor] = {}
        self._copies: dict[int, Tensor] = {}

    def take(self, flats: Mapping[int, Tensor], precision: torch.dtype) -> None:
        """Copy parameters by place, in their working dtype."""
        self._copies.clear()
        starts: dict[int, tuple[torch.dtype, int]] = {}
        needed: dict[torch.dtype, int] = {}
        for place, one in flats.items():
            dtype = working_dtype(one, precision)
            if one.is_cpu:
                starts[place] = dtype, needed.get(dtype, 0)
                needed[dtype] = starts[place][1] + one.numel()
            else:
                self._copies[place] = one.to(dtype, copy=True)
        for dtype, size in needed.items():
            held = self._memory.get(dtype)
            if held is None or held.numel() < size:
                self._memory[dtype] = torch.empty(size, dtype=dtype)
        for place, (dtype, start) in starts.items():
            one = flats[place]
            self._copies[place] = self._memory[dtype][start : start + one.numel()].copy_(one)

    def given_back(self) -> list[tuple[int, Tensor]]:
        """The copies by place, which are forgotten here."""
        copies, self._copies = self._copies, {}
        return list(copies.items())


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; called without gradients, so that it costs little."""
    if type(tensor) in _PLAIN or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        local: Tensor = tensor.to_local()
    return local


def _start(parameter: Tensor) -> int:
    """The place of the first element that this rank holds in the whole parameter, row by row."""
    shard = FRAMEWORK.shard(parameter) if _local(parameter).numel() else None
    if shard is None:
        return 0
    return int(np.ravel_multi_index(shard.offset, shard.global_shape)) if shard.offset else 0


def _cannot_measure(tensor: Tensor) -> str:
    """Why there is no norm of a tensor of another class, such as a quantized one; empty if there is."""
    try:
        torch.linalg.vector_norm(flat(tensor.detach())[:1])
    except Exception as error:  # the class may raise anything
        if passes(error, is_door=False):
            raise
        return f"a {type(tensor.data).__name__} does not give its elements ({type(error).__name__}: {error})"
    return ""


def _has_layout_of(gradient: Any, parameter: Any) -> bool:
    """Whether a gradient is split over the mesh as its parameter is, so that ranks' sums can be added."""
    if type(gradient) in _PLAIN:
        return True
    own, theirs = getattr(gradient, "placements", None), getattr(parameter, "placements", None)
    if own == theirs:
        return True
    if own is None or theirs is None:
        return FRAMEWORK.split_axes(gradient) == FRAMEWORK.split_axes(parameter)
    sizes = gradient.device_mesh.shape  # along an axis of one rank, all layouts are the same
    return len(own) == len(theirs) and all(
        mine == other for mine, other, size in zip(own, theirs, sizes, strict=True) if size > 1
    )


def _fill(norms: ParameterNorms, kind: str, places: Sequence[int], sums: Array, counts: Array) -> None:
    getattr(norms, f"{kind}_sums")[places] = sums
    getattr(norms, f"{kind}_nonfinite")[places] = counts


def _fill_update(norms: ParameterNorms, places: Sequence[int], sums: Array, maxima: Array) -> None:
    """NaN means "not measured", so an update that is not finite becomes infinite."""
    norms.update_sums[places] = np.where(np.isnan(sums), np.inf, sums)
    with np.errstate(over="ignore"):  # of float64 parameters, beyond float32
        norms.update_max[places] = np.where(np.isnan(maxima), np.inf, maxima)


def _arrive(
    kind: str, places: list[int], counted: list[int], known: set[int]
) -> Callable[[ParameterNorms, Array], None]:
    """What fills in the sums that come from a device, and updates `known`, the places that are not finite."""

    def arrive(norms: ParameterNorms, results: Array) -> None:
        sums = results[: len(places)].astype(np.float64)
        counts = (~np.isfinite(sums)).astype(np.int64)
        counts[counted] = results[len(places) :]
        known.difference_update(places)
        known.update(place for place, count in zip(places, counts, strict=True) if count)
        _fill(norms, kind, places, sums, counts)

    return arrive


def _arrive_updates(places: list[int]) -> Callable[[ParameterNorms, Array], None]:
    """What fills in the updates that come from a device."""
    n = len(places)
    return lambda norms, results: _fill_update(norms, places, results[:n], results[n:])


def _forget_if_skipped(places: list[int]) -> Callable[[ParameterNorms, Array], None]:
    """What takes the gradients back if GradScaler found that they are not finite, and left out the step."""

    def arrive(norms: ParameterNorms, found_inf: Array) -> None:
        if float(found_inf.reshape(-1)[0]):
            norms.has_gradient[places] = False
            norms.gradient_sums[places] = 0
            norms.gradient_nonfinite[places] = 0

    return arrive

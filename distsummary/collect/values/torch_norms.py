"""The norms of every parameter of a torch model at every step, measured around the optimizer's step.

Each rank measures the elements that it holds: no collective operation runs, the merge adds up the ranks. On
an accelerator, nothing waits: the results are copied to the host while the training continues.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.collect.plan import share
from distsummary.collect.values.sources import Source
from distsummary.diagnosis.verdict import UNRECORDED
from distsummary.format.norms import COLUMNS, ParameterNorms, ParameterTable
from distsummary.format.own_tags import LAG, NONFINITE_TAGS, NONFINITE_TEXT, NORMS_TAG
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
from distsummary.training.step_context import ENDED_LATE, StepContext
from distsummary.training.timing.phases import RECORDING

logger = guarded_log(__name__)

NO_STEP = (
    "none were measured, since no torch.optim.Optimizer that holds parameters of the watched model stepped "
    "in a step of the run; call optimizer.step() inside of run.steps; where the optimizer holds copies, as "
    "ZeRO's does, log its own norm, of DeepSpeed: run.log(grad_norm=engine.get_global_grad_norm())"
)

PARAGRAPH = "\n\n"  # between texts of a value; TensorBoard shows Markdown
TURNS = 8  # a parameter's update is measured at every 8th step of its optimizer
_PLAIN = (Tensor, nn.Parameter)


class Norms(Source):
    """Measures every parameter of a model at every step.

    The gradient is that which the optimizer sees, after unscaling and clipping. The weight is that after the
    optimizer's step. If a parameter is stepped several times in a step of the run, the last time counts. A
    step of the run in which no optimizer stepped has no norms. To measure an update, its weight is copied:
    at each step an eighth of the parameters are, the same ones on all ranks.

    Its attributes are the settings, and what the hooks of one step leave for its end.

    Args:
        model: a torch.nn.Module, which `options.refuse_unmeasured` does not refuse.
        params: the parameters of the training, which have its current step.
        context: of the run, whose phases count the time that this takes as that of recording.
        finite: receives the first parameter that is not finite.
        failures: counts what cannot be measured.
        is_quiet: whether another rank says what is the same on all ranks.
    """

    what = "norms"  # due at every step

    def __init__(
        self,
        model: nn.Module,
        params: CallbackParams,
        context: StepContext,
        *,
        finite: FiniteCheck,
        failures: Failures,
        is_quiet: bool = False,
    ) -> None:
        self._model, self._params, self._context = model, params, context
        self._finite, self._failures = finite, failures
        self._is_quiet = is_quiet
        self._said: set[str] = set()
        self._texts: deque[str] = deque()
        # kind, name and step of the first parameter that is not finite, for the judge of the ranks
        self._sick: deque[tuple[str, str, int]] = deque()
        self._sick_kinds: set[str] = set()
        self._listed: _Listed | None = None
        self._measured: StepNorms | None = None  # what was measured in the current step
        self._copies: dict[int, Tensor] = {}  # of parameters before a step, by place
        # The newest step of the run at which each optimizer stepped, and how many after the one before.
        self._stepped: MutableMapping[Optimizer, tuple[int, int]] = WeakIdKeyDictionary()
        self._nonfinite: dict[str, set[int]] = {"weight": set(), "gradient": set()}  # on devices, lately
        self._has_steps, self._has_norms = False, False
        self._optimizers = OptimizerSteps(model, before=self._before, after=self._after, failures=failures)
        if next(model.parameters(), None) is None:
            self._say("the model has no parameters, so there is nothing to measure")

    def close(self) -> None:
        """Measure no more; a second call does nothing."""
        self._optimizers.close()
        if self._has_steps and not self._has_norms and next(self._model.parameters(), None) is not None:
            self._failures.count(f"norms: {NO_STEP}")
            self._context.report_finding(UNRECORDED, f"no norms: {NO_STEP}")
            self._has_steps = False

    def plan(self, last: int) -> None:
        """See `Source`: every step is due."""

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`: the norms of the step, and once a text that names what is not finite."""
        measured, self._measured = self._measured, None
        self._has_steps = True
        found = []
        if measured is not None and measured.is_weighed and measured.norms.table.names:
            self._has_norms = True
            if context.ended_late:
                self._failures.count(ENDED_LATE, dropped={"norms": 1})
            else:
                measured.look = partial(self._look, step)
                found.append(Value("norms", NORMS_TAG, measured if measured.arriving else measured.result()))
        # Other threads may add texts meanwhile.
        texts = [self._texts.popleft() for _ in range(len(self._texts))]
        # Of several values under a tag at a step, only the last would be kept, so the texts become one.
        if texts:
            found.append(Value("text", NONFINITE_TEXT, PARAGRAPH.join(texts)))
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
            # On the host it is known now whether GradScaler leaves out the step.
            if found_inf is not None and found_inf.is_cpu and step.is_skipped():
                measured.is_skipped = True
                return
            held = listed.held_by(step.optimizer)
            places, gradients, refused = [], [], []
            for place in held:
                parameter = listed.parameters[place]
                gradient = parameter.grad
                if gradient is None:
                    continue
                if _has_layout_of(gradient, parameter):
                    places.append(place)
                    gradients.append(_local(gradient))
                else:
                    refused.append(listed.table.names[place])
            measured.norms.has_gradient[held] = False
            measured.norms.has_gradient[places] = True
            self._measure("gradient", places, gradients, measured, scale)
            # On a device that is known later: then the gradients of a step that was left out are taken back.
            if found_inf is not None and not found_inf.is_cpu:
                measured.await_copy(found_inf, partial(measured.forget_if_skipped, places))
            if refused:
                self._failures.count(
                    f"norms: the gradient of {refused[0]!r}"
                    + (f" and {len(refused) - 1} more are" if len(refused) > 1 else " is")
                    + " split over the mesh in another way than the parameter, such as a pending sum "
                    "(Partial), whose norm needs communication; it is left out: call p.grad = "
                    "p.grad.redistribute(placements=p.placements) before optimizer.step()"
                )
            due = listed.turns[self._turn(step.optimizer)]
            before = {place: flat(listed.local(place)) for place in held if listed.table.names[place] in due}
            self._copies = {place: one.to(working_dtype(one), copy=True) for place, one in before.items()}

    def _turn(self, optimizer: Optimizer) -> int:
        """Whose updates are measured: by the number of the step, so that all ranks agree.

        It counts in the steps between two of the optimizer's: else one that steps at every 8th step of the
        run, as the loop accumulates gradients, would always have the same turn.
        """
        step = int(self._params.get("cur_step_num") or 0)
        last, distance = self._stepped.get(optimizer, (0, 1))
        if step > last:
            distance = step - last
            self._stepped[optimizer] = step, distance
        return step // distance % TURNS

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
            self._measure("weight", places, [listed.local(place) for place in places], measured)
            self._measure_updates(listed, measured)

    def _current(self) -> "tuple[_Listed, StepNorms]":
        """The parameters, listed again if they changed, and what is measured in this step."""
        # They are listed once in a step, in which each parameter may have an optimizer of its own.
        if self._measured is not None and self._listed is not None:
            return self._listed, self._measured
        if self._listed is None or not self._listed.is_unchanged():
            before, self._listed = self._listed, _Listed(self._model)
            # An equal table is kept, because its bytes are known.
            if before is not None and before.table == self._listed.table:
                self._listed.table = before.table
            self._nonfinite = {"weight": set(), "gradient": set()}
            for reason in self._listed.left_out:
                self._say(reason)
        self._measured = StepNorms(self._listed.table)
        return self._listed, self._measured

    def _say(self, reason: str) -> None:
        """Say once what is not measured; one rank says it for all."""
        if reason not in self._said and not self._is_quiet:
            logger.warning("norms: %s", reason)
        self._said.add(reason)

    def _measure(
        self,
        kind: str,
        places: Sequence[int],
        tensors: Sequence[Tensor],
        measured: "StepNorms",
        scale: Tensor | None = None,
    ) -> None:
        """Measure tensors: those on the host at once, those on devices when their results arrive."""
        hosts = [index for index, one in enumerate(tensors) if one.is_cpu]
        if hosts:
            sums, counts = host_sums([tensors[index] for index in hosts])
            if scale is not None:
                sums /= float(scale.item()) ** 2
            measured.fill(kind, [places[index] for index in hosts], sums, counts)
        if len(hosts) == len(tensors):
            return
        known = self._nonfinite[kind]
        there = {place: flat(one) for place, one in zip(places, tensors, strict=True) if not one.is_cpu}
        for device, (held, flats) in _by_device(there).items():
            # Whether a sum is finite is only known later, so the elements of those that lately were not are
            # counted; at the first step, the count is 1, which says that there are some.
            counted = [index for index, place in enumerate(held) if place in known]
            packed = device_sums(flats, counted)
            if scale is not None:
                packed[: len(held)] /= scale.to(device, packed.dtype).square()
            measured.await_copy(packed, partial(measured.fill_packed, kind, held, counted, known))

    def _measure_updates(self, listed: "_Listed", measured: "StepNorms") -> None:
        """Measure what the optimizer's step added to the parameters that were copied before it."""
        pairs = {place: (flat(listed.local(place)), copy) for place, copy in self._copies.items()}
        self._copies = {}
        # Without elements, nothing is computed on a device.
        hosts = [place for place, (one, _) in pairs.items() if one.is_cpu or not one.numel()]
        if hosts:
            sums, most = host_changes([pairs[place] for place in hosts])
            measured.fill_updates(hosts, np.concatenate((sums, most)))
        # The differences take the memory of the copies.
        there = {
            place: torch.sub(one, copy, out=copy) for place, (one, copy) in pairs.items() if not one.is_cpu
        }
        for held, flats in _by_device(there).values():
            packed = torch.cat((device_sums(flats, ()), device_largest(flats)))
            measured.await_copy(packed, partial(measured.fill_updates, held))

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
            if self._finite.report(NONFINITE_TAGS[kind], found):
                self._texts.append(found)


class StepNorms:
    """The norms of a step of the run, as far as they are measured; results may be on their way from a device.

    Attributes:
        norms: complete when `arriving` is empty.
        arriving: the results of devices, and what puts them into `norms`.
        look: called once with the complete norms.
        is_weighed: whether weights were measured.
        is_skipped: whether GradScaler leaves out the optimizer's current step.
    """

    def __init__(self, table: ParameterTable) -> None:
        n = len(table.names)
        columns = {name: np.full(n, default, dtype) for name, (dtype, default) in COLUMNS.items()}
        columns["has_gradient"].fill(False)
        self.norms = ParameterNorms(table, **columns)
        self.arriving: list[tuple[Pending, Callable[[Array], None]]] = []
        self.look: Callable[[ParameterNorms], None] | None = None
        self.is_weighed = self.is_skipped = False

    @property
    def nbytes(self) -> int:
        """The bytes of the columns and of the results to come."""
        return self.norms.nbytes + sum(copy.nbytes for copy, _ in self.arriving)

    def result(self) -> ParameterNorms:
        """Wait for the results and return the norms."""
        while self.arriving:
            copy, take = self.arriving.pop(0)
            take(np.asarray(copy.result()))
        look, self.look = self.look, None
        if look is not None:
            look(self.norms)
        return self.norms

    def await_copy(self, results: Tensor, take: Callable[[Array], None]) -> None:
        """Copy results to the host without waiting; `take` gets them when they have arrived."""
        self.arriving.append((FRAMEWORK.snapshot(results), take))

    def fill(self, kind: str, places: Sequence[int], sums: Array, counts: Array) -> None:
        """Enter sums of squares, and how many elements are not finite."""
        getattr(self.norms, f"{kind}_sums")[places] = sums
        getattr(self.norms, f"{kind}_nonfinite")[places] = counts

    def fill_packed(
        self, kind: str, places: list[int], counted: list[int], known: set[int], results: Array
    ) -> None:
        """Enter the sums of `device_sums`, and update `known`, the places that are not finite."""
        sums = results[: len(places)].astype(np.float64)
        counts = (~np.isfinite(sums)).astype(np.int64)
        counts[counted] = results[len(places) :]
        known.difference_update(places)
        known.update(place for place, count in zip(places, counts, strict=True) if count)
        self.fill(kind, places, sums, counts)

    def fill_updates(self, places: Sequence[int], results: Array) -> None:
        """Enter sums of squares, then maxima; NaN means "not measured", so what is not finite is infinite."""
        sums, maxima = np.split(np.where(np.isnan(results), np.inf, results), 2)
        self.norms.update_sums[places] = sums
        # Changes of float64 parameters may exceed the range of float32.
        with np.errstate(over="ignore"):
            self.norms.update_max[places] = maxima

    def forget_if_skipped(self, places: list[int], found_inf: Array) -> None:
        """Take the gradients back if GradScaler found that they are not finite, and left out the step."""
        if float(found_inf.reshape(-1)[0]):
            self.norms.has_gradient[places] = False
            self.norms.gradient_sums[places] = 0
            self.norms.gradient_nonfinite[places] = 0


class _Listed:
    """The parameters of a model: those that share memory once, frozen ones too."""

    def __init__(self, model: nn.Module) -> None:
        self.is_unchanged = FRAMEWORK.watch(model)
        self.left_out: list[str] = []  # why some parameters are not measured
        named = [(name, one) for name, one in unwrap(model).named_parameters() if self._is_known(name, one)]
        # Parameters that share memory are measured under their first name.
        first = {memory(one): name for name, one in reversed(named)}
        named = [(name, one) for name, one in named if first[memory(one)] == name]
        self.parameters: list[Tensor] = [one for _, one in named]
        self.table = ParameterTable(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(one.shape) for one in self.parameters),
            local_sizes=tuple(_local(one).numel() for one in self.parameters),
            starts=tuple(_start(one) for one in self.parameters),
        )
        # The parameters of each turn, an eighth of the elements; by whole sizes, so that all ranks agree.
        sizes = dict(zip(self.table.names, map(math.prod, self.table.shapes), strict=True))
        self.turns = [share(sizes, Group(index=turn, size=TURNS)) for turn in range(TURNS)]
        self._places = {id(one): place for place, one in enumerate(self.parameters)}
        self._held: MutableMapping[Optimizer, tuple[list[int], list[int]]] = WeakIdKeyDictionary()

    def _is_known(self, name: str, parameter: Tensor) -> bool:
        """Whether the parameter has elements to measure; if not, notes why."""
        # A lazy parameter is listed again when it gets its shape.
        if nn.parameter.is_lazy(parameter):
            return False
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

    def held_by(self, optimizer: Optimizer) -> list[int]:
        """The places of the parameters that an optimizer holds."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._held.get(optimizer)
        # An optimizer whose groups still have the same sizes is taken to hold the same parameters.
        if known is not None and known[0] == sizes:
            return known[1]
        ids: Iterable[int] = (id(one) for group in optimizer.param_groups for one in group["params"])
        held = sorted({self._places[key] for key in ids if key in self._places})
        self._held[optimizer] = sizes, held
        return held


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; called without gradients, so that it costs little."""
    if type(tensor) in _PLAIN or not hasattr(tensor, "to_local"):
        return tensor
    local: Tensor = tensor.to_local()
    return local


def _start(parameter: Tensor) -> int:
    """The place of the first element that this rank holds in the whole parameter, row by row."""
    shard = FRAMEWORK.shard(parameter) if _local(parameter).numel() else None
    return 0 if shard is None else int(np.ravel_multi_index(shard.offset, shard.global_shape))


def _cannot_measure(tensor: Tensor) -> str:
    """Why there is no norm of a tensor of another class, such as a quantized one; empty if there is."""
    try:
        torch.linalg.vector_norm(flat(tensor.detach())[:1])
    except Exception as error:
        # The class of the tensor may raise anything.
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
    # Along an axis of one rank, all layouts are the same.
    sizes = gradient.device_mesh.shape
    return len(own) == len(theirs) and all(
        mine == other for mine, other, size in zip(own, theirs, sizes, strict=True) if size > 1
    )


def _by_device(tensors: Mapping[int, Tensor]) -> dict[torch.device, tuple[list[int], list[Tensor]]]:
    """The places and tensors of each device, without those that have no elements."""
    found: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
    for place, one in tensors.items():
        if one.numel():
            places, there = found.setdefault(one.device, ([], []))
            places.append(place)
            there.append(one)
    return found

"""A torch model on loan: engines change its values, and it is restored bit for bit."""

import copy
import gc
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.base.interrupts import uninterrupted
from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch_modules import unwrap
from distsummary.frameworks.torch_private import apply_to_own, compiled_from, is_compiled_in_place, uncompile
from distsummary.landscapes.directions.array_rows import Rows
from distsummary.landscapes.directions.recipe import Weights, check_fit
from distsummary.landscapes.directions.torch_parameters import named_tensors, sharing, tie
from distsummary.landscapes.directions.torch_rows import rows_on, tensor_of
from distsummary.landscapes.model.torch_backends import backends
from distsummary.landscapes.model.torch_memory import gpus_of, in_dtype, spread, to_device
from distsummary.landscapes.model.torch_saved import SavedValues, can_stay
from distsummary.landscapes.model.user_code import BatchLoss

DROPOUT_SEED = 0
RELEASED = 16  # blocks after which `write` releases the memory that reading saved values took
_NOTHING = np.empty(0)


class Loan:
    """A model that an engine borrows; `give_back` ends the loan.

    During the loan, parameters and buffers use new memory, so that no value in the user's memory is
    overwritten, and parameters that share memory become one object. With `in_place`, parameters keep their
    memory if `can_stay` allows it, and their values are saved. `give_back` restores memory, the modules'
    attributes, the number of threads, the random number generators and the settings of GPU libraries.

    Args:
        names: the parameters that the engine varies; raises InvalidValueError for unknown names.
        training: True puts the whole model into training mode, as MindSpore does; False into eval mode.
        dtype: the dtype of floating point values during the loan; None: unchanged.
        tf32: whether a GPU may round products to TF32.
        in_place: whether values are written to the user's own memory, which takes hardly any extra memory.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        device: str | None = None,
        training: bool = False,
        dtype: torch.dtype | None = None,
        tf32: bool = False,
        in_place: bool = False,
    ) -> None:
        inner = unwrap(model)
        self.model = inner if device is None else inner.to(device)
        self._restore = ExitStack()
        try:
            # Each change from here on is registered with `_restore` before it is made, so that `give_back`
            # can undo it even if a later step raises.
            self._restore.enter_context(preserved(self.model))
            run_as_written(self.model)
            tie(self.model)
            self.tensors = named_tensors(self.model)
            check_fit("the plane", dict.fromkeys(names, _NOTHING), dict.fromkeys(self.tensors, _NOTHING))
            self.moved = {name: self.tensors[name] for name in names}
            for name, tensor in self.moved.items():
                if not tensor.is_floating_point():
                    raise InvalidTypeError(
                        f"only floating-point parameters can be varied, but {name} is {tensor.dtype}"
                    )
            self.device = next((t.device for t in self.tensors.values()), torch.device("cpu"))
            self._gpus = gpus_of(self.tensors.values())
            if self._gpus:
                self._restore.enter_context(backends(tf32=tf32))
                # During the loan the weights of a recurrent net are not contiguous, and cuDNN warns about it.
                self._restore.enter_context(warnings.catch_warnings())
                warnings.filterwarnings(
                    "ignore", "RNN module weights are not part of single contiguous chunk"
                )
            # One thread gives the same bits in every process.
            if self.device.type == "cpu":
                self._restore.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            for module in self.model.modules():
                self._restore.callback(setattr, module, "training", module.training)
            self.model.train(training)
            # Engines seed these generators at every point; the user's own numbers continue afterwards.
            self._restore.enter_context(torch.random.fork_rng(devices=self._gpus))
            # Each tensor is handled once, under its first name. The parameters that stay in place are saved;
            # all other tensors get new memory, so that theirs is not overwritten.
            once: dict[int, tuple[str, Tensor]] = {}
            for name, tensor in self.tensors.items():
                once.setdefault(id(tensor), (name, tensor))
            staying = can_stay(dict(once.values()), dtype) if in_place else set()
            self.saved = SavedValues(tensor for name, tensor in once.values() if name in staying)
            self._restore.callback(self.saved.restore)
            for name, tensor in once.values():
                if name not in staying:
                    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
                    self._restore.callback(setattr, tensor, "data", tensor.data)
                    tensor.data = tensor.data.to(kind, copy=True)
        except BaseException:
            self.give_back()
            raise

    def place(self, state: Weights) -> None:
        """Write `state` into the tensors of the same names; raises InvalidValueError for a wrong shape."""
        for name, tensor in self.tensors.items():
            if name not in state:
                continue
            rows = rows_on(tensor.device, state, name)
            if rows.shape != tensor.shape and not math.prod(rows.shape) == tensor.numel() == 1:
                raise InvalidValueError(
                    f"the checkpoint has {name} of shape {tuple(rows.shape)}, the model of shape "
                    f"{tuple(tensor.shape)}; give the model that made the checkpoints"
                )
            self.write(tensor, rows, state=state, name=name)

    def write(
        self,
        tensor: Tensor,
        rows: Rows,
        steps: Sequence[tuple[float, Rows]] = (),
        *,
        state: Weights,
        name: str,
    ) -> None:
        """Write to a tensor, block by block: `rows` + length * along for each (length, along) in `steps`.

        `rows` are the values of `name` in `state`. Sums are computed as in `Flat`: in float32 (float64 for
        float64 tensors); a tensor in half precision gets the sum rounded once.
        """
        target = tensor.data if tensor.dim() else tensor.data[None]
        for number, (start, stop) in enumerate(rows.blocks()):
            total = tensor_of(rows(start, stop)).to(target.device)
            if steps:
                total = total.to(torch.float64 if target.dtype == torch.float64 else torch.float32)
            for length, along in steps:
                total = torch.add(total, tensor_of(along(start, stop)).to(total), alpha=length)
            target[start:stop] = total
            if number % RELEASED == 0:
                self.release(state, name)
        self.release(state, name)

    def release(self, state: Weights, name: str) -> None:
        """Release the memory that reading values from a file took."""
        self.saved.release()
        if isinstance(state, StoredState):
            state.release(name)

    def seed(self) -> None:
        """Seed the generators of the host and of the model's GPUs, and no others, with the same value.

        Engines call it at every point, in every worker.
        """
        torch.default_generator.manual_seed(DROPOUT_SEED)
        for gpu in self._gpus:
            torch.cuda.default_generators[gpu.index].manual_seed(DROPOUT_SEED)

    def give_back(self) -> None:
        """Restore the model; a second call does nothing. Ctrl-C takes effect after the model is restored."""
        with uninterrupted():
            self._restore.close()


class Attributes:
    """A snapshot of the modules' attributes, with the contents of those that are lists, dicts or sets.

    Code that runs a model may leave data in it: counts, caches, the last activations.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = (list, dict, set, OrderedDict)
        self._saved = [
            (
                vars(part),
                dict(vars(part)),
                [(v, copy.copy(v)) for v in vars(part).values() if type(v) in kinds],
            )
            for part in model.modules()
        ]

    def restore(self) -> None:
        """Restore the attributes and contents of the snapshot."""
        for attributes, before, containers in self._saved:
            attributes.clear()
            attributes.update(before)
            for container, held in containers:
                container.clear()
                container.extend(held) if isinstance(container, list) else container.update(held)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of the model's modules when the block ends."""
    attributes = Attributes(model)
    try:
        yield
    finally:
        attributes.restore()


def held_modules(model: nn.Module, *functions: object) -> list[nn.Module]:
    """The modules, except the model's own, that functions hold or refer to as globals."""
    own = {id(part) for part in model.modules()}
    found, waiting = [], [*functions]
    # The objects are kept, so that their ids stay theirs.
    seen: dict[int, object] = {}
    while waiting:
        value = waiting.pop()
        if id(value) in seen or id(value) in own or isinstance(value, type | ModuleType):
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module):
            found.append(value)
        if isinstance(value, FunctionType):
            # Of its globals only the modules that it names.
            names, held = _names(value.__code__), value.__globals__
            waiting += [held[name] for name in names if isinstance(held.get(name), nn.Module)]
            seen[id(held)] = held
        if callable(value) or isinstance(value, dict | list | tuple | CellType | BatchLoss):
            waiting += gc.get_referents(value)
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in the code of a function and its inner functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@contextmanager
def at_rest(model: nn.Module, *functions: object) -> Iterator[None]:
    """Put the modules that a loss function or metrics hold into eval mode during the block.

    Afterwards their modes, buffers and attributes are restored bit for bit. Some modules write to buffers
    even in eval mode, so the modules get copies of their buffers.
    """
    with ExitStack() as restore:
        for module in held_modules(model, *functions):
            restore.enter_context(preserved(module))
            for part in module.modules():
                restore.callback(setattr, part, "training", part.training)
            for buffer in module.buffers():
                restore.callback(setattr, buffer, "data", buffer.data)
                buffer.data = buffer.data.clone()
            module.eval()
        yield


def placed(
    function: Any, model: nn.Module, device: torch.device | str, dtype: torch.dtype | None = None
) -> Any:
    """A loss function or metric with its tensors, such as the weights of classes, on the device.

    If any of its tensors must move, a copy is returned, and the user's own function stays as it is. Tensors
    in modules and in the arguments of partials are found. Tensors and modules of the model that the function
    holds are not copied. `dtype` is the new dtype of floating-point tensors. If the model lies on several
    devices, the function's tensors stay in place.
    """
    at = None if spread(model) else device

    def moved(held: Any) -> Any:
        if at is not None:
            return to_device(held, at, dtype)
        return held if dtype is None else in_dtype(held, dtype)

    if isinstance(function, BatchLoss):
        return BatchLoss(placed(function.function, model, device, dtype))
    if isinstance(function, partial):
        inner = placed(function.func, model, device, dtype)
        return partial(inner, *moved(function.args), **moved(function.keywords))
    if not isinstance(function, nn.Module):
        return function
    shared = {id(part): part for part in (*model.modules(), *model.parameters(), *model.buffers())}
    own = [t for t in (*function.parameters(), *function.buffers()) if id(t) not in shared]
    if all(moved(tensor) is tensor for tensor in own):
        return function
    # With this memo, deepcopy does not copy a model that the function holds.
    other = copy.deepcopy(function, dict(shared))
    for part in other.modules():
        if id(part) not in shared:
            apply_to_own(part, moved)
    return other


def run_as_written(model: nn.Module) -> None:
    """Make modules compiled by `module.compile()` or torch.compile run their original code.

    `unwrap` does the same for a whole model. Compiled code may read parameters from the memory that they had
    when it was compiled. Torch would also compile it again for eval mode, and it has no second derivatives.
    """
    for module in model.modules():
        if is_compiled_in_place(module):
            uncompile(module)
        if (inner := compiled_from(module)) is not None:
            module.forward = inner.__call__


def portable(model: nn.Module, batches: Any) -> tuple[nn.Module, Any]:
    """Model and batches that any process can unpickle: copies on the host if they are on another device.

    Parameters that share memory become one object in a copy, because pickle preserves shared objects but not
    shared memory. A model over several GPUs stays on them: each worker has the same number of GPUs.
    """
    model = unwrap(model)
    tensors = named_tensors(model).values()
    goes_home = any(tensor.device.type != "cpu" for tensor in tensors) and not spread(model)
    if goes_home or any(sharing(model)):
        with preserved(model):
            tie(model)
            copies: dict[int, Tensor] = {}
            # One tensor is copied at a time, since the model's device may have no room for a second model.
            # With these copies as memo, deepcopy copies no tensor on the device.
            if goes_home:
                for tensor in named_tensors(model).values():
                    host = tensor.detach().to("cpu", copy=True)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    copies[id(tensor)] = nn.Parameter(host, tensor.requires_grad) if is_parameter else host
            model = copy.deepcopy(model, copies)

    def on_host(source: Any) -> Any:
        """A list of batches, copied to the host; a loader is returned as it is."""
        return [to_device(batch, "cpu") for batch in source] if isinstance(source, list | tuple) else source

    if isinstance(batches, Mapping):
        return model, {name: on_host(source) for name, source in batches.items()}
    return model, on_host(batches)

"""A torch model on loan: its tensors look at memory of ours, and come back bit for bit."""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch import compiled_from
from distsummary.landscape.directions.recipe import Array, RandomDirections, Recipe, Weights, check_fit
from distsummary.landscape.directions.torch_parameters import named_tensors, sharing, tie, unwrap
from distsummary.landscape.directions.torch_rows import draws, rows_on, whole
from distsummary.landscape.engines.batches import mapped
from distsummary.landscape.engines.data import batch_bytes
from distsummary.landscape.engines.hardware import processor
from distsummary.landscape.engines.torch_backends import backends

ALIGNMENT_BYTES = 64  # as the allocator's own tensors: kernels choose their path by it
DROPOUT_SEED = 0
DEVICE_SHARE = 0.5  # of a GPU's memory, that batches may take; the rest is the model's and its activations'
# What torch says where it was not its own allocator that was refused memory: on a CPU; CUDA; its libraries.
FULL = "can't allocate memory", "CUDA error: out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"
_NOTHING = np.empty(0)

# Of tensors by their first names, and of what values of floating point become: what each looks at instead.
Memory: TypeAlias = Callable[[Mapping[str, Tensor], torch.dtype | None], Iterable[Tensor]]


def copies(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> Iterator[Tensor]:
    """Memory of its own for each tensor, with its values."""
    return (tensor.data.to(loan_dtype(tensor, dtype), copy=True) for tensor in tensors.values())


def loan_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """What a tensor is while it is on loan, if values of floating point become `dtype` (None: nothing)."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


class Loan:
    """The model between taking over and giving back.

    While it lasts no value of the user's tensors is written to: every parameter and buffer has other memory,
    and parameters that share memory are one.
    `give_back` restores memory, the modules' attributes, the number of threads, the generators of random
    numbers and what libraries for GPUs may do.

    Args:
        names: the parameters that move; raises InvalidValueError for unknown ones.
        training: MindSpore's way: the whole model in training mode. False: evaluation mode.
        threads: on the CPU.
        dtype: what values of floating point become while the loan lasts; None: what they are.
        tf32: whether a GPU may round products to TF32.
        memory: what the tensors look at while the loan lasts.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        device: str | None = None,
        training: bool = False,
        threads: int = 1,
        dtype: torch.dtype | None = None,
        tf32: bool = False,
        memory: Memory = copies,
    ) -> None:
        inner = unwrap(model)
        self.model = inner if device is None else inner.to(device)
        self._restore = ExitStack()
        try:
            self._restore.enter_context(preserved(self.model))
            run_as_written(self.model)
            tie(self.model)
            self.tensors = named_tensors(self.model)
            check_fit("the plane", dict.fromkeys(names, _NOTHING), dict.fromkeys(self.tensors, _NOTHING))
            self.moved = {name: self.tensors[name] for name in names}
            self.device = next((t.device for t in self.tensors.values()), torch.device("cpu"))
            if self.device.type == "cuda":
                self._restore.enter_context(backends(tf32=tf32))
                self._restore.enter_context(_without_advice())
            self._take(training, threads, memory, dtype)
        except BaseException:
            self.give_back()
            raise

    def _take(self, training: bool, threads: int, memory: Memory, dtype: torch.dtype | None) -> None:
        for module in self.model.modules():
            self._restore.callback(setattr, module, "training", module.training)
        self.model.train(training)
        if self.device.type == "cpu":  # the same bits in every process
            self._restore.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        self._gpus = gpus_of(self.tensors.values())
        self._restore.enter_context(torch.random.fork_rng(devices=self._gpus))
        once: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self.tensors.items():
            once.setdefault(id(tensor), (name, tensor))
        tensors = dict(once.values())
        for tensor, other in zip(tensors.values(), memory(tensors, dtype), strict=True):
            self._restore.callback(setattr, tensor, "data", tensor.data)
            tensor.data = other
        refuse_unmovable(self.moved)

    def place(self, state: Weights) -> None:
        """Write whole values by name; raises InvalidValueError for one of another shape."""
        for name, tensor in self.tensors.items():
            if name not in state:
                continue
            values = as_tensor(state[name])
            if values.shape != tensor.shape and not values.numel() == tensor.numel() == 1:
                raise InvalidValueError(
                    f"the checkpoint has {name} of shape {tuple(values.shape)}, the model "
                    f"{tuple(tensor.shape)}; give the model that made the checkpoints"
                )
            tensor.copy_(values.reshape(tensor.shape))

    def seed(self) -> None:
        """The same random numbers at every point and in every worker."""
        seed(self._gpus)

    def give_back(self) -> None:
        """The model as it was; a second call does nothing."""
        self._restore.close()


@contextmanager
def _without_advice() -> Iterator[None]:
    """cuDNN warns that the weights of a recurrent net are not in memory of its own: they are in ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        yield


def gpus_of(tensors: Iterable[Tensor]) -> list[torch.device]:
    """The GPUs that tensors lie on, in order."""
    return sorted({t.device for t in tensors if t.device.type == "cuda"}, key=str)


def seed(gpus: Sequence[torch.device]) -> None:
    """Let the host and these GPUs, and no others, draw the same random numbers from now on."""
    torch.default_generator.manual_seed(DROPOUT_SEED)
    for gpu in gpus:
        torch.cuda.default_generators[gpu.index].manual_seed(DROPOUT_SEED)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """The modules' attributes, and what lists, dicts and sets among them hold, are afterwards what they were.

    Code that runs a model may leave things in it: counts, caches, the last activations.
    """
    saved = [
        (vars(module), dict(vars(module)), [(v, copy.copy(v)) for v in vars(module).values() if _holds(v)])
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for attributes, before, containers in saved:
            attributes.clear()
            attributes.update(before)
            for container, held in containers:
                container.clear()
                container.extend(held) if isinstance(container, list) else container.update(held)


def _holds(value: Any) -> bool:
    return type(value) in (list, dict, set, OrderedDict)


def run_as_written(model: nn.Module) -> None:
    """Let modules that were compiled (`module.compile()`, or a part by torch.compile) run their own code.

    As a model in torch.compile does, see `unwrap`: compiled code reads parameters behind torch's back, is
    compiled anew for a mode it has not met, and has no second derivatives.
    """
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None:
            module._compiled_call_impl = None
        if (inner := compiled_from(module)) is not None:
            module.forward = inner.__call__


class Flat:
    """Tensors of one dtype and device as one vector, so that a move is one operation.

    Sums are made in float32, in float64 for float64; half precision is rounded once, at the point. Each view
    has the strides of its tensor, without holes and overlaps; the tensors may be outlines on "meta".
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        first = next(iter(tensors.values()))
        step = max(1, ALIGNMENT_BYTES // first.element_size())
        self._views: dict[str, tuple[int, torch.Size, tuple[int, ...]]] = {}
        end = 0
        for name, tensor in tensors.items():
            self._views[name] = (end, tensor.shape, dense_strides(tensor))
            end += -(-tensor.numel() // step) * step
        kind = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._base, self._x, self._y, self._row = torch.zeros((4, end), dtype=kind, device=device)
        self._point = torch.zeros(end, dtype=first.dtype, device=device)
        self._sum = self._point if first.dtype == kind else torch.zeros_like(self._row)
        self._at = 0.0

    def points(self) -> Iterator[tuple[str, Tensor]]:
        """By name what the point's values are read from."""
        return ((name, self._view(self._point, name)) for name in self._views)

    @property
    def nbytes(self) -> int:
        """Of the values at a point."""
        return self._point.nbytes

    def _view(self, flat: Tensor, name: str) -> Tensor:
        start, shape, strides = self._views[name]
        return flat.as_strided(shape, strides, flat.storage_offset() + start)

    def set_plane(
        self, centre: Mapping[str, Tensor], x: Mapping[str, Tensor], y: Mapping[str, Tensor]
    ) -> None:
        """Take the values at the centre and along the directions."""
        for flat, values in ((self._base, centre), (self._x, x), (self._y, y)):
            for name in self._views:
                self._view(flat, name).copy_(values[name])

    def set_row(self, y: float) -> None:
        """Once a row."""
        torch.add(self._base, self._y, alpha=y, out=self._row)

    def load(self, xs: Sequence[float]) -> None:
        """Say where the next point is."""
        self._at = xs[0]

    def move(self) -> None:
        """Go there."""
        torch.add(self._row, self._x, alpha=self._at, out=self._sum)
        if self._sum is not self._point:
            self._point.copy_(self._sum)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides without holes or overlaps in the order of the tensor's: kernels choose their results' by it."""
    return tuple(torch.empty_like(tensor, device="meta").stride())


def plane_tensors(
    centre: Weights, recipe: Recipe, moved: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Centre and directions of these parameters, as tensors: on the host, or where they were drawn."""
    here = {name: as_tensor(centre[name]) for name in moved}
    if isinstance(recipe, RandomDirections) and any(draws(tensor.device) for tensor in moved.values()):
        x, y = ({n: _drawn(recipe, axis, n, centre, t.device) for n, t in moved.items()} for axis in (0, 1))
    else:
        made = recipe.make(centre)
        x, y = ({name: as_tensor(axis[name]) for name in moved} for axis in (made.x, made.y))
    return here, x, y


def _drawn(recipe: Recipe, axis: int, name: str, centre: Weights, device: torch.device) -> Tensor:
    return whole(recipe.rows(axis, name, rows_on(device, centre, name)), device)


def refuse_unmovable(tensors: Mapping[str, Tensor]) -> None:
    """Raise InvalidTypeError for a parameter that is not of floating point."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InvalidTypeError(f"only floating point parameters can move, {name} is {tensor.dtype}")


def as_tensor(array: Array) -> Tensor:
    """A copy: arrays out of Ray's store are read-only."""
    return torch.tensor(np.asarray(array))


def to_device(batch: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Any:
    """The batch with its tensors (also in lists, tuples, mappings and dataclasses) on the device.

    What has a method `to` is moved by that, as a copy; other objects stay as they are. `dtype`: what tensors
    of floating point become; not those in objects.
    """
    there = mapped(batch, partial(_there, device=device), is_leaf=_moves_itself)
    return there if dtype is None else in_dtype(there, dtype)


def _there(part: Any, device: torch.device | str) -> Any:
    if isinstance(part, Tensor):
        return part.to(device)
    return copy.copy(part).to(device) if _moves_itself(part) else part  # many write to themselves


def _moves_itself(part: Any) -> bool:
    """Whether its class has a method `to`, as those of PyG, DGL and transformers and packed sequences do."""
    return callable(getattr(type(part), "to", None)) and not isinstance(part, type)


def in_dtype(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its tensors of floating point in another dtype; those in objects as they are."""

    def changed(part: Any) -> Any:
        return part.to(dtype) if isinstance(part, Tensor) and part.is_floating_point() else part

    return mapped(batch, changed)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """A tensor where a GPU fetches it by itself, so that nobody waits; for other devices as it is."""
    return host.pin_memory() if device.type == "cuda" else host


def spread(model: nn.Module) -> list[int]:
    """The numbers of the GPUs that a model lies on, where they are several; else none."""
    gpus = gpus_of(named_tensors(unwrap(model)).values())
    return sorted(gpu.index for gpu in gpus) if len(gpus) > 1 else []


def portable(model: nn.Module, batches: Any) -> tuple[nn.Module, Any]:
    """Model and batches that any process can unpickle: copies on the host if they are elsewhere.

    Parameters that share memory become one object in a copy: pickles keep what is one object, not what is
    one memory. A model over several GPUs goes as it lies, to a process that has as many.
    """
    model = unwrap(model)
    is_elsewhere = any(tensor.device.type != "cpu" for tensor in named_tensors(model).values())
    goes_home = is_elsewhere and not spread(model)
    if goes_home or any(sharing(model)):
        with preserved(model):
            tie(model)
            model = copy.deepcopy(model, _home(model) if goes_home else {})
    if isinstance(batches, Mapping):
        return model, {name: _on_host(source) for name, source in batches.items()}
    return model, _on_host(batches)


def _home(model: nn.Module) -> dict[int, Tensor]:
    """Copies on the host, by what they are copies of: where a model is there may be no room for another."""
    found = named_tensors(model).values()
    host = {id(tensor): tensor.detach().to("cpu", copy=True) for tensor in found}
    trained = {
        id(t): nn.Parameter(host[id(t)], t.requires_grad) for t in found if isinstance(t, nn.Parameter)
    }
    return host | trained


def _on_host(batches: Any) -> Any:
    """Lists of batches; a loader is sent as it is."""
    return [to_device(batch, "cpu") for batch in batches] if isinstance(batches, list | tuple) else batches


def is_full(error: BaseException) -> bool:
    """Whether an error says that memory was too small, in torch's ways and Python's."""
    is_one = isinstance(error, torch.cuda.OutOfMemoryError | MemoryError)
    return is_one or any(sign in str(error) for sign in FULL)


def hardware(device: torch.device) -> str:
    """The processor and the torch that compute there: results are the same bits where this is the same."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
    return f"{name}, torch {torch.__version__}"


def exceeds_device(batches: Iterable[Any], device: torch.device) -> bool:
    """Whether batches take more than their share of a device that has memory of its own."""
    room = device_bytes(device)
    return room is not None and sum(map(batch_bytes, batches)) > DEVICE_SHARE * room


def device_bytes(device: torch.device) -> int | None:
    """The memory of a GPU that this process may take; None for the CPU, which has the host's."""
    if device.type != "cuda":
        return None
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # torch 2.6 does not tell
    return int(torch.cuda.get_device_properties(device).total_memory * share(device))


def worker_device(model: nn.Module, gpus: float) -> str | None:
    """Where a worker that was given so many GPUs puts the model; None: a model over several stays.

    One that was given a share of a GPU keeps to that share of its memory: the rest is a training's or other
    workers', who would run out of it.
    """
    if spread(model):
        return None
    if not gpus or not torch.cuda.is_available():
        return "cpu"
    if gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    return "cuda"

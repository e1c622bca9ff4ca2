"""Private names of torch, each with what happens in a version that has none or another."""

import contextlib
import functools
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from distsummary.base.private import private

V = TypeVar("V")

# --- compiled code ------------------------------------------------------------------------------------------


def compiled_from(module: nn.Module) -> nn.Module | None:
    """The module from which torch.compile made this one; None for any other module.

    In a version in which its class has another name, it counts as a plain module.
    """
    # The class is checked too, since a user's own child module may be called _orig_mod. The check compares
    # the name of the class, since importing torch._dynamo takes a second.
    kinds = {(kind.__module__.partition("._dynamo")[0], kind.__name__) for kind in type(module).__mro__}
    return dict(module.named_children()).get("_orig_mod") if ("torch", "OptimizedModule") in kinds else None


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` has compiled it; False in a version that keeps that elsewhere."""
    return getattr(module, "_compiled_call_impl", None) is not None


def uncompile(module: nn.Module) -> None:
    """Undo `module.compile()`."""
    module._compiled_call_impl = None


def join_of(module: nn.Module) -> object:
    """The `DDP.join` that a module is in, or was in last: another object each time.

    None for a module without it, and in a version that keeps it elsewhere.
    """
    return getattr(module, "_join_config", None)


@private("torch._dynamo's InstructionTranslator", "", lambda: True)
def is_fullgraph() -> bool:
    """Whether torch.compile traces with fullgraph=True, so that a call that it cannot trace is an error.

    In a version that does not show it: rather record nothing than stop the training.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return bool(InstructionTranslator.current_tx().one_graph)


@private("torch._C._dynamo.eval_frame", "steps inside of compiled functions may be recorded", lambda: False)
def is_in_compiled() -> bool:
    """Whether this thread runs what torch.compile has left out of the graph of a compiled function."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


@private(
    "torch._guards.CompileContext",
    "an operator that records one name several times in a compiled model is not named",
    lambda: None,
)
def compilation() -> tuple[str, int] | None:
    """The id of the current compilation of torch.compile, and how often it has begun; None: there is none."""
    context = torch._guards.CompileContext.try_get()
    return None if context is None else (str(context.compile_id), context.attempt)


@private(
    "torch._guards.TracingContext",
    "operators on constants of a compiled model record them once too often",
    lambda: False,
)
def is_traced_now() -> bool:
    """Whether torch.compile calls operators only to trace them."""
    return torch._guards.TracingContext.try_get() is not None


@private("torch._higher_order_ops.effects", "", lambda name: False)
def keep_in_order(name: str) -> bool:
    """Have compiled code keep an operator that returns nothing, in its order; returns whether it does."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    space, _, short = name.partition("::")
    # torch 2.8 takes the operator alone, later versions its name too.
    _register_effectful_op(getattr(getattr(torch.ops, space), short).default, _EffectType.ORDERED)
    return True


def keeps_backward() -> bool:
    """Whether a backward pass may have such an operator: torch 2.10 fails to compile it."""
    return torch.__version__.split(".")[:2] != ["2", "10"]


def no_watch() -> None:
    """What `watch_compilations` returns if there is nothing to end."""


@private(
    "torch._dynamo.callback_handler",
    "torch.compile compiles again what it compiles while a graph is observed",
    lambda begin, end: no_watch,
)
def watch_compilations(begin: Callable[..., None], end: Callable[..., None]) -> Callable[[], None]:
    """Call these when a compilation begins and ends; returns what ends that. torch._dynamo is imported."""
    handler = sys.modules["torch._dynamo"].callback_handler
    handler.register_start_callback(begin)
    handler.register_end_callback(end)

    def stop() -> None:
        # torch._dynamo.reset() may have removed them already.
        with contextlib.suppress(ValueError, AttributeError):
            handler.remove_start_callback(begin)
            handler.remove_end_callback(end)

    return stop


@contextlib.contextmanager
def one_compile_thread() -> Iterator[None]:
    """Compile with one thread: with more, inductor leaves a pool of processes behind.

    Inductor reads the number before the `options=` of torch.compile. Raises in a version without it.
    """
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


@private("torch.jit._recursive.create_script_module", "", lambda is_ours: None)
def hide_from_script(is_ours: Callable[[Any], bool]) -> None:
    """Hide hooks from torch.jit.script, which otherwise raises for a model that has some."""
    recursive: Any = torch.jit._recursive
    create = recursive.create_script_module

    @functools.wraps(create)
    def created(nn_module: Any, *args: Any, **named: Any) -> Any:
        hooks = [of for part in nn_module.modules() for of in (part._forward_pre_hooks, part._forward_hooks)]
        held = [(of, dict(of)) for of in hooks if any(map(is_ours, of.values()))]
        try:
            for of, before in held:
                for key in [key for key, hook in before.items() if is_ours(hook)]:
                    del of[key]
            return create(nn_module, *args, **named)
        finally:
            for of, before in held:
                of.clear()
                of.update(before)

    recursive.create_script_module = created


# --- autograd -----------------------------------------------------------------------------------------------


@private(
    "torch._C._current_graph_task_id",
    "operators in a checkpointed pass record again when it is computed again",
    lambda: False,
)
def is_in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1


@private("torch._C._are_functorch_transforms_active", "THOR takes vmap and jvp for steps", lambda: False)
def is_transformed() -> bool:
    """Whether this is computed within vmap, jvp or another function of torch.func."""
    return torch._C._are_functorch_transforms_active()


@private(
    "grad_fn._sequence_nr",
    "a graph has no edges through what is computed between modules",
    lambda function: None,
)
def sequence_number(function: Any) -> int | None:
    """The number of one of autograd's nodes; None in a version without them."""
    return int(function._sequence_nr())


@contextlib.contextmanager
def no_vmap_advice() -> Iterator[None]:
    """Keep vmap from printing a warning for each operation without a batching rule, such as an LSTM.

    Such an operation is recorded point by point; if that is slow, timing prefers another engine. The warning
    comes from C++, where Python's filters have no effect. Without the private function that switches it off,
    it is printed. Whether it was on before cannot be found out, so it is on afterwards, as by default.
    """
    functorch: Any = getattr(torch._C, "_functorch", None)
    switch = getattr(functorch, "_set_vmap_fallback_warning_enabled", lambda is_enabled: None)
    switch(False)
    try:
        yield
    finally:
        switch(True)


# --- modules, optimizers and tensors ------------------------------------------------------------------------


def transient_buffers(module: nn.Module) -> set[str]:
    """The names of a module's own buffers that are not part of its state; else empty."""
    return set(getattr(module, "_non_persistent_buffers_set", ()))


@private("nn.Module._save_to_state_dict", "extra state of modules is not saved", lambda module: {})
def state_of_module(module: nn.Module) -> dict[str, Any]:
    """The part of state_dict() that is of this module alone."""
    state: dict[str, Any] = {}
    module._save_to_state_dict(state, "", False)
    return state


def load_into_module(module: nn.Module, state: Mapping[str, Any]) -> list[str]:
    """Give a module alone a state that is whole; returns what it does not take."""
    errors: list[str] = []
    version = {"version": getattr(module, "_version", None)}
    with torch.no_grad():
        module._load_from_state_dict(dict(state), "", version, False, [], [], errors)
    return errors


@private("nn.Module._modules", "", lambda model: [])
def own_dicts(model: nn.Module) -> list[dict[str, Any]]:
    """The dicts of the children and parameters of each module in a model; none in a version without them.

    Those of a ScriptModule are no dicts, and its model has none.
    """
    found: list[Any] = [of for module in model.modules() for of in (module._modules, module._parameters)]
    return found if all(isinstance(of, dict) for of in found) else []


def _apply_by_name(part: nn.Module, moved: Callable[[Tensor], Tensor]) -> None:
    for name, parameter in [*part.named_parameters(recurse=False)]:
        setattr(part, name, nn.Parameter(moved(parameter.detach()), parameter.requires_grad))
    for name, buffer in [*part.named_buffers(recurse=False)]:
        setattr(part, name, moved(buffer))


@private("nn.Module._apply", "", _apply_by_name)
def apply_to_own(part: nn.Module, moved: Callable[[Tensor], Tensor]) -> None:
    """Replace a module's own tensors, as Module.to does."""
    part._apply(moved, recurse=False)  # type: ignore[no-untyped-call]


_numbers = itertools.count()


@private("Tensor._version", "", lambda tensor: next(_numbers))
def writes_to(tensor: Tensor) -> int:
    """How often the tensor was written to; otherwise a new number for each call, as if it were each time.

    Of an inference tensor torch does not count that.
    """
    return next(_numbers) if tensor.is_inference() else tensor._version


BATCH_NORMS: Any = getattr(
    nn.modules.batchnorm, "_BatchNorm", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
)


def set_stepped(optimizer: Optimizer) -> None:
    """Note that the optimizer has made a step; a scheduler warns otherwise, or does not look any more."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # private


@private(
    "DataLoader's _BaseDataLoaderIter", "the time of waiting for data counts as other time", lambda: None
)
def loader_iterator() -> Any:
    """The class whose `__next__` the iterator of every DataLoader has."""
    return torch.utils.data.dataloader._BaseDataLoaderIter


def flattened(group: Sequence[Tensor]) -> Tensor:
    """Tensors of one dtype, one behind the other, in one new tensor."""
    flatten = getattr(getattr(torch._C, "_nn", None), "flatten_dense_tensors", None)
    return torch.cat([one.reshape(-1) for one in group]) if flatten is None else flatten(group)


def norms_of(tensors: Sequence[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The norm of each tensor, without a dimension."""
    together = getattr(torch, "_foreach_norm", None)
    if together is None:
        return [torch.linalg.vector_norm(one, order, dtype=dtype) for one in tensors]
    return [*together(list(tensors), order, dtype=dtype)]


def for_each(name: str, tensors: Sequence[Tensor], other: Any, **options: Any) -> list[Tensor]:
    """What a method such as "add_" returns for each tensor, called with its own of `other` or one number."""
    if (together := getattr(torch, f"_foreach_{name}", None)) is not None:
        return [*(together(tensors, other, **options) or tensors)]
    others = other if isinstance(other, Sequence) else [other] * len(tensors)
    return [getattr(one, name)(by, **options) for one, by in zip(tensors, others, strict=True)]


@private(
    "torch.distributed.tensor._utils", "", lambda tensor: tuple(tensor.__create_chunk_list__()[0].offsets)
)
def offset_of(tensor: Any) -> tuple[int, ...]:
    """Where this rank's part of a DTensor begins in the whole; empty if it has none.

    Otherwise the method gives it that torch's distributed checkpoints use; its imports take long.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = tuple(tensor.shape)
    return tuple(compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements)[1])


def private_operators(values: Mapping[str, V]) -> dict[Any, V]:
    """The operators `torch.ops.aten.NAME.default` that this version has, each with the value of its name."""
    aten = torch.ops.aten
    return {getattr(aten, name).default: value for name, value in values.items() if hasattr(aten, name)}


def is_mutable(operator: Any) -> bool:
    """Whether an operator writes to one of its arguments; by its name in a version that shows no schema."""
    schema = getattr(operator, "_schema", None)
    if schema is not None:
        return bool(schema.is_mutable)
    name, _, overload = operator.name().partition(".")
    return name.endswith("_") or "out" in overload


class _NoMode:
    """Takes the place of TorchDispatchMode in a version without it; what observes operations then fails."""

    def __enter__(self) -> None:
        raise NotImplementedError("this torch has no torch.utils._python_dispatch.TorchDispatchMode")


def _dispatch_mode() -> Any:
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return _NoMode
    return TorchDispatchMode


DISPATCH_MODE: Any = _dispatch_mode()

# --- torch.distributed --------------------------------------------------------------------------------------


class WaitCalls(NamedTuple):
    """What waits for other ranks, and the engine of backward passes."""

    classes: tuple[type, ...]  # with a method `wait`
    engine: tuple[Any, str]
    functions: tuple[tuple[Any, str], ...]


def wait_calls() -> WaitCalls:
    """The calls in which a thread waits for other ranks; raises in a version that lacks one of them."""
    wait_tensor = torch.ops._c10d_functional.wait_tensor
    return WaitCalls(
        (distributed.Work, torch._C.Future),
        (torch.autograd.Variable, "_execution_engine"),
        (
            (distributed, "_broadcast_coalesced"),  # called by DDP
            (wait_tensor, "_op"),
            (wait_tensor.default, "_op"),  # called by compiled code
        ),
    )


_UNSEEN = "what a stuck rank waits for is not seen"


@private("torch.distributed.distributed_c10d._world", _UNSEEN, dict)
def process_groups() -> dict[str, tuple[int, ...]]:
    """The name and the ranks of each process group of this process."""
    world = distributed.distributed_c10d._world
    return {str(world.pg_names[group]): tuple(sorted(ranks)) for group, ranks in world.pg_group_ranks.items()}


@private("torch._C._distributed_c10d._dump_fr_trace", _UNSEEN, list)
def flight_records() -> list[Sequence[dict[str, Any]]]:
    """The entries of torch's flight recorders, for gloo and for NCCL, without stacks, with what has ended."""
    from torch._C import _distributed_c10d

    dumps = [getattr(_distributed_c10d, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")]
    if not any(dumps):
        raise AttributeError("no flight recorder can be read")
    # Our own process wrote these pickles.
    return [pickle.loads(dump(True, False, False)).get("entries", ()) for dump in dumps if dump is not None]

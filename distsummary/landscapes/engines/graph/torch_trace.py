"""Records a loss, a function of a model and a batch, as a graph of aten operations.

The graph is functional (no operation writes to its inputs). Its inputs are the tensors of the model and of
the batch, so that it can be rewritten, cut and evaluated for other values. CannotTraceError is raised for a
loss that cannot be recorded faithfully, because it branches on values, draws random numbers, or computes
results whose shape depends on values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from distsummary.errors import CannotTraceError
from distsummary.frameworks.torch_private import is_mutable, private_operators
from distsummary.landscapes.engines.graph.torch_fx import (
    Decompositions,
    Node,
    aten,
    is_operation,
    is_view,
    outline,
    outline_of,
    placeholders,
)
from distsummary.landscapes.model.batches import leaves, mapped, structure
from distsummary.landscapes.model.user_code import first_line

REFUSED_TAGS = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)
ON_VALUES = (  # torch's errors for code that reads values of fake tensors, which have no values
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)
# The types whose values `signature` compares by repr.
PLAIN = str | bytes | int | float | complex | None | torch.dtype | torch.device
UNSAFE_VIEW = tuple(private_operators({"_unsafe_view": 0}))
SAME_NUMBERS = (aten.view.default, *UNSAFE_VIEW, aten.expand.default)
# The argument number of the dropout probability; attention is random unless it is 0.
DROPOUT_ARGUMENT = private_operators(
    {
        "_scaled_dot_product_flash_attention_for_cpu": 3,
        "_scaled_dot_product_flash_attention": 3,
        "_scaled_dot_product_efficient_attention": 5,
        "_scaled_dot_product_cudnn_attention": 5,
    }
)


def trace(
    model: nn.Module,
    function: Callable[[Any], Sequence[Tensor]],
    tensors: Mapping[str, Tensor],
    batch: Any,
    decompositions: Decompositions | None = None,
) -> fx.Graph:
    """Record `function(batch)`, which calls `model` and returns tensors.

    The graph's placeholders are first `tensors` (of the model, by name), then the batch's tensors, each group
    in order. Raises CannotTraceError if the function cannot be recorded, or if it both reads and writes a
    tensor of the model, since the next batch would then read what this batch wrote.
    """
    names = tuple(tensors)
    # The function runs inside a module, in which functional_call finds the model's tensors as "model.<name>".
    around = nn.Module()
    around.model, around.forward = model, function

    def pure(*values: Tensor) -> Any:
        named = {f"model.{name}": value for name, value in zip(names, values, strict=False)}
        return functional_call(around, named, (with_tensors(batch, values[len(names) :]),))

    graph = record(pure, [*tensors.values(), *batch_tensors(batch)], decompositions)
    for name, node in zip(names, placeholders(graph), strict=False):
        if node.meta.get("is_written") and node.users:
            raise CannotTraceError(f"the loss reads and writes {name}, so batches would affect each other")
    return graph


def record(
    function: Callable[..., Any], arguments: Sequence[Tensor], decompositions: Decompositions | None = None
) -> fx.Graph:
    """The graph of `function(*arguments)`, with a placeholder for each tensor; may raise CannotTraceError.

    Every node's meta["val"] is the outline of its result. The graph leaves out writes to its inputs; a
    placeholder to which the function writes has meta["is_written"] = True.
    """
    # Tracing uses fake tensors, so that code that reads values (also through .numpy()) raises an error.
    recorder = make_fx(
        # The lambda is there because make_fx inspects the signature.
        functionalize(lambda *tensors: function(*tensors)),
        dict(decompositions or {}),
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )
    try:
        with torch.inference_mode(False), torch.no_grad():
            try:
                module = recorder(*arguments)
            except Exception as error:
                if type(error).__name__ not in ON_VALUES:
                    raise
                # Some code reads values only if it is not being compiled: transformers checks whether a
                # padding mask masks anything.
                is_compiling = torch.compiler.is_compiling
                torch.compiler.is_compiling = lambda: True
                try:
                    module = recorder(*arguments)
                finally:
                    torch.compiler.is_compiling = is_compiling
    except (MemoryError, torch.OutOfMemoryError):
        # This is not the model's fault: an engine that needs less memory may work.
        raise
    except Exception as error:
        # The model's code may raise anything when it meets a recorded tensor.
        raise CannotTraceError(f"the loss cannot be recorded as a graph: {reason(error)}") from error
    graph = module.graph
    for node in list(graph.nodes):
        # A tensor that the function captured is an attribute, and a bare graph has no attributes.
        if node.op == "get_attr":
            with graph.inserting_before(node):
                held = graph.call_function(_Held(getattr(module, node.target)))
            held.meta.update(node.meta)
            node.replace_all_uses_with(held)
            graph.erase_node(node)
    for node in graph.nodes:
        value = node.meta.get("val")
        node.meta = {
            "val": fx.node.map_aggregate(value, lambda v: outline(v) if isinstance(v, Tensor) else v)
        }
    # Functionalize puts writes to inputs at the end. They are noted and dropped.
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder" and not node.users:
            node.args[0].meta["is_written"] = True
            graph.erase_node(node)
    drop_idle(graph)
    make_out_of_place(graph)
    refuse_unfaithful(graph)
    return graph


class _Held:
    """A callable without arguments that returns one fixed tensor."""

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self.__name__ = "held"

    def __call__(self) -> Tensor:
        return self._value


def reason(error: Exception) -> str:
    """Why recording failed, in one line. Torch's own message for code that reads values helps no user."""
    if type(error).__name__ in ON_VALUES:
        return "it branches on values of tensors, or has shapes that depend on such values"
    return first_line(error)


def drop_idle(graph: fx.Graph) -> None:
    """Drop nodes that nothing uses, that return their first input unchanged, or that undo a transposition."""

    def looks(node: Node) -> Any:
        value = node.meta.get("val")
        # Before torch 2.7 a node may have no outline.
        return node if value is None else (value.shape, value.stride(), value.dtype)

    def axes(transpose: Node) -> set[int]:
        return {axis % transpose.meta["val"].dim() for axis in transpose.args[1:3]}

    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        first, target = node.args[0], node.target
        if (
            target in (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
            or (target is aten.mul.Scalar and node.args[1] == 1 and looks(node) == looks(first))
            or (target in SAME_NUMBERS and looks(node) == looks(first))
            or (target is aten.permute.default and [*node.args[1]] == [*range(len(node.args[1]))])
        ):
            node.replace_all_uses_with(first)
        elif first.target is target and (
            target is aten.t.default or (target is aten.transpose.int and axes(node) == axes(first))
        ):
            node.replace_all_uses_with(first.args[0])
    graph.eliminate_dead_code()


def make_out_of_place(graph: fx.Graph) -> None:
    """Replace an in-place operation by its out-of-place form if no other node uses the result it overwrites.

    Torch's label smoothing contains such operations.
    """
    for node in graph.nodes:
        if not is_operation(node) or not is_mutable(node.target):
            continue
        name, _, overload = node.target.name().removeprefix("aten::").partition(".")
        fresh = getattr(getattr(aten, name.removesuffix("_"), None), overload or "default", None)
        first = node.args[0] if node.args else None
        if fresh is None or fresh is node.target or not isinstance(first, fx.Node) or not is_operation(first):
            continue
        # Other nodes may read the memory that is overwritten, for example the base of a view.
        is_alias = is_view(first) or first.target in UNSAFE_VIEW
        if is_alias or is_mutable(first.target) or len(first.users) != 1:
            continue
        found, before = outline_of(fresh, node.args, node.kwargs), node.meta["val"]
        # Out of place, a + b may promote to a wider dtype than a.add_(b) keeps.
        if (found.shape, found.dtype) == (before.shape, before.dtype):
            node.target = fresh


def refuse_unfaithful(graph: fx.Graph) -> None:
    """Raise CannotTraceError for operations that a recorded graph cannot repeat faithfully."""
    for node in filter(is_operation, graph.nodes):
        # Attention without dropout draws no random numbers, whatever torch's tag says.
        at = DROPOUT_ARGUMENT.get(node.target)
        if at is not None and (len(node.args) <= at or node.args[at] == 0.0):
            continue
        tags = [tag for tag in REFUSED_TAGS if tag in node.target.tags]
        if tags and node.target is aten.index.Tensor:
            picked = {index.meta["val"].dtype for index in node.args[1] if index is not None}
            # Only masks make the shape of the result depend on values.
            if not {torch.bool, torch.uint8} & picked:
                tags = []
        if tags:
            tag = str(tags[0]).split(".")[-1]
            raise CannotTraceError(f"{node.target} in the loss cannot be recorded (torch tags it {tag})")
        if is_mutable(node.target):
            raise CannotTraceError(f"{node.target} in the loss writes to its input")


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch in a fixed order."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def with_tensors(batch: Any, tensors: Sequence[Tensor]) -> Any:
    """The batch with its tensors replaced by `tensors`, in the order of `batch_tensors`."""
    rest = iter(tensors)
    return mapped(batch, lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf)


def signature(batch: Any) -> Any:
    """A key that is equal for batches that can share a graph: structure, tensor layouts and all other leaves.

    Leaves that are not PLAIN are identified by their id (valid while they live), because the graph holds
    their contents as constants. The key also says which tensors are the same object, as in {"a": x, "b": x}.
    """
    looks: list[Any] = []
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor):
            looks.append((leaf.shape, leaf.dtype, leaf.stride(), leaf.device))
        else:
            looks.append(repr(leaf) if isinstance(leaf, PLAIN) else id(leaf))
    seen = [id(tensor) for tensor in batch_tensors(batch)]
    return structure(batch), tuple(looks), tuple(map(seen.index, seen))


def objects(batch: Any) -> list[Any]:
    """The objects in a batch that are neither tensors nor PLAIN values, such as arrays and graphs."""
    return [leaf for leaf in leaves(batch) if not isinstance(leaf, Tensor | PLAIN)]

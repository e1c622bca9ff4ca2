"""A loss as a graph: what a function of a model and a batch does to tensors, recorded as aten operations.

The graph is functional (no operation writes to its inputs) and has the model's tensors and the batch's as
inputs, so that it can be rewritten, cut and evaluated for other values. What cannot be recorded faithfully is
refused: decisions on values, random numbers, results whose shape depends on values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from distsummary.errors import CannotTraceError
from distsummary.landscapes.model.batches import leaves, mapped, structure
from distsummary.landscapes.model.user_code import first_line

aten = torch.ops.aten
Node: TypeAlias = Any  # fx.Node, whose arguments fx types as a union of everything there is
Decompositions: TypeAlias = Mapping[Any, Callable[..., Any]]  # operation -> what is recorded instead
REFUSED_TAGS = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)
ON_VALUES = (  # what torch raises where fake tensors, which have no values, are asked for them
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)
PLAIN = str | bytes | int | float | complex | None | torch.dtype | torch.device  # told by their repr
WRITTEN = "written"  # in the meta of inputs that the function writes to, which is left out of the graph
DROPOUT_ARGUMENT = {  # of attention: random only where it is not 0
    aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    aten._scaled_dot_product_flash_attention.default: 3,
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._scaled_dot_product_cudnn_attention.default: 5,
}


def trace(
    model: nn.Module,
    function: Callable[[Any], Sequence[Tensor]],
    tensors: Mapping[str, Tensor],
    batch: Any,
    decompositions: Decompositions | None = None,
) -> fx.Graph:
    """Record `function(batch)`, which calls `model` and returns tensors.

    The graph's placeholders are `tensors`, the model's by name, then the tensors of the batch, in their
    orders. Raises CannotTraceError with the reason, also where a tensor of the model's is written to and
    read: the next batch would read what this one wrote.
    """
    names, point = tuple(tensors), _Point(model, function)

    def pure(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        named = {f"model.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(point, named, (with_tensors(batch, inputs),))

    graph = record(pure, [list(tensors.values()), batch_tensors(batch)], decompositions)
    for name, node in zip(names, placeholders(graph), strict=False):
        if WRITTEN in node.meta and node.users:
            raise CannotTraceError(f"the loss writes to {name}, which it reads")
    return graph


def record(
    function: Callable[..., Any], arguments: Sequence[Any], decompositions: Decompositions | None = None
) -> fx.Graph:
    """The graph of `function(*arguments)`, one placeholder for each tensor; raises CannotTraceError.

    Every node's meta["val"] is an outline: shape, strides and dtype of its result, on the device "meta".
    """
    flat, spec = pytree.tree_flatten(list(arguments))

    def flattened(*values: Tensor) -> Any:
        return function(*pytree.tree_unflatten(list(values), spec))

    # Fake tensors have no values: code that looks at some, by .numpy() too, raises here.
    recorder = make_fx(
        functionalize(flattened), dict(decompositions or {}), tracing_mode="fake", _allow_non_fake_inputs=True
    )
    try:
        with torch.inference_mode(False), torch.no_grad():
            module = _recorded(recorder, flat)
    except (MemoryError, torch.OutOfMemoryError):
        raise  # not the model's fault: a smaller engine may do
    except Exception as error:  # whatever the model's code raises when it meets a recorded tensor
        raise CannotTraceError(f"the loss cannot be recorded as a graph: {reason(error)}") from error
    _inline_constants(module)
    for node in module.graph.nodes:
        node.meta = {"val": pytree.tree_map_only(Tensor, _outline, node.meta.get("val"))}
    _tidy(module.graph)
    _write_anew(module.graph)
    _refuse_unfaithful(module.graph)
    return module.graph


def _recorded(recorder: Callable[..., fx.GraphModule], arguments: Sequence[Any]) -> fx.GraphModule:
    """What is recorded; of code that asks for values, as when it is compiled, where some asks for none.

    Such as transformers, which looks whether a mask of padding masks anything.
    """
    try:
        return recorder(*arguments)
    except Exception as error:
        if type(error).__name__ not in ON_VALUES:
            raise
        compiler: Any = torch.compiler  # no stub has what torch.export sets
        before = compiler._is_compiling_flag
        compiler._is_compiling_flag = True
        try:
            return recorder(*arguments)
        finally:
            compiler._is_compiling_flag = before


def reason(error: Exception) -> str:
    """Why, in one line; torch's own advice on what depends on values is for its developers."""
    if type(error).__name__ in ON_VALUES:
        return "it decides on values, or has shapes that depend on them"
    return first_line(error)


class _Point(nn.Module):
    """The function as a module around the model, so that functional_call finds the model's tensors."""

    def __init__(self, model: nn.Module, function: Callable[[Any], Sequence[Tensor]]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, batch: Any) -> Any:
        return self._function(batch)


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch in a fixed order."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def with_tensors(batch: Any, tensors: Sequence[Tensor]) -> Any:
    """The batch with other tensors in the order of `batch_tensors`."""
    rest = iter(tensors)
    return mapped(batch, lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf)


def signature(batch: Any) -> Any:
    """What batches that can share a graph have in common: structure, outlines, and all that is no tensor.

    Objects count as themselves, for as long as they live: what they hold is a constant of the graph. A tensor
    that is there twice, as in `{"input_ids": x, "labels": x}`, is one input.
    """
    seen = [id(tensor) for tensor in batch_tensors(batch)]
    return structure(batch), tuple(map(_told, leaves(batch))), tuple(map(seen.index, seen))


def objects(batch: Any) -> list[Any]:
    """What in a batch is neither tensor nor plain, such as arrays and graphs."""
    return [leaf for leaf in leaves(batch) if not isinstance(leaf, Tensor | PLAIN)]


def _told(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.stride(), leaf.device
    return repr(leaf) if isinstance(leaf, PLAIN) else id(leaf)


def emit(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Add a call, with the outline of its result."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = _result_of(target, args, kwargs)
    return node


def _result_of(target: Any, args: Any, kwargs: Any) -> Any:
    """The outline of what an operation makes of these nodes, whatever device it names."""
    seen: Any = fx.node.map_arg((args, dict(kwargs)), lambda n: n.meta["val"])
    device = {"device": torch.device("meta")} if kwargs.get("device") is not None else {}
    return target(*seen[0], **seen[1] | device)


def placeholders(graph: fx.Graph) -> list[Node]:
    """The inputs of a graph in order."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def results(graph: fx.Graph) -> list[Node]:
    """The nodes that a graph returns."""
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(found) if isinstance(found, tuple | list) else [found]


def depends_on(graph: fx.Graph, sources: Iterable[Node]) -> set[Node]:
    """The nodes that the sources have a part in, they themselves too."""
    found = set(sources)
    for node in graph.nodes:
        if any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def module_of(nodes: Iterable[Node], inputs: Iterable[Node], outputs: Iterable[Node]) -> fx.GraphModule:
    """These nodes as a module: called with the values of `inputs` it returns those of `outputs`."""
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"in{number}")
        copies[node].meta.update(node.meta)
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in outputs))
    return fx.GraphModule({}, graph)


def is_view(node: Node) -> bool:
    """Whether the node's result shares the memory of its first input."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def is_channels_last(picture: Tensor) -> bool:
    """Whether a tensor is channels-last pictures, and nothing else: with one channel they could be either."""
    is_last = picture.dim() == 4 and picture.is_contiguous(memory_format=torch.channels_last)
    return is_last and not picture.is_contiguous()


def uses_onednn() -> bool:
    """Whether this is an x86 processor with oneDNN, not switched off: for a model, that is for us, too."""
    has_vectors: bool = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return has_vectors and torch._C._get_mkldnn_enabled()


def is_getitem(node: Node) -> bool:
    """Whether the node picks one of several results."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


class _Held:
    """A call without arguments that gives a tensor."""

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self.__name__ = "held"

    def __call__(self) -> Tensor:
        return self._value


def _inline_constants(module: fx.GraphModule) -> None:
    """Let tensors that the function had from elsewhere be calls, so that a graph needs no attributes."""
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            with module.graph.inserting_before(node):
                held = module.graph.call_function(_Held(getattr(module, node.target)))
            held.meta.update(node.meta)
            node.replace_all_uses_with(held)
            module.graph.erase_node(node)


def _outline(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tidy(graph: fx.Graph) -> None:
    """Drop writes to inputs (they come last in a functional graph), what nobody uses, what does nothing."""
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder" and not node.users:
            node.args[0].meta[WRITTEN] = True
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        if _does_nothing(node):
            node.replace_all_uses_with(node.args[0])
        elif _undoes(node):
            node.replace_all_uses_with(node.args[0].args[0])
    graph.eliminate_dead_code()


def _does_nothing(node: Node) -> bool:
    """Whether the node gives its first input: the same shape of a view, a product with 1."""
    if node.target in (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default):
        return True
    if node.target is aten.mul.Scalar:
        return bool(node.args[1] == 1 and _looks(node) == _looks(node.args[0]))
    if node.target in (aten.view.default, aten._unsafe_view.default, aten.expand.default):
        return bool(_looks(node) == _looks(node.args[0]))
    return bool(node.target is aten.permute.default and [*node.args[1]] == [*range(len(node.args[1]))])


def _looks(node: Node) -> Any:
    value = node.meta.get("val")
    return node if value is None else (value.shape, value.stride(), value.dtype)  # older torch: of constants


def _undoes(node: Node) -> bool:
    """Whether the node transposes back what its input has transposed."""
    first = node.args[0]
    if first.target is not node.target or not isinstance(first.args[0], fx.Node):
        return False
    return node.target is aten.t.default or (
        node.target is aten.transpose.int and _axes(node) == _axes(first)
    )


def _axes(transpose: Node) -> set[int]:
    dims = transpose.meta["val"].dim()
    return {axis % dims for axis in transpose.args[1:3]}


def _write_anew(graph: fx.Graph) -> None:
    """Let what writes to a result that nobody else reads make a new one: torch's label smoothing does."""
    for node in graph.nodes:
        if node.op == "call_function" and _writes_to_its_own(node):
            name, overload = node.target._schema.name.removeprefix("aten::"), node.target._overloadname
            anew = getattr(getattr(aten, name.removesuffix("_"), None), overload, None)
            if anew is not None and _outlines_match(node, anew):
                node.target = anew


def _outlines_match(node: Node, target: Any) -> bool:
    """Whether another operation gives a result of the same shape and type: a sum may be of a wider one."""
    found, before = _result_of(target, node.args, node.kwargs), node.meta["val"]
    return bool(found.shape == before.shape and found.dtype == before.dtype)


def _writes_to_its_own(node: Node) -> bool:
    """Whether the node writes to its first input alone, a result that it alone reads."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.name.endswith("_"):
        return False
    first = node.args[0]
    return len(first.users) == 1 and _is_fresh(first)


def _is_fresh(node: Node) -> bool:
    """Whether a result has memory of its own: no view, no piece of another, no tensor from elsewhere."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    is_alias = is_view(node) or node.target is aten._unsafe_view.default
    return not is_alias and not node.target._schema.is_mutable


def _refuse_unfaithful(graph: fx.Graph) -> None:
    """Raise CannotTraceError for operations that another evaluation would not repeat."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        at = DROPOUT_ARGUMENT.get(node.target)
        if at is not None and (len(node.args) <= at or node.args[at] == 0.0):
            continue
        tags = [tag for tag in REFUSED_TAGS if tag in node.target.tags]
        if tags and not _picks_by_number(node):
            raise CannotTraceError(f"{node.target} in the loss is {str(tags[0]).split('.')[-1]}")
        if node.target._schema.is_mutable:
            raise CannotTraceError(f"{node.target} in the loss writes to its input")


def _picks_by_number(node: Node) -> bool:
    """Whether the node indexes with numbers alone: only of masks the shape of the result is not known."""
    if node.target is not aten.index.Tensor:
        return False
    picked = [index.meta["val"].dtype for index in node.args[1] if index is not None]
    return not {torch.bool, torch.uint8} & set(picked)

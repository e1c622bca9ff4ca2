"""Observes layers in backward passes, by hooks and by operators that torch.compile keeps.

A forward hook passes the output of a layer through an operator, whose backward shows input and gradient to
the `Layer`. Only steps that refresh factors are observed: in all others the hook returns at once.
torch.compile keeps both kinds of steps as graphs of their own, since it guards `Layer.is_due`. What has no
backward pass, such as an evaluation, is not observed; what activation checkpointing computes again is
observed once.
"""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch_hook import Hook
from distsummary.frameworks.torch_modules import unwrap
from distsummary.frameworks.torch_private import is_transformed
from distsummary.thor.torch_layers import LAYERS, Layer, second_order


@torch.library.custom_op("distsummary::thor_output", mutates_args=())
def _output(output: Tensor, seen: Tensor, number: int) -> Tensor:
    """The output of a layer, unchanged; `seen` is its input."""
    # An operator of torch must not return its own input.
    return output.clone()


@torch.library.custom_op("distsummary::thor_gradient", mutates_args=())
def _gradient(gradient: Tensor, seen: Tensor, number: int) -> Tensor:
    """The gradient of a layer's output, unchanged."""
    layer = LAYERS.get(number)
    if layer is not None:
        layer.observe(seen, gradient)
    return gradient.clone()


@_output.register_fake
def _like_output(output: Tensor, seen: Tensor, number: int) -> Tensor:
    return torch.empty_like(output)


@_gradient.register_fake
def _like_gradient(gradient: Tensor, seen: Tensor, number: int) -> Tensor:
    return torch.empty_like(gradient)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, seen, ctx.number = inputs
    ctx.save_for_backward(seen)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    # With create_graph it is not the backward pass of the step.
    if torch.is_grad_enabled():
        return gradient, None, None
    (seen,) = ctx.saved_tensors
    return _gradient(gradient, seen, ctx.number), None, None


_output.register_autograd(_backward, setup_context=_keep)


def _hook(layer: Layer, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
    """Pass the output of a layer on, through the operator if it is observed."""
    if not layer.is_due or not inputs or not torch.is_grad_enabled() or not output.requires_grad:
        return None
    # vmap and jvp are not a training.
    if not torch.compiler.is_compiling() and is_transformed():
        return None
    passed: Tensor = _output(output, inputs[0].detach(), layer.number)
    return passed


_HELD: MutableMapping[nn.Module, tuple[Layer, RemovableHandle]] = WeakIdKeyDictionary()


def layers_of(net: nn.Module) -> list[tuple[Tensor, Layer]]:
    """The layers of a converted network and the weight of each."""
    found: dict[Layer, Tensor] = {}
    for module in unwrap(net).modules():
        if module in _HELD:
            weight = module.weight
            assert isinstance(weight, Tensor)
            found.setdefault(_HELD[module][0], weight)
    return [(weight, layer) for layer, weight in found.items()]


def convert(net: nn.Module) -> None:
    """Observe the layers of a network from now on; see `ConvertNetUtils.convert_to_thor_net`."""
    _check(net)
    found = [*second_order(unwrap(net))]
    by_weight: dict[int, Layer | None] = {}  # None: of several kinds
    for name, module, kind in found:
        weight = module.weight
        assert isinstance(weight, Tensor)
        if nn.parameter.is_lazy(weight):
            raise InvalidValueError(
                f"net has the layer {name} without weights yet; call the network with a batch first"
            )
        held = _HELD[module][0] if module in _HELD else None
        shared = by_weight.setdefault(id(weight), held or kind(name, module))
        if shared is not None and type(shared) is not kind:
            by_weight[id(weight)] = None
    # Only now is it known which weights modules of several kinds share: those get no hooks.
    for _, module, _ in found:
        layer = by_weight[id(module.weight)]
        if layer is None:
            _release(module)
        elif module not in _HELD:
            _HELD[module] = layer, module.register_forward_hook(Hook(None, _hook, layer))


def convert_back(net: nn.Module) -> None:
    """Remove the hooks; see `ConvertNetUtils.convert_back`."""
    _check(net)
    for module in unwrap(net).modules():
        _release(module)


def _check(net: object) -> None:
    if not isinstance(net, nn.Module):
        raise InvalidTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")


def _release(module: nn.Module) -> None:
    if module in _HELD:
        _HELD.pop(module)[1].remove()

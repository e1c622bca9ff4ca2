"""THOR: momentum SGD whose gradients are multiplied by inverses of the Kronecker factors of each layer."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distsummary.base.checks import check_choice, check_int, check_number, check_type
from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import Curvature, CurvatureDirection
from distsummary.frameworks.torch import as_dtensor
from distsummary.frameworks.torch_modules import has_fsdp1, unwrap
from distsummary.frameworks.torch_private import compiled_from, for_each
from distsummary.thor import torch_blocks as blocks
from distsummary.thor.rates import Given, Rate
from distsummary.thor.torch_layers import kind_of
from distsummary.thor.torch_refresh import Formula, Ranks, RefreshStatus, refresh
from distsummary.thor.torch_taps import convert, layers_of

logger = guarded_log(__name__)

AVERAGES, REFRESHES = ("factors", "inverses"), ("frequency", "trace")
_CLIP = 1.0  # the largest norm of a gradient with enable_clip_grad, as in MindSpore
_WHY = {
    RefreshStatus.MISSING: "without input or gradient in a step that refreshes",
    RefreshStatus.SIZES: "with images of several sizes in a step that refreshes",
    RefreshStatus.SINGULAR: "with a factor that is NaN, infinite or singular",
}
_FACTORS = ("inverse_a", "inverse_g", "figures")  # tensors in a weight's state, besides its momentum
_COUNTS = ("refreshes", "is_stopped")  # numbers in it


class THOR(torch.optim.Optimizer):
    """The second-order optimizer THOR, with MindSpore's formulas for GPUs; see docs/thor.md.

        optimizer = ds.thor.THOR(model, learning_rate=0.01, damping=0.03, momentum=0.9, batch_size=64)

    For the weight W of a Linear, Conv2d or Embedding layer with gradient g, momentum v, and inverses:

        v <- momentum v + G^-1 g A^-1 + weight_decay W,    W <- W - learning_rate v

    LayerNorm's gradients are divided by g^2 / batch_size + sqrt(damping). All other parameters, biases among
    them, are updated by momentum SGD. A and G are computed again from the batch of every `frequency`-th step,
    beginning with the first; see `torch_layers`. A layer that has no inverses yet is updated by momentum SGD.

    Ranks of torch.distributed share the work, see `average`: all of them must make the same steps.

    Its attributes are its settings, the layers with their inverses, and the state of their refreshes.

    Args:
        net: the network, a torch.nn.Module, maybe wrapped by DistributedDataParallel. Its layers are observed
            by hooks from now on, see `ConvertNetUtils`; make THOR before torch.compile compiles the network.
        learning_rate: a number, which schedulers of torch may change; a list, array or tensor of numbers by
            step; a function of the step, from 0; or a scheduler of any optimizer, whose rate is followed.
        damping: likewise. What is added to the diagonal of both factors is its square root.
        momentum: >= 0.
        weight_decay: >= 0, added to the gradients after they were multiplied by the inverses.
        loss_scale: by what the loss is multiplied: then THOR divides gradients and factors by it. Or the
            object that scales the loss and divides the gradients itself, a GradScaler or LossScaleManager.
        batch_size: the samples over whose mean loss a rank computes the gradients of a step.
        use_nesterov: whether to use Nesterov's momentum.
        decay_filter: a function of (name, parameter): whether its weights decay. None: all do.
        split_indices: accepted, without effect: it groups layers for MindSpore's communication.
        enable_clip_grad: whether each parameter's gradient, with all of the above, is clipped to the norm 1.
        frequency: the steps between refreshes, >= 1.
        refresh: "frequency": refreshes are of all layers. "trace": as in the paper, with limits of
            ours: a layer is refreshed if the trace of its factors changed by more than 1 %, and no more once
            it changed by less than 0.1 %.
        average: what several ranks average. "factors": the factors of their batches, which gives those of the
            whole batch; each layer is inverted on one rank. "inverses": the inverses of the factors of each
            rank's batch, as MindSpore does.
        process_group: the ranks that share; None: those of DistributedDataParallel, else all of them.
        lr: another name of `learning_rate`.

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments; no trained parameter; FSDP that shards a layer.
    """

    # GradScaler then calls each step, and says whether gradients overflowed and are still scaled.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        net: nn.Module,
        learning_rate: Given | None = None,
        damping: Given | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        loss_scale: Any = 1.0,
        batch_size: int = 32,
        use_nesterov: bool = False,
        decay_filter: Callable[[str, Tensor], bool] | None = None,
        split_indices: Any = None,
        enable_clip_grad: bool = False,
        frequency: int = 100,
        *,
        refresh: str = "frequency",
        average: str = "factors",
        process_group: dist.ProcessGroup | None = None,
        lr: Given | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise InvalidTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        if lr is not None:
            if learning_rate is not None:
                raise InvalidValueError("lr is another name of learning_rate, got both; pass one of them")
            learning_rate = lr
        for field, given in (("learning_rate", learning_rate), ("damping", damping)):
            if given is None:
                raise InvalidTypeError(f"{field} is missing; pass a number, such as 0.03, or a list by step")
        momentum = check_number("momentum", momentum)
        weight_decay = check_number("weight_decay", weight_decay)
        for field, number in (("momentum", momentum), ("weight_decay", weight_decay)):
            if not 0 <= number < math.inf:
                raise InvalidValueError(f"{field} must be finite and >= 0, got {number}")
        check_type("use_nesterov", use_nesterov, bool)
        check_type("enable_clip_grad", enable_clip_grad, bool)
        batch_size = check_int("batch_size", batch_size, low=1)
        frequency = check_int("frequency", frequency, low=1)
        check_choice("refresh", refresh, REFRESHES)
        check_choice("average", average, AVERAGES)
        if refresh == "trace" and average == "inverses":
            raise InvalidValueError(
                "refresh='trace' compares the factors of all ranks, and average='inverses' has those of each "
                "rank; leave one of them out"
            )
        if decay_filter is not None and not callable(decay_filter):
            raise InvalidTypeError(
                f"decay_filter must be a function of (name, parameter), got {type(decay_filter).__name__}"
            )
        self._rates = {"lr": Rate("learning_rate", learning_rate), "damping": Rate("damping", damping)}
        self._divides, self._scaler = _scaling(loss_scale)
        self._batch_size, self._frequency = batch_size, frequency
        self._by_trace, self._average = refresh == "trace", average
        self._clips, self._nesterov = enable_clip_grad, use_nesterov

        inner = unwrap(net)
        named = {name: one for name, one in inner.named_parameters() if one.requires_grad}
        if not named:
            raise InvalidValueError("net must have a parameter that is trained, got none with requires_grad")
        _refuse_sharded(inner)
        convert(net)
        self._layers = dict(layers_of(net))
        norms = [module for module in inner.modules() if isinstance(module, nn.LayerNorm)]
        self._norms = {parameter for module in norms for parameter in module.parameters(recurse=False)}
        self._sharded = {parameter for parameter in named.values() if as_dtensor(parameter) is not None}
        self._device = next(iter(self._layers), next(iter(named.values()))).device
        self._ranks = Ranks(_group(net, process_group))
        self._refreshes, self._refresh_s = 0, 0.0
        self._skipped: Counter[tuple[RefreshStatus, str]] = Counter()
        _name_others(inner, named, {*self._layers, *self._norms})

        decays = [
            weight_decay > 0 and (decay_filter is None or bool(decay_filter(*one))) for one in named.items()
        ]
        groups = [
            {"params": [p for p, decay in zip(named.values(), decays, strict=True) if decay is which],
             "weight_decay": float(weight_decay) if which else 0.0}
            for which in (True, False)
        ]  # fmt: skip
        first = {name: rate.first for name, rate in self._rates.items()}
        super().__init__(
            [group for group in groups if group["params"]],
            {**first, "momentum": float(momentum), "weight_decay": 0.0, "step": 0},
        )
        # What the layers observed so far was for an earlier optimizer.
        self._forget()
        self._plan()

    # --- a step ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters; returns what the closure returned, if there is one.

        Args:
            closure: computes the gradients and returns the loss; called once.

        Raises InvalidValueError if GradScaler.unscale_ was called and `loss_scale` is not the scaler.
        """
        loss = None
        if closure is not None:
            # The closure makes the passes of this step: what was observed before them does not count.
            self._forget()
            with torch.enable_grad():
                loss = closure()
        divisor, scale = self._scales()
        # GradScaler leaves it to this method to skip a step (`_step_supports_amp_scaling`).
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._forget()
            return loss
        number = self.param_groups[0]["step"]
        for name, rate in self._rates.items():
            value = rate.at(number)
            if value is not None:
                for group in self.param_groups:
                    group[name] = value
        if self._is_due(number):
            self._refresh(scale)
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            # torch updates no list that holds both kinds.
            for is_sharded in (False, True):
                self._update(group, [one for one in weights if (one in self._sharded) is is_sharded], divisor)
            group["step"] = number + 1
        self._plan()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what was observed with them."""
        self._forget()
        super().zero_grad(set_to_none)

    def _update(self, group: dict[str, Any], weights: list[Tensor], divisor: float) -> None:
        if not weights:
            return
        damping, batch = math.sqrt(group["damping"]), self._batch_size
        # LayerNorm's gradients then count as those of all ranks' samples, like the factors.
        if self._average == "factors":
            batch *= self._ranks.size
        gradients: list[Tensor] = []
        for weight in weights:
            assert weight.grad is not None
            gradient = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
            if divisor != 1:
                gradient = gradient / divisor
            layer, state = self._layers.get(weight), self.state[weight]
            if layer is not None and "inverse_a" in state:
                matrix = layer.matrix(gradient).to(layer.dtype)
                natural = blocks.precondition(matrix, state["inverse_g"], state["inverse_a"])
                gradient = natural.reshape(gradient.shape).to(gradient.dtype)
            elif weight in self._norms:
                gradient = gradient / (gradient.square() / batch + damping)
            gradients.append(gradient)
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(weight)
        if group["weight_decay"]:
            gradients = for_each("add", gradients, weights, alpha=group["weight_decay"])
        if self._clips:
            gradients = [one * (_CLIP / one.norm().clamp(min=_CLIP)) for one in gradients]
        moments = [self.state[weight]["momentum_buffer"] for weight in weights]
        for_each("mul_", moments, group["momentum"])
        for_each("add_", moments, gradients)
        if self._nesterov:
            moments = for_each("add", gradients, moments, alpha=group["momentum"])
        for_each("add_", weights, moments, alpha=-float(group["lr"]))

    # --- factors --------------------------------------------------------------------------------------------

    @property
    def loss_scale(self) -> Any:
        """The number, or the object that scales the loss; `Model` sets its LossScaleManager here."""
        return self._divides if self._scaler is None else self._scaler

    @loss_scale.setter
    def loss_scale(self, given: Any) -> None:
        self._divides, self._scaler = _scaling(given)

    def get_frequency(self) -> int:
        """The steps between refreshes; MindSpore's name."""
        return self._frequency

    def curvature(self) -> Curvature:
        """See `CurvatureSource`."""
        states = [self.state[weight].get("figures") for weight in self._layers]
        # Layers without a refresh so far have no figures.
        unknown = torch.full((4,), math.nan, dtype=torch.float32, device=self._device)
        figures = [unknown.double() if one is None else one[1:5].double().to(self._device) for one in states]
        # A layer may have been skipped for several reasons.
        skipped: Counter[str] = Counter()
        for (_, name), count in self._skipped.items():
            skipped[name] += count
        return Curvature(
            damping=float(self.param_groups[0]["damping"]),
            refreshes=self._refreshes,
            refresh_s=self._refresh_s,
            layers=tuple(layer.name for layer in self._layers.values()),
            figures=torch.stack(figures).cpu().numpy() if figures else np.zeros((0, 4)),
            skipped=dict(skipped),
        )

    def largest_curvature(
        self, count: int = 2, names: Collection[str] | None = None
    ) -> list[CurvatureDirection]:
        """See `CurvatureSource`."""
        count = check_int("count", count, low=1)
        found: list[CurvatureDirection] = []
        for weight, layer in self._layers.items():
            state = self.state[weight]
            if "inverse_a" in state and (names is None or layer.weight_name in names):
                # `Formula.outcome` has multiplied both inverses by this gain, which is not the factors'.
                gain = math.sqrt(1 / float(state["figures"][5]))
                found += layer.largest(state["inverse_a"] / gain, state["inverse_g"] / gain, weight, count)
        return sorted(found, key=lambda one: -one.value)[:count]

    def _is_due(self, number: int) -> bool:
        return bool(self._layers) and number % self._frequency == 0

    def _plan(self) -> None:
        """Decide which layers are observed in the next step."""
        is_due = self._is_due(self.param_groups[0]["step"])
        for weight, layer in self._layers.items():
            layer.is_due = is_due and not self.state[weight].get("is_stopped")

    def _forget(self) -> None:
        for layer in self._layers.values():
            layer.take()

    def _refresh(self, scale: float) -> None:
        begun_s = time.perf_counter()
        held = {weight: layer for weight, layer in self._layers.items() if layer.is_due}
        if not held:
            return
        formula = Formula(
            batch=self._batch_size,
            scale=(self._batch_size / scale) ** 2,
            damping=self.param_groups[0]["damping"],
            by_trace=self._by_trace,
        )
        layers, states = [*held.values()], [self.state[weight] for weight in held]
        outcomes = refresh(
            layers,
            [layer.take() for layer in layers],
            [state.get("figures") for state in states],
            formula,
            self._ranks,
            average=self._average,
            device=self._device,
        )
        for layer, weight, state, outcome in zip(layers, held, states, outcomes, strict=True):
            if outcome.a is not None and outcome.g is not None:
                found = (outcome.a, outcome.g, outcome.figures)
                state |= dict(zip(_FACTORS, (one.to(weight.device) for one in found), strict=True))
                state["refreshes"] = state.get("refreshes", 0) + 1
            elif outcome.status is RefreshStatus.STOPPED:
                state["is_stopped"] = 1
            elif outcome.status in _WHY:
                self._skipped[outcome.status, layer.name] += 1
                if self._skipped[outcome.status, layer.name] == 1 and self._ranks.rank == 0:
                    logger.warning(
                        "THOR: the layer %s was %s: its inverses stay as they are, and without any it is "
                        "updated by momentum SGD; this is logged once",
                        layer.name,
                        _WHY[outcome.status],
                    )
        self._refreshes += 1
        self._refresh_s = time.perf_counter() - begun_s

    def _scales(self) -> tuple[float, float]:
        """By what the gradients, and by what the observed gradients of outputs are still to be divided."""
        scaled, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if self._scaler is not None:
            ours = hasattr(self._scaler, "get_loss_scale")
            scale = float(self._scaler.get_loss_scale() if ours else self._scaler.get_scale())
            # Without `grad_scale`, the gradients are divided already, but not what the layers observed.
            return (1.0 if scaled is None else scale), scale
        if scaled is not None:
            scale = float(scaled) * self._divides
            return scale, scale
        if found_inf is not None and self._layers and self._is_due(self.param_groups[0]["step"]):
            raise InvalidValueError(
                "loss_scale must be the GradScaler if its unscale_ is called before its step, which hides "
                f"the scale; got {self._divides:g}; make the optimizer by THOR(..., loss_scale=scaler)"
            )
        return self._divides, self._divides

    # --- state ----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave; factors keep their own precision."""
        super().load_state_dict(dict(state_dict))
        # torch casts the state to the parameters' dtypes; counts and factors are taken as they were saved.
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        order = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(order, parameters, strict=True):
            if parameter not in self._layers:
                continue
            state = self.state[parameter]
            for key, value in state_dict["state"].get(number, {}).items():
                if key in _COUNTS:
                    state[key] = int(value)
                elif key in _FACTORS:
                    state[key] = value.to(parameter.device).clone()
        self._plan()


thor = THOR  # MindSpore's name of it, which takes the same arguments


def _scaling(given: Any) -> tuple[float, Any]:
    """The number by which THOR divides, and the object that divides instead."""
    if hasattr(given, "get_loss_scale") or hasattr(given, "get_scale"):
        return 1.0, given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidTypeError(
            f"loss_scale must be a number, a GradScaler or a LossScaleManager, got {type(given).__name__}"
        )
    if not 0 < given < math.inf:
        raise InvalidValueError(f"loss_scale must be finite and > 0, got {given}; 1.0 without a scale")
    return float(given), None


def _group(net: nn.Module, given: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The process group whose ranks share their factors; None if this process is alone."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    wrapper: Any = net  # a module, or None
    while given is None and isinstance(wrapper, nn.Module):
        if isinstance(wrapper, nn.parallel.DistributedDataParallel):
            given = wrapper.process_group
        wrapper = compiled_from(wrapper)
    group = given if given is not None else dist.group.WORLD
    return group if group is not None and dist.get_world_size(group) > 1 else None


def _refuse_sharded(net: nn.Module) -> None:
    if has_fsdp1(net):
        raise InvalidValueError(
            "net must keep its layers whole: THOR needs the gradients of whole layers, and "
            "FullyShardedDataParallel flattens them; use DistributedDataParallel"
        )
    sharded = [
        name
        for name, module in net.named_modules()
        if kind_of(module) is not None and as_dtensor(module.weight) is not None
    ]
    if sharded:
        raise InvalidValueError(
            f"net must keep the layers whole that THOR has factors for, got {len(sharded)} sharded ones "
            f"({', '.join(sharded[:3])}): each factor needs the gradient of a whole layer; use "
            "DistributedDataParallel, or leave these layers out of fully_shard and of tensor parallelism"
        )


def _name_others(net: nn.Module, named: Mapping[str, Tensor], held: Iterable[Tensor]) -> None:
    """Log, once for an optimizer, what momentum SGD updates besides biases."""
    known = {id(parameter) for parameter in held}
    known |= {
        id(module.bias) for module in net.modules() if kind_of(module) is not None and hasattr(module, "bias")
    }
    if others := [name for name, parameter in named.items() if id(parameter) not in known]:
        logger.info(
            "THOR: momentum SGD updates %d of %d parameters, which are not of Linear, Conv2d, Embedding or "
            "LayerNorm: %s%s",
            len(others),
            len(named),
            ", ".join(others[:5]),
            ", ..." if len(others) > 5 else "",
        )

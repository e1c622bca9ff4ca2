"""The steps that Model makes with a torch network, with mixed precision and a loss scale."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch_modules import entries
from distsummary.model.loss_scale import LossScaleManager

logger = guarded_log(__name__)


class TorchSteps:
    """Makes single steps of training, evaluation and prediction; `Model` decides which and when.

    Args:
        network, loss_fn, optimizer, eval_network: as `Model` takes them.
        mixed: whether forward passes run under torch.autocast, with the device's own small dtype.
        manager: the loss scale; None: the loss is not scaled.

    Raises InvalidTypeError if an argument is not what torch needs.
    """

    def __init__(
        self,
        network: Any,
        loss_fn: Any,
        optimizer: Any,
        eval_network: Any,
        *,
        mixed: bool,
        manager: LossScaleManager | None,
    ) -> None:
        for field, module in (("network", network), ("eval_network", eval_network)):
            if not isinstance(module, nn.Module) and (field == "network" or module is not None):
                raise InvalidTypeError(f"{field} must be a torch.nn.Module, got {type(module).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidTypeError(
                "optimizer must make a step without a closure, got LBFGS; write your own loop with ds.init"
            )
        self._network, self._loss_fn, self._optimizer = network, loss_fn, optimizer
        self._eval_network = eval_network
        self._mixed, self._manager = mixed, manager

    def held(self) -> tuple[Any, Any]:
        """The optimizer and the loss function: those given or else those that the network holds, or None."""
        optimizer, loss_fn = self._optimizer, self._loss_fn
        for module in self._network.modules():
            for part in (*vars(module).values(), module):
                if optimizer is None and isinstance(part, torch.optim.Optimizer):
                    optimizer = part
                if loss_fn is None and any(
                    kind.__module__ == nn.modules.loss.__name__ for kind in type(part).__mro__
                ):
                    loss_fn = part
        return optimizer, loss_fn

    def training_step(self) -> Callable[[Any], Any]:
        """A function that trains on a batch. It returns the loss, detached.

        With a loss scale that may drop steps, it returns (loss, whether it overflowed, the scale); without an
        optimizer, what the network or the loss function returned. Puts the network into training mode.

        Raises InvalidValueError if the optimizer holds no parameter of the network or of the loss function.
        """
        network, optimizer, manager = self._network, self._optimizer, self._manager
        if optimizer is not None:
            self._check_held(optimizer)
        if not network.training:
            network.train()
        run = self._outputs_of(network) if self._loss_fn is None else self._loss_of(network)
        if optimizer is None:
            return self._step_without_optimizer(run)

        # The manager decides the scale; GradScaler multiplies and divides by it, and finds overflows.
        scaler = None
        if manager is not None:
            scaler = torch.amp.GradScaler(_device_of(network).type, float(manager.get_loss_scale()))

        def step(batch: Any) -> Any:
            loss = _loss_in(run(batch))
            optimizer.zero_grad()
            # A scaled loss would overflow in float16.
            scaled = loss if scaler is None else scaler.scale(loss.float())
            # A loss of several elements is trained on their sum.
            torch.autograd.backward(scaled, None if loss.numel() == 1 else torch.ones_like(scaled))
            if manager is None or scaler is None:
                optimizer.step()
                return loss.detach()
            # The optimizer gets gradients without the scale.
            scaler.unscale_(optimizer)
            scale, drops = scaler.get_scale(), manager.get_drop_overflow_update()
            if drops:
                # After an overflow the step is dropped: parameters and optimizer stay as they are.
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            # GradScaler lowers its scale after an overflow; by how much is the manager's decision.
            overflow = scaler.get_scale() < scale
            manager.update_loss_scale(overflow)
            scaler.update(float(manager.get_loss_scale()))
            return (loss.detach(), overflow, scale) if drops else loss.detach()

        return step

    def _step_without_optimizer(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function that calls the network, which may train itself; the log says once if it does not."""
        parameters = [*self._network.parameters()]
        versions: list[int] | None = [parameter._version for parameter in parameters]

        def step(batch: Any) -> Any:
            nonlocal versions
            outputs = _detached(run(batch))
            # A network that trains itself has gradients or newer versions of parameters after a step.
            if versions is not None:
                is_trained = any(parameter.grad is not None for parameter in parameters)
                if not is_trained and versions == [parameter._version for parameter in parameters]:
                    logger.warning(
                        "the model has no optimizer, and its first step changed no weight of %s and made no "
                        "gradient: nothing is trained; pass optimizer= to Model",
                        type(self._network).__name__,
                    )
                versions = None
            return outputs

        return step

    def _check_held(self, optimizer: Any) -> None:
        modules = [module for module in (self._network, self._loss_fn) if isinstance(module, nn.Module)]
        known = {id(parameter) for module in modules for parameter in module.parameters()}
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not any(id(parameter) in known for parameter in held):
            raise InvalidValueError(
                f"optimizer must hold parameters of the network, got {type(optimizer).__name__} with "
                f"{len(held)} others, and {type(self._network).__name__} would not be trained; make it from "
                "network.parameters(), after anything that replaces them, such as fully_shard"
            )

    def evaluation_step(self) -> Callable[[Any], Any]:
        """A function of a batch: the outputs of `eval_network`, or else (loss, predictions, labels).

        To be used inside of `evaluating`.
        """
        if self._eval_network is not None:
            return self._outputs_of(self._eval_network)
        network, loss_fn = _local(self._network), self._loss_fn
        place, precision = self._around(network)

        def step(batch: Any) -> tuple[Any, Any, Any]:
            inputs, labels = _pair(batch)
            labels = place(labels)
            with precision():
                outputs = network(place(inputs))
                loss = loss_fn(outputs, labels)
            # Metrics get float32, whatever autocast computed in.
            if self._mixed and isinstance(outputs, Tensor) and outputs.is_floating_point():
                outputs = outputs.float()
            return loss, outputs, labels

        return step

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards, each module has the mode that it had before."""
        networks = [network for network in (self._network, self._eval_network) if network is not None]
        modes = [(module, module.training) for network in networks for module in network.modules()]
        try:
            for network in networks:
                network.eval()
            with torch.no_grad():
                yield
        finally:
            for module, was_training in modes:
                module.training = was_training
            # A forward without a backward leaves FSDP2's root with whole parameters: it is sharded again.
            for module in _sharded(networks):
                module.reshard()

    def predict(self, inputs: tuple[Any, ...]) -> Any:
        """The network's outputs in evaluation mode, without gradients."""
        with self.evaluating():
            return self._outputs_of(_local(self._network))(inputs)

    def _loss_of(self, network: nn.Module) -> Callable[[Any], Any]:
        """A function of a batch (data, labels) that returns the loss."""
        loss_fn = self._loss_fn
        place, precision = self._around(network)

        def loss_of(batch: Any) -> Any:
            inputs, labels = _pair(batch)
            with precision():
                return loss_fn(network(place(inputs)), place(labels))

        return loss_of

    def _outputs_of(self, network: nn.Module) -> Callable[[Any], Any]:
        """A function of a batch, whose parts are the arguments of the network, that returns its outputs."""
        place, precision = self._around(network)

        def outputs_of(batch: Any) -> Any:
            with precision():
                if isinstance(batch, Mapping):
                    return network(**{name: place(part) for name, part in batch.items()})
                if isinstance(batch, (tuple, list)):
                    return network(*[place(part) for part in batch])
                return network(place(batch))

        return outputs_of

    def _around(
        self, network: nn.Module
    ) -> tuple[Callable[[Any], Any], Callable[[], contextlib.AbstractContextManager[Any]]]:
        """What moves a part of a batch to the network's device, and what makes the context of its forward."""
        device = _device_of(network)
        return _placing(device), partial(
            torch.autocast, device.type
        ) if self._mixed else contextlib.nullcontext


def _device_of(network: nn.Module) -> torch.device:
    """The device of the first tensor of the network."""
    return next((tensor.device for _, tensor in entries(network)), torch.device("cpu"))


def _local(network: nn.Module) -> nn.Module:
    """The network without DDP, which would wait for other ranks, which may have fewer batches."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        inner: nn.Module = network.module
        return inner
    return network


def _sharded(networks: list[nn.Module]) -> list[Any]:
    """The modules that fully_shard made."""
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for network in networks for module in network.modules() if isinstance(module, FSDPModule)]


def _placing(device: torch.device) -> Callable[[Any], Any]:
    """A function that moves a part of a batch to a device, and makes tensors of NumPy's arrays."""
    is_host = device.type == "cpu"

    def place(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part if is_host and part.is_cpu else part.to(device, non_blocking=True)
        if isinstance(part, np.ndarray):
            # torch has no read-only tensors.
            writable = part if part.flags.writeable else part.copy()
            return torch.from_numpy(writable).to(device, non_blocking=True)
        if isinstance(part, Mapping):
            return {name: place(each) for name, each in part.items()}
        if type(part) in (tuple, list):
            return type(part)(place(each) for each in part)
        return part

    return place


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        instead = ""
        if isinstance(batch, Mapping):
            size = f" with the keys {', '.join(map(repr, [*batch][:8]))}"
            instead = "give the DataLoader a collate_fn that returns (data, labels), or "
        raise InvalidValueError(
            f"with a loss_fn, a batch must be (data, labels), got a {type(batch).__name__}{size}; {instead}"
            "compute the loss in the network and pass loss_fn=None for other batches"
        )
    return batch[0], batch[1]


def _loss_in(outputs: Any) -> Tensor:
    """The loss: the outputs themselves, or the first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    loss = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    # The models of Hugging Face return their loss by name.
    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    if not isinstance(loss, Tensor):
        raise InvalidTypeError(
            f"the loss must be a tensor, got {type(loss).__name__}; return it from loss_fn or, with "
            "loss_fn=None, from the network, alone or as the first output"
        )
    return loss


def _detached(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if type(outputs) in (tuple, list):
        return type(outputs)(_detached(each) for each in outputs)
    return outputs


def outputs_of(network: nn.Module, array: Any) -> Any:
    """The outputs of a network for an array, in the dtype and on the device of its first parameter."""
    parameter = next(network.parameters(), None)
    given = torch.from_numpy(array)
    with torch.no_grad():
        return network(given if parameter is None else given.to(parameter))

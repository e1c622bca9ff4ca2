"""The parameters of a torch model: their filter axes, tied names, and current values without copies."""

from collections.abc import Hashable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch import FRAMEWORK
from distsummary.frameworks.torch_modules import entries, has_addresses, memory, unwrap
from distsummary.landscapes.directions.array_rows import Rows
from distsummary.landscapes.directions.normalization import FilterAxis
from distsummary.landscapes.directions.normals import Array

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a tied parameter under each of its names."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found |= dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in found.items():
        if type(tensor.data) is not Tensor:
            raise InvalidTypeError(
                f"{name} is a {type(tensor.data).__name__}, and landscapes need plain tensors; "
                "gather a sharded model on one device first"
            )
    return found


def filter_axes(model: nn.Module) -> dict[str, FilterAxis]:
    """The filter axes that are not 0, by the parameter's first name; `normalization` explains these axes."""
    found: dict[str, FilterAxis] = {}
    tied = tied_names(model)
    for path, module in unwrap(model).named_modules():
        axis: FilterAxis | None = None
        if isinstance(module, _TRANSPOSED):  # weights (in, out / groups, ...)
            axis = (1, module.groups) if module.groups > 1 else 1
        elif type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
            # The linear layer of GPT-2 has transposed weights.
            axis = 1
        if axis is not None:
            name = f"{path}.weight" if path else "weight"
            found[tied.get(name, name)] = axis
    return found


def tied_names(model: nn.Module) -> dict[str, str]:
    """Maps each further name of a parameter to its first name.

    Parameters that view the same memory in the same way count as tied, as after `head.weight.data =
    embedding.weight.data`.
    """
    first: dict[Hashable, str] = {}
    found = {}
    for name, parameter in unwrap(model).named_parameters(remove_duplicate=False):
        known = first.setdefault(memory(parameter), name)
        if known != name:
            found[name] = known
    return found


def tie(model: nn.Module) -> None:
    """Make parameters that share memory one object, so that one assignment to `.data` changes all of them.

    Raises InvalidValueError for scripted models, where that is impossible.
    """
    for module, name, first, parameter in list(sharing(model)):
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidValueError(
                f"{first} and {name} of a scripted model share memory; make them one parameter before "
                f"torch.jit.script: {name} = {first}"
            )
        setattr(module, name.rpartition(".")[2], parameter)


def sharing(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Parameter]]:
    """Parameters that share memory with an earlier one: (module, name, earlier name, earlier parameter)."""
    first: dict[Hashable, tuple[str, nn.Parameter]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{leaf}" if path else leaf
            known, shared = first.setdefault(memory(parameter), (name, parameter))
            if shared is not parameter:
                yield module, name, known, shared


def in_memory(model: nn.Module, tied: Mapping[str, str]) -> dict[str, Array]:
    """Arrays at the parameters' addresses, only for comparing addresses; the names in `tied` are left out."""
    named = unwrap(model).named_parameters()
    return {n: np.asarray(_Address(p)) for n, p in named if n not in tied and has_addresses(p)}


class _Address:
    """The array interface of a tensor on any device and of any dtype."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "version": 3,
        }


class OwnState(Mapping[str, Array]):
    """The values of tensors by name, as read-only arrays that view the tensors' memory.

    A tensor on another device, or of a dtype unknown to NumPy, is copied at each access. Pickling copies
    all values.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    @classmethod
    def of(cls, model: nn.Module) -> "OwnState":
        """The model's parameters and persistent buffers; tied tensors only under their first name.

        Raises for a parameter or buffer that has no values yet, or that is sparse.
        """
        tied = tied_names(model)
        found = {name: tensor for name, tensor in entries(model) if name not in tied}
        for name, tensor in found.items():
            if nn.parameter.is_lazy(tensor):
                raise InvalidValueError(f"{name} is lazy, without a shape; call the model with a batch first")
            if tensor.is_meta:
                raise InvalidValueError(
                    f"{name} is on the device meta, without values; load the model's values first, "
                    "also those that accelerate has offloaded"
                )
            if tensor.layout != torch.strided:
                raise InvalidTypeError(
                    f"{name} is sparse ({tensor.layout}), and landscapes need dense tensors; keep "
                    "it dense and call to_sparse() in forward(), or make it a buffer with persistent=False"
                )
        return cls(found)

    def __getitem__(self, name: str) -> Array:
        return _array(self.tensors[name])

    def __contains__(self, name: object) -> bool:
        # Mapping's own method would copy the values.
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def rows(self, name: str) -> Rows:
        """See InRows; reading copies at most the requested rows."""
        tensor = self.tensors[name]
        by_row = tensor if tensor.dim() else tensor[None]
        return Rows(tuple(tensor.shape), lambda start, stop: _array(by_row[start:stop]))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Array]]]:
        return dict, ({name: self[name] for name in self},)


def _array(tensor: Tensor) -> Array:
    if tensor.device.type != "cpu":
        return FRAMEWORK.to_numpy(tensor)
    try:
        # Not numpy(): after it FSDP could not resize the memory.
        array: Array = np.from_dlpack(tensor)
    except (TypeError, RuntimeError, BufferError):
        # The tensor is sparse, or NumPy does not have its dtype.
        return FRAMEWORK.to_numpy(tensor)
    array.flags.writeable = False
    return array

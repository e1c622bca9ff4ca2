"""What a checkpoint takes from torch and gives back: an optimizer's state, and gathered shards."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidValueError
from distsummary.frameworks.torch_private import set_stepped

Array = NDArray[Any]
logger = guarded_log(__name__)

STATE, GROUP = "optimizer/state/", "optimizer/group/"


def optimizer_entries(optimizer: Any) -> dict[str, Any]:
    """The state of each parameter and the numbers of each group by name: tensors, numbers, or tuples of them.

    `optimizer/state/3/exp_avg` belongs to the fourth parameter in the order of the groups, as in torch's
    `state_dict`; `optimizer/group/0/lr` to the first group. The state of a parameter that holds anything else
    is left to `optimizer_rest`, as a whole; entries of a group of other kinds are named in the log.
    """
    found: dict[str, Any] = {}
    odd: list[str] = []
    for place, entries in _states(optimizer):
        if not _is_odd(entries):
            for key, value in entries.items():
                _put(found, odd, f"{STATE}{place}/{key}", value)
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key not in ("params", "param_names"):
                _put(found, odd, f"{GROUP}{number}/{key}", value)
    if odd:
        logger.warning(
            "a checkpoint cannot hold these entries of %s, which are no tensors or numbers: %s",
            type(optimizer).__name__,
            ", ".join(odd[:5]),
        )
    return found


def optimizer_rest(optimizer: Any) -> dict[str, Any]:
    """See `Framework.optimizer_rest`."""
    parameters = _parameters(optimizer)
    return {
        "class": type(optimizer).__name__,
        "shapes": [[] if torch.nn.parameter.is_lazy(one) else list(one.shape) for one in parameters],
        "odd": {str(place): dict(entries) for place, entries in _states(optimizer) if _is_odd(entries)},
    }


def load_optimizer(
    optimizer: Any, state: Mapping[str, Array], odd: Mapping[str, Any] | None = None
) -> list[str]:
    """Write what `optimizer_entries` gave, as arrays, into an optimizer; returns the unused names.

    A sharded parameter takes its slice of whole arrays. Raises InvalidValueError, and changes nothing, if
    the state belongs to more parameters or groups than this optimizer has.
    """
    parameters = _parameters(optimizer)
    groups = optimizer.state_dict()["param_groups"]
    tensors: dict[int, dict[str, Any]] = {int(place): dict(one) for place, one in (odd or {}).items()}
    unused: list[str] = []
    for name in state:
        prefix = STATE if name.startswith(STATE) else GROUP
        number, _, key = name.removeprefix(prefix).partition("/")
        if not name.startswith(prefix) or not number.isdecimal() or not key:
            unused.append(name)
            continue
        place, size = int(number), len(parameters) if prefix == STATE else len(groups)
        if place >= size:
            what = "parameters" if prefix == STATE else "parameter groups"
            raise InvalidValueError(
                f"{name} belongs to an optimizer with more {what} than the {size} of this "
                f"{type(optimizer).__name__}; make the optimizer as in the training that saved it"
            )
        if prefix == STATE:
            tensors.setdefault(place, {})[key] = _state_like(np.asarray(state[name]), parameters[place])
        else:
            groups[place][key] = _number_like(np.asarray(state[name]), groups[place].get(key))
    # All names fit: only now is the optimizer changed.
    if tensors or any(name not in unused for name in state):
        optimizer.load_state_dict({"state": tensors, "param_groups": groups})
        set_stepped(optimizer)
    return unused


def whole(tensor: Tensor) -> Tensor:
    """The whole of a DTensor: a collective operation, which all ranks of its mesh must call; else itself."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def agreed(value: str) -> str:
    """Rank 0's value, on all ranks: a collective operation; `value` itself without torch.distributed."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def as_tensor(array: Array) -> Tensor:
    """A tensor with a copy of the array, in native byte order."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def as_tensor_of(array: Array, dtype: str) -> Tensor:
    """A tensor with a copy of the array, of a dtype by torch's name for it, such as "torch.bfloat16"."""
    return as_tensor(array).to(getattr(torch, dtype.removeprefix("torch.")))


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _states(optimizer: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The state of each parameter that has one, by its place."""
    index = {id(p): i for i, p in enumerate(_parameters(optimizer))}
    for parameter, entries in optimizer.state.items():
        yield index.get(id(parameter), -1), entries


def _is_odd(entries: Mapping[str, Any]) -> bool:
    """Whether a state holds more than tensors and numbers, such as the lists of LBFGS."""
    return not all(isinstance(value, Tensor | bool | int | float | np.number) for value in entries.values())


def _put(found: dict[str, Any], odd: list[str], name: str, value: Any) -> None:
    if isinstance(value, Tensor | bool | int | float | np.number):
        found[name] = value
    elif isinstance(value, list | tuple) and all(isinstance(one, int | float) for one in value):
        found[name] = tuple(float(one) for one in value)
    elif value is not None and not isinstance(value, str):
        odd.append(name)


def _number_like(array: Array, known: Any) -> Any:
    """A number, or tuple of numbers, of the kind that the group has now."""
    if array.ndim:
        return tuple(float(one) for one in array)
    if isinstance(known, Tensor):
        return torch.full_like(known, array.item())
    return array.item()


def _state_like(array: Array, parameter: Tensor) -> Tensor:
    """A tensor of the state; of a sharded parameter, the slice that belongs to its local part."""
    value = as_tensor(array)
    if value.shape != parameter.shape or not hasattr(parameter, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # Each rank has the whole value, and takes its slice of it without a collective operation.
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )

"""The states of objects that are no tensors, such as a scheduler's, as JSON and arrays, without a pickle."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from distsummary.base.checked_json import parse_json
from distsummary.checkpoints.mapped import Array
from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.frameworks.base import framework_of, load

KIND = "$"  # the key of a dict that stands for something that JSON does not have


def state_entries(name: str, state: object) -> dict[str, "Array | str"]:
    """The state as entries of a checkpoint: `<name>`, a text in JSON, and `<name>/<number>`, its arrays.

    A state is made of None, bool, int, float, str, bytes, tensors, arrays, and of lists, tuples, dicts and
    Counters of these, as the state dicts of torch's schedulers and scalers are. Raises InvalidTypeError for
    others.
    """
    arrays: list[Array] = []

    def encoded(value: Any, where: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list):
            return [encoded(one, f"{where}[{i}]") for i, one in enumerate(value)]
        if isinstance(value, tuple):
            return {KIND: "tuple", "items": [encoded(one, f"{where}[{i}]") for i, one in enumerate(value)]}
        if isinstance(value, Mapping):
            # JSON keeps only dicts whose keys are text; others become lists of pairs.
            if not isinstance(value, Counter) and all(isinstance(key, str) and key != KIND for key in value):
                return {key: encoded(one, f"{where}[{key!r}]") for key, one in value.items()}
            items = [[encoded(key, where), encoded(one, f"{where}[{key!r}]")] for key, one in value.items()]
            return {KIND: "counter" if isinstance(value, Counter) else "dict", "items": items}
        if isinstance(value, bytes | bytearray):
            arrays.append(np.frombuffer(bytes(value), np.uint8))
            return {KIND: "bytes", "number": len(arrays) - 1}
        framework = framework_of(value)
        if not framework.is_tensor(value):
            raise InvalidTypeError(
                f"{where} is a {type(value).__name__}, which a checkpoint cannot hold without pickling it; "
                "leave it out of the state"
            )
        arrays.append(framework.to_numpy(value))
        return {KIND: framework.name, "dtype": str(value.dtype), "number": len(arrays) - 1}

    text = json.dumps(encoded(state, name))
    return {name: text} | {f"{name}/{number}": array for number, array in enumerate(arrays)}


def state_of(name: str, text: str, entries: Mapping[str, Array]) -> Any:
    """The state that `state_entries` turned into a text and arrays; raises DamagedFileError for others."""

    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(one) for one in value]
        if not isinstance(value, dict):
            return value
        kind = value.get(KIND)
        if kind is None:
            return {key: decoded(one) for key, one in value.items()}
        if kind == "tuple":
            return tuple(decoded(one) for one in value["items"])
        if kind in ("dict", "counter"):
            items = {decoded(key): decoded(one) for key, one in value["items"]}
            return Counter(items) if kind == "counter" else items
        array = entries[f"{name}/{value['number']}"]
        if kind == "bytes":
            return np.asarray(array).tobytes()
        if kind == "torch":
            # If torch is missing, this raises the error that says how to install it.
            load("torch")
            from distsummary.frameworks.torch_checkpoint import as_tensor_of

            return as_tensor_of(array, value["dtype"])
        return np.array(array, np.dtype(value["dtype"]))

    try:
        return decoded(parse_json(text, name="its text", is_finite=False))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"the state {name!r} of the checkpoint is damaged: {error!r}") from error

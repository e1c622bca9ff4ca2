"""Scalars of a training loop: floats, or device tensors whose copies to the host are still in progress."""

import math
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.checks import check_number, check_text, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import MAX_TAG_BYTES
from distsummary.frameworks.base import Computed, Pending, framework_of, spec_of

Scalar: TypeAlias = float | Pending


def check_tag(tag: object) -> str:
    """Return `tag` if files and viewers accept it (text, not blank, at most 1 KiB), else raise an error."""
    if not isinstance(tag, str):
        raise InvalidTypeError(f"the name of a value must be str, got {tag!r} of type {type(tag).__name__}")
    if not tag.strip():
        raise InvalidValueError(f"the name of a value must not be blank, got {tag!r}")
    # A character has at most four bytes, so that most names need not be encoded.
    if len(tag) * 4 > MAX_TAG_BYTES and len(tag.encode(errors="replace")) > MAX_TAG_BYTES:
        raise InvalidValueError(
            f"the name of a value must have at most {MAX_TAG_BYTES} bytes, got {tag[:40]!r}...; shorten it"
        )
    if not tag.isascii():
        check_text("the name of a value", tag)
    return tag


def scalar(name: str, value: object, *, instead: str = "log its mean, for example") -> Scalar:
    """Convert a logged value to a float, or to a pending copy of a device tensor.

    Args:
        name: the name of the value in error messages.
        value: int, float, or a tensor or array of one element (any shape), of any framework.
        instead: what the error message advises for an array of more elements.

    Raises:
        InvalidTypeError: the value is not a real number. InvalidValueError: it does not have exactly one
            element, or is an integer beyond the range of float64.
    """
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            raise InvalidValueError(f"{name} is an integer beyond float64; log its logarithm") from None
    framework = framework_of(value)
    if not framework.is_tensor(value):
        # Such as a Decimal or a Fraction.
        with suppress(InvalidTypeError):
            return check_number(name, value)
        raise _not_a_number(name, value)
    tensor: Any = value
    # The usual tensors of one number are done here, without the checks below.
    number = framework.number(tensor)
    if number is not None:
        return number
    refuse_sparse(name, tensor, instead)
    if not _is_real(spec_of(name, tensor).dtype):
        raise _not_a_number(name, value)
    if any(extent != 1 for extent in tensor.shape):
        raise InvalidValueError(f"{name} must have one element, got shape {tuple(tensor.shape)}; {instead}")
    if isinstance(tensor, (np.ndarray, np.generic)):
        return float(framework.to_numpy(tensor).reshape(-1)[0])
    # The number on this rank would be a part of the value, such as the norm of a shard.
    if framework.split_axes(tensor):
        raise InvalidValueError(
            f"{name} is spread over ranks, each of which has a part; log value.full_tensor(), which all "
            "ranks must call"
        )
    return mean_later(framework.snapshot(tensor))


def refuse_sparse(name: str, tensor: Any, instead: str = "") -> None:
    """Raise InvalidTypeError for a sparse tensor: made dense here, its zeros might fill the memory.

    `instead`: what the error message advises for more than one element.
    """
    layout = str(getattr(tensor, "layout", ""))
    # Torch's layouts are called torch.sparse_coo, torch.sparse_csr and so on.
    if "sparse" in layout:
        shape = tuple(tensor.shape)
        raise InvalidTypeError(
            f"{name} must be dense, got {layout} of shape {shape}; convert it: value.to_dense()"
            + (f", and {instead}" if instead and math.prod(shape) != 1 else "")
        )


def check_named(method: str, values: object) -> Mapping[str, object]:
    """Return `values` if it is a mapping, else raise InvalidTypeError that shows how to call `method`."""
    if not isinstance(values, Mapping):
        raise InvalidTypeError(
            f"values must be a dict of names and numbers, got {reprlib.repr(values)} of type "
            f'{type(values).__name__}; write {method}(loss=...) or {method}({{"loss": ...}})'
        )
    return values


def scalars(given: object) -> dict[str, Scalar]:
    """Check and convert a mapping of names to logged values; raises what `scalar` and `check_tag` raise."""
    check_type("values", given, Mapping)
    assert isinstance(given, Mapping)
    return {check_tag(name): scalar(name, value) for name, value in given.items()}


def mean_of(outputs: object) -> Scalar | None:
    """The loss in a network's output: a number, or the mean of a tensor; None for anything else.

    If the output is a list or tuple, its first item is used.
    """
    if isinstance(outputs, (list, tuple)):
        outputs = outputs[0] if outputs else None
    if outputs is None:
        return None
    if isinstance(outputs, (int, float)):
        return float(outputs)
    framework = framework_of(outputs)
    tensor: Any = outputs
    if not framework.is_tensor(outputs):
        return None
    number = framework.number(tensor)
    if number is not None:
        return number
    if not _is_real(spec_of("the loss", tensor).dtype):
        return None
    if isinstance(tensor, (np.ndarray, np.generic)):
        return _mean(framework.to_numpy(tensor))
    return mean_later(framework.snapshot(tensor))


def resolve(value: Scalar) -> float:
    """The value as a float; waits if its copy from the device is still in progress."""
    return value if isinstance(value, float) else float(np.mean(value.result()))


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf"


def mean_later(pending: Pending) -> Computed:
    """The mean over all elements of a pending array, computed when it is awaited."""
    return Computed(pending, _mean)


def _mean(value: Any) -> float:
    """The mean of an array; NaN if it is empty."""
    array = np.asarray(value)
    return float(array.mean(dtype=np.float64)) if array.size else float("nan")


def _not_a_number(name: str, value: object) -> InvalidTypeError:
    dtype = getattr(value, "dtype", None)
    kind = type(value).__name__ + (f" of dtype {dtype}" if dtype is not None else "")
    # As the metrics of torchmetrics, ignite and Keras.
    methods = (method for method in ("compute", "result") if callable(getattr(type(value), method, None)))
    remedy = next((f"; log what its method {method}() returns" for method in methods), "")
    return InvalidTypeError(f"{name} must be a real number or a tensor of one element, got {kind}{remedy}")

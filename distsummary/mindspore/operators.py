"""The values that MindSpore's summary operators have left in its cache, passed to whoever records them."""

import re
from typing import Any

from mindspore.ops.operations import debug_ops
from mindspore.train.summary import summary_record

from distsummary.collect.values import operators
from distsummary.collect.values.sources import Source
from distsummary.collect.values.taps import Taps
from distsummary.format.records import Value
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import StepContext
from distsummary.training.values import resolve, scalar

_KEY = re.compile(r"(.+)\[:(.+)\]")  # tag[:Scalar] ..., as MindSpore parses it
NOT_A_KEY = "a value in MindSpore's cache of operators has no kind"


def take_cache() -> dict[tuple[str, str], Any]:
    """Empty the cache; returns (plugin, tag) -> Tensor, for keys without a plugin ("", key).

    A graph fills it by tag, so that of several steps the last value is left. PyNative mode lists all values.
    """
    found: dict[tuple[str, str], Any] = {}
    for key, tensor in summary_record._get_summary_tensor_data().items():
        match = _KEY.match(key) if isinstance(key, str) else None
        found[(match[2].lower(), match[1]) if match else ("", str(key))] = tensor
    listed, debug_ops.SUMMARY_TENSOR_CACHE = debug_ops.SUMMARY_TENSOR_CACHE, []
    for operator, tag, tensor in listed:
        found[operator.removesuffix("Summary").lower(), tag] = tensor
    return found


def drain() -> None:
    """Pass what is in the cache to the listeners; what cannot be recorded is counted there."""
    for (plugin, tag), tensor in take_cache().items():
        if not plugin:
            operators.refuse("scalar", f"{NOT_A_KEY}: {tag}")
        elif plugin == "scalar":
            _tap_number(tag, tensor)
        else:
            operators.tap(plugin, tag, tensor)


def _tap_number(tag: str, tensor: Any) -> None:
    try:
        number = resolve(scalar(f"the scalar {tag!r}", tensor))
    except Exception as error:
        operators.refuse("scalar", f"not recorded: {error}")
    else:
        operators.tap_number(tag, number)


class CachedOperators(Source):
    """Drains the cache at the steps at which something that is tapped may be recorded."""

    what = "MindSpore's operators"

    def __init__(self, taps: Taps) -> None:
        self._taps = taps

    def plan(self, last: int) -> None:
        """See `Source`."""
        self.at = self._taps.after(last)

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`: none, because the listeners add what is tapped."""
        drain()
        return []

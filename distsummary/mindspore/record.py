"""SummaryRecord inside MindSpore: also records what MindSpore's summary operators have cached."""

from collections.abc import Callable
from typing import Any

from mindspore.nn import Cell

from distsummary.base.checks import check_type
from distsummary.collect import record
from distsummary.mindspore.operators import drain, take_cache


class SummaryRecord(record.SummaryRecord):
    """MindSpore's SummaryRecord, with the arguments and methods of `distsummary.SummaryRecord`.

    `network` and `train_network` are Cells, whose graph is recorded once it was compiled. Values are Tensors,
    Parameters, arrays or numbers. There may be several records in a process; one value of an operator goes to
    all of them.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # What operators left there before belongs to no step of this record.
        take_cache()

    def record(
        self, step: int, train_network: object = None, plugin_filter: Callable[[str], bool] | None = None
    ) -> bool:
        """Write the values collected so far, and those that operators cached, as the event of a step.

        Raises InvalidTypeError for bad arguments, WriteError for an earlier failure (`raise_exception`).
        """
        check_type("train_network", train_network, Cell, optional=True)
        if self._mode == "train":
            self._failures.call("operators", drain)
        return super().record(step, train_network, plugin_filter)

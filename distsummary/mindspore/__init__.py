"""Inside MindSpore: all names of `mindspore.train`, and its four operators, for MindSpore's own `Model`.

`SummaryCollector` and `SummaryRecord` are ours, `SummaryLandscape` is MindSpore's with a few repairs. The
others, which write no event files, are MindSpore's own.
"""

from distsummary.mindspore.supported import require_mindspore

require_mindspore()

from mindspore.ops import (  # noqa: E402  # MindSpore's version is checked before
    HistogramSummary,
    ImageSummary,
    ScalarSummary,
    TensorSummary,
)
from mindspore.train import *  # noqa: E402, F403
from mindspore.train import __all__ as _of_train  # noqa: E402

from distsummary.mindspore.collector import SummaryCollector  # noqa: E402
from distsummary.mindspore.landscape import SummaryLandscape  # noqa: E402
from distsummary.mindspore.record import SummaryRecord  # noqa: E402

__all__ = [
    "HistogramSummary",
    "ImageSummary",
    "ScalarSummary",
    "SummaryCollector",
    "SummaryLandscape",
    "SummaryRecord",
    "TensorSummary",
]
__all__ += [name for name in _of_train if name not in __all__]

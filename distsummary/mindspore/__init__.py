"""Inside MindSpore: the names of `mindspore` and `mindspore.train` that record, for MindSpore's own `Model`.

`SummaryCollector` and `SummaryRecord` are ours, `SummaryLandscape` is MindSpore's with a few repairs. The
others, which write no event files, are MindSpore's own, the four operators among them.
"""

from distsummary.mindspore.supported import require_mindspore

require_mindspore()

from mindspore.ops import (  # noqa: E402  # MindSpore's version is checked before
    HistogramSummary,
    ImageSummary,
    ScalarSummary,
    TensorSummary,
)
from mindspore.train import (  # noqa: E402
    CheckpointConfig,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    ModelCheckpoint,
    TimeMonitor,
)

from distsummary.mindspore.collector import SummaryCollector  # noqa: E402
from distsummary.mindspore.landscape import SummaryLandscape  # noqa: E402
from distsummary.mindspore.record import SummaryRecord  # noqa: E402

__all__ = [
    "CheckpointConfig",
    "HistogramSummary",
    "History",
    "ImageSummary",
    "LambdaCallback",
    "LearningRateScheduler",
    "LossMonitor",
    "ModelCheckpoint",
    "ScalarSummary",
    "SummaryCollector",
    "SummaryLandscape",
    "SummaryRecord",
    "TensorSummary",
    "TimeMonitor",
]

"""Records a training run of many ranks (summaries and lineage) and draws its loss landscapes.

Public names are loaded on first use: importing this package imports neither Ray nor a framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers do not run `__getattr__`: they need the names imported.
if TYPE_CHECKING:
    from distsummary import summary as summary  # modules, named as ds.summary and ds.thor
    from distsummary import thor as thor
    from distsummary._init import init
    from distsummary.aggregate.joining import admitted as admitted  # not public: for the collector
    from distsummary.aggregate.joining import coordinator as coordinator  # likewise
    from distsummary.aggregate.merge import MergeReport, merge_run
    from distsummary.base.health import Health
    from distsummary.checkpoints.load import load_checkpoint, load_param_into_net
    from distsummary.collect.record import SummaryRecord
    from distsummary.collect.record_options import Record
    from distsummary.collect.summary_collector import SummaryCollector
    from distsummary.diagnosis.diagnose import Diagnose
    from distsummary.errors import DistSummaryError, LandscapeCancelled, LandscapeError, NonFiniteError
    from distsummary.format.pb.mindspore_anf_ir_pb2 import GraphProto, ModelProto
    from distsummary.format.pb.mindspore_lineage_pb2 import (
        DatasetGraph,
        EvaluationLineage,
        TrainLineage,
        UserDefinedInfo,
    )
    from distsummary.format.pb.mindspore_summary_pb2 import LossLandscape
    from distsummary.frameworks.base import Curvature, CurvatureDirection, CurvatureSource
    from distsummary.landscapes.directions.recipe import Directions
    from distsummary.landscapes.generator import landscape
    from distsummary.landscapes.model.quantities import Evaluation
    from distsummary.landscapes.output.loss_grid import LossGrid
    from distsummary.landscapes.request import Compute, Plane
    from distsummary.landscapes.run.progress import Progress
    from distsummary.landscapes.summary_landscape import SummaryLandscape
    from distsummary.launching.launcher import launch
    from distsummary.model.loss_scale import (
        DynamicLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
    )
    from distsummary.model.metrics import Accuracy, Loss
    from distsummary.model.model import Model
    from distsummary.rundir.topology import Topology
    from distsummary.runs.cost import Bill
    from distsummary.runs.recorded_run import RankView, RecordedRun, open_run
    from distsummary.runs.run_metrics import RunMetric
    from distsummary.runs.run_row import RunRow
    from distsummary.runs.run_table import RunTable, open_runs
    from distsummary.runs.table import ScalarTable, Table, ValueTable
    from distsummary.summary import HistogramSummary, ImageSummary, ScalarSummary, TensorSummary
    from distsummary.thor.converters import ConvertModelUtils, ConvertNetUtils
    from distsummary.training.callbacks import Callback, CallbackParams, LossMonitor, RunContext, TimeMonitor
    from distsummary.training.checkpoint_config import CheckpointConfig
    from distsummary.training.evaluation import EvaluationRun
    from distsummary.training.history import History
    from distsummary.training.lambda_callback import LambdaCallback
    from distsummary.training.learning_rate import LearningRateScheduler
    from distsummary.training.model_checkpoint import ModelCheckpoint
    from distsummary.training.resume import resume
    from distsummary.training.resumed import Resumed
    from distsummary.training.run import Run
    from distsummary.view.report import NotebookPage

__version__ = "0.1.0"

__all__ = [
    "Accuracy",
    "Bill",
    "Callback",
    "CallbackParams",
    "CheckpointConfig",
    "Compute",
    "ConvertModelUtils",
    "ConvertNetUtils",
    "Curvature",
    "CurvatureDirection",
    "CurvatureSource",
    "DatasetGraph",
    "Diagnose",
    "Directions",
    "DistSummaryError",
    "DynamicLossScaleManager",
    "Evaluation",
    "EvaluationLineage",
    "EvaluationRun",
    "FixedLossScaleManager",
    "GraphProto",
    "Health",
    "HistogramSummary",
    "History",
    "ImageSummary",
    "LambdaCallback",
    "LandscapeCancelled",
    "LandscapeError",
    "LearningRateScheduler",
    "Loss",
    "LossGrid",
    "LossLandscape",
    "LossMonitor",
    "LossScaleManager",
    "MergeReport",
    "Model",
    "ModelCheckpoint",
    "ModelProto",
    "NonFiniteError",
    "NotebookPage",
    "Plane",
    "Progress",
    "RankView",
    "Record",
    "RecordedRun",
    "Resumed",
    "Run",
    "RunContext",
    "RunMetric",
    "RunRow",
    "RunTable",
    "ScalarSummary",
    "ScalarTable",
    "SummaryCollector",
    "SummaryLandscape",
    "SummaryRecord",
    "Table",
    "TensorSummary",
    "TimeMonitor",
    "Topology",
    "TrainLineage",
    "UserDefinedInfo",
    "ValueTable",
    "init",
    "landscape",
    "launch",
    "load_checkpoint",
    "load_param_into_net",
    "merge_run",
    "open_run",
    "open_runs",
    "resume",
]

_NAMES_OF = {  # module -> its public names, as above: only type checkers run those imports
    "distsummary._init": ("init",),
    "distsummary.aggregate.merge": ("MergeReport", "merge_run"),
    "distsummary.checkpoints.load": ("load_checkpoint", "load_param_into_net"),
    "distsummary.collect.summary_collector": ("SummaryCollector",),
    "distsummary.collect.record": ("SummaryRecord",),
    "distsummary.collect.record_options": ("Record",),
    "distsummary.diagnosis.diagnose": ("Diagnose",),
    "distsummary.errors": ("DistSummaryError", "LandscapeCancelled", "LandscapeError", "NonFiniteError"),
    "distsummary.base.health": ("Health",),
    "distsummary.aggregate.joining": ("admitted", "coordinator"),
    "distsummary.frameworks.base": ("Curvature", "CurvatureDirection", "CurvatureSource"),
    "distsummary.landscapes.directions.recipe": ("Directions",),
    "distsummary.landscapes.generator": ("landscape",),
    "distsummary.landscapes.model.quantities": ("Evaluation",),
    "distsummary.landscapes.output.loss_grid": ("LossGrid",),
    "distsummary.landscapes.request": ("Compute", "Plane"),
    "distsummary.landscapes.run.progress": ("Progress",),
    "distsummary.landscapes.summary_landscape": ("SummaryLandscape",),
    "distsummary.launching.launcher": ("launch",),
    "distsummary.model.metrics": ("Accuracy", "Loss"),
    "distsummary.format.pb.mindspore_anf_ir_pb2": ("GraphProto", "ModelProto"),
    "distsummary.format.pb.mindspore_lineage_pb2": (
        "DatasetGraph",
        "EvaluationLineage",
        "TrainLineage",
        "UserDefinedInfo",
    ),
    "distsummary.format.pb.mindspore_summary_pb2": ("LossLandscape",),
    "distsummary.runs.cost": ("Bill",),
    "distsummary.runs.run_metrics": ("RunMetric",),
    "distsummary.runs.run_row": ("RunRow",),
    "distsummary.runs.run_table": ("RunTable", "open_runs"),
    "distsummary.runs.recorded_run": ("RankView", "RecordedRun", "open_run"),
    "distsummary.runs.table": ("ScalarTable", "Table", "ValueTable"),
    "distsummary.summary": ("HistogramSummary", "ImageSummary", "ScalarSummary", "TensorSummary"),
    "distsummary.rundir.topology": ("Topology",),
    "distsummary.training.callbacks": (
        "Callback",
        "CallbackParams",
        "LossMonitor",
        "RunContext",
        "TimeMonitor",
    ),
    "distsummary.training.checkpoint_config": ("CheckpointConfig",),
    "distsummary.training.evaluation": ("EvaluationRun",),
    "distsummary.training.history": ("History",),
    "distsummary.training.lambda_callback": ("LambdaCallback",),
    "distsummary.training.learning_rate": ("LearningRateScheduler",),
    "distsummary.model.loss_scale": (
        "DynamicLossScaleManager",
        "FixedLossScaleManager",
        "LossScaleManager",
    ),
    "distsummary.model.model": ("Model",),
    "distsummary.training.model_checkpoint": ("ModelCheckpoint",),
    "distsummary.training.resume": ("resume",),
    "distsummary.training.resumed": ("Resumed",),
    "distsummary.training.run": ("Run",),
    "distsummary.view.report": ("NotebookPage",),
    "distsummary.thor.converters": ("ConvertModelUtils", "ConvertNetUtils"),
}
_DEVICE = "network.to(device); Model moves the batches there"
_OWN_CALLBACK = "a Callback of your own, as in docs/callbacks.md"
_NOT_OURS = {  # names of MindSpore -> what to do instead
    "context": _DEVICE, "set_context": _DEVICE,
    "set_seed": "torch.manual_seed",
    "Tensor": "torch.tensor", "Parameter": "torch.nn.Parameter", "nn": "torch.nn", "ops": "torch",
    "dataset": "torch.utils.data, or any iterable of batches",
    "grad": "loss.backward()", "value_and_grad": "loss.backward()",
    "save_checkpoint": "ModelCheckpoint",
    "train": "the names themselves: from distsummary import Model",
    "set_auto_parallel_context": "torch.distributed", "communication": "torch.distributed",
    "EarlyStopping": _OWN_CALLBACK, "ReduceLROnPlateau": _OWN_CALLBACK, "BackupAndRestore": _OWN_CALLBACK,
    "OnRequestExit": "CheckpointConfig(exception_save=True)",
    "jit": "torch.compile", "GRAPH_MODE": "torch.compile", "PYNATIVE_MODE": "nothing: torch runs eagerly",
}  # fmt: skip
_MODULES = ("summary", "thor")  # that users name as ds.summary and ds.thor
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _NOT_OURS:
        raise AttributeError(
            f"{name} of MindSpore is not in {__name__}; use {_NOT_OURS[name]} (docs/mindspore.md)"
        )
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        from distsummary.base.names_elsewhere import GUIDE, PACKAGE

        hint = f"; here it is {PACKAGE[name]} ({GUIDE})" if name in PACKAGE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    # Python then finds the name without calling this function again.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])

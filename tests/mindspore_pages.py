"""What the pages of MindSpore's classes promise, as data: signatures, members, errors of bad arguments.

The signatures are those of MindSpore 2.10, or of older versions where the two differ and ours follows them;
the errors of bad arguments were executed with 2.10. `test_mindspore_pages.py` walks this data.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, str] = MappingProxyType({})
METRICS = "distsummary.model.metrics"  # where the metrics live; Accuracy and Loss are at the top level, too


class Page(NamedTuple):
    """One class or function.

    Attributes:
        init: the parameters of the constructor or function, as Python writes them.
        methods: name -> parameters. properties: names. attributes: names that an instance has.
        base: whether it is a Callback.
        module: where users import it from.
    """

    init: str | None
    methods: Mapping[str, str] = NOTHING
    properties: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    base: bool = False
    module: str = "distsummary"


class Bad(NamedTuple):
    """Arguments that a class refuses: each of `errors` catches what it raises."""

    name: str
    arguments: dict[str, Any]
    errors: tuple[type[Exception], ...]


HOOK = "run_context"
HOOKS = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
ALL_HOOKS = HOOKS + tuple(f"on_{phase}_{hook}" for phase in ("train", "eval") for hook in HOOKS)
SCALED = {
    "get_drop_overflow_update": "",
    "get_loss_scale": "",
    "get_update_cell": "",
    "update_loss_scale": "overflow",
}
METRIC = {"clear": "", "eval": "", "update": "*inputs", "set_indexes": "indexes"}
AVERAGED = METRIC | {"eval": "average=False"}


def metric(init: str = "", methods: dict[str, str] = METRIC, module: str = METRICS) -> Page:
    """The page of a metric."""
    return Page(init, methods, properties=("indexes",), module=module)


PAGES = {
    "SummaryCollector": Page(
        "summary_dir, collect_freq=10, num_process=32, collect_specified_data=None, "
        "keep_default_action=True, custom_lineage_data=None, collect_tensor_freq=None, max_file_size=None, "
        "export_options=None",
        base=True,
    ),
    "SummaryRecord": Page(
        "log_dir, file_prefix='events', file_suffix='_MS', num_process=32, network=None, max_file_size=None, "
        "raise_exception=False, export_options=None",
        {
            "add_value": "plugin, name, value",
            "close": "",
            "flush": "",
            "record": "step, train_network=None, plugin_filter=None",
            "set_mode": "mode",
        },
        properties=("log_dir",),
    ),
    "SummaryLandscape": Page(
        "summary_dir",
        {
            "clean_ckpt": "",
            "gen_landscapes_with_multi_process": (
                "callback_fn, collect_landscape=None, device_ids=None, output=None"
            ),
        },
    ),
    "Callback": Page("", dict.fromkeys(ALL_HOOKS, HOOK)),
    "RunContext": Page("original_args", {"original_args": "", "request_stop": "", "get_stop_requested": ""}),
    "LossMonitor": Page("per_print_times=1", {"step_end": HOOK, "on_train_epoch_end": HOOK}, base=True),
    "TimeMonitor": Page(
        "data_size=None, data_time=False",
        dict.fromkeys(("epoch_begin", "epoch_end", "on_train_step_begin", "on_train_step_end"), HOOK),
        base=True,
    ),
    "LearningRateScheduler": Page(
        "learning_rate_function", {"step_end": HOOK}, attributes=("learning_rate_function",), base=True
    ),
    "History": Page("", {"begin": HOOK, "epoch_end": HOOK}, attributes=("history", "epoch"), base=True),
    "LambdaCallback": Page(
        "on_train_epoch_begin=None, on_train_epoch_end=None, on_train_step_begin=None, "
        "on_train_step_end=None, on_train_begin=None, on_train_end=None, on_eval_epoch_begin=None, "
        "on_eval_epoch_end=None, on_eval_step_begin=None, on_eval_step_end=None, on_eval_begin=None, "
        # the older page; ours takes these by name
        "on_eval_end=None, *, epoch_begin=None, epoch_end=None, step_begin=None, step_end=None, begin=None, "
        "end=None",
        base=True,
    ),
    "CheckpointConfig": Page(
        "save_checkpoint_steps=1, save_checkpoint_seconds=0, keep_checkpoint_max=5, "
        "keep_checkpoint_per_n_minutes=0, integrated_save=True, async_save=False, saved_network=None, "
        "append_info=None, enc_key=None, enc_mode='AES-GCM', exception_save=False",
        {"get_checkpoint_policy": ""},
        properties=(
            "append_dict",
            "async_save",
            "enc_key",
            "enc_mode",
            "integrated_save",
            "keep_checkpoint_max",
            "keep_checkpoint_per_n_minutes",
            "save_checkpoint_seconds",
            "save_checkpoint_steps",
            "saved_network",
        ),
    ),
    "ModelCheckpoint": Page(
        "prefix='CKP', directory=None, config=None",
        {"step_end": HOOK, "end": HOOK},
        properties=("latest_ckpt_file_name",),
        base=True,
    ),
    "Model": Page(
        "network, loss_fn=None, optimizer=None, metrics=None, eval_network=None, eval_indexes=None, "
        "amp_level='O0'",
        {
            "train": (
                "epoch, train_dataset, callbacks=None, dataset_sink_mode=False, sink_size=-1, initial_epoch=0"
            ),
            "eval": "valid_dataset, callbacks=None, dataset_sink_mode=False",
            "fit": (
                "epoch, train_dataset, valid_dataset=None, valid_frequency=1, callbacks=None, "
                "dataset_sink_mode=False, valid_dataset_sink_mode=False, sink_size=-1, initial_epoch=0"
            ),
            "predict": "*predict_data",
            "build": "train_dataset=None, valid_dataset=None, sink_size=-1, epoch=1",
            "infer_predict_layout": "*predict_data",
            "infer_train_layout": "train_dataset, dataset_sink_mode=True, sink_size=-1",
        },
        properties=("train_network", "eval_network", "predict_network"),
    ),
    "FixedLossScaleManager": Page("loss_scale=128.0, drop_overflow_update=True", SCALED),
    "DynamicLossScaleManager": Page("init_loss_scale=16777216, scale_factor=2, scale_window=2000", SCALED),
    "Accuracy": metric("eval_type='classification'", module="distsummary"),
    "Loss": metric(module="distsummary"),
    "Recall": metric("eval_type='classification'", AVERAGED),
    "Precision": metric("eval_type='classification'", AVERAGED),
    "F1": metric("", AVERAGED),
    "Dice": metric("smooth=1e-05"),
    "Perplexity": metric("ignore_label=None"),
    "BleuScore": metric("n_gram=4, smooth=False"),
    "CosineSimilarity": metric("similarity='cosine', reduction='none', zero_diagonal=True"),
    "ConfusionMatrix": metric("num_classes, normalize='no_norm', threshold=0.5"),
    "ConfusionMatrixMetric": metric(
        "skip_channel=True, metric_name='sensitivity', calculation_method=False, decrease='mean'"
    ),
    "ROC": metric("class_num=None, pos_label=None"),
    "HausdorffDistance": metric("distance_metric='euclidean', percentile=None, directed=False, crop=True"),
    "MeanSurfaceDistance": metric("symmetric=False, distance_metric='euclidean'"),
    "RootMeanSquareDistance": metric("symmetric=False, distance_metric='euclidean'"),
    "OcclusionSensitivity": metric("pad_val=0.0, margin=2, n_batch=128, b_box=None"),
    "TopKCategoricalAccuracy": metric("k"),
    "auc": Page("x, y, reorder=False", module=METRICS),
    "MAE": metric(),
    "MSE": metric(),
    "Top1CategoricalAccuracy": metric(),
    "Top5CategoricalAccuracy": metric(),
    "load_checkpoint": Page(
        "ckpt_file_name, net=None, strict_load=False, filter_prefix=None, dec_key=None, dec_mode='AES-GCM'"
    ),
    "load_param_into_net": Page("net, parameter_dict, strict_load=False"),
    "ConvertNetUtils": Page("", {"convert_to_thor_net": "net"}),
    "ConvertModelUtils": Page(
        "",
        {
            "convert_to_thor_model": "model, network, loss_fn=None, optimizer=None, metrics=None, "
            "amp_level='O0', loss_scale_manager=None, keep_batchnorm_fp32=False"
        },
    ),
    "ScalarSummary": Page("", {"forward": "name, value"}),
    "ImageSummary": Page("", {"forward": "name, value"}),
    "TensorSummary": Page("", {"forward": "name, value"}),
    "HistogramSummary": Page("", {"forward": "name, value"}),
}

# Names, "Class.member" or "Class(parameter)", that ours does not have. docs/mindspore.md says why.
NOT_OURS = {"Model.build", "Model.infer_predict_layout", "Model.infer_train_layout"}

TYPE, VALUE = (TypeError,), (ValueError,)
BOTH = (TypeError, ValueError)  # MindSpore's code raises the one, its page documents the other
COUNTS = (
    "save_checkpoint_steps",
    "save_checkpoint_seconds",
    "keep_checkpoint_max",
    "keep_checkpoint_per_n_minutes",
)
RUN, LOG = {"summary_dir": "run"}, {"log_dir": "run"}

BAD = [
    *[Bad("CheckpointConfig", {name: -1}, VALUE) for name in COUNTS],
    *[Bad("CheckpointConfig", {name: value}, TYPE) for name in COUNTS for value in (1.5, True, "1")],
    Bad("CheckpointConfig", dict.fromkeys(COUNTS, 0), VALUE),
    Bad("CheckpointConfig", dict.fromkeys(COUNTS), VALUE),
    *[
        Bad("CheckpointConfig", {name: value}, TYPE)
        for name in ("integrated_save", "exception_save")
        for value in (1, None, "True")
    ],
    *[Bad("CheckpointConfig", {"async_save": value}, TYPE) for value in (1, None, 2.0)],
    Bad("CheckpointConfig", {"async_save": "other"}, VALUE),
    *[Bad("CheckpointConfig", {"enc_key": value}, VALUE) for value in ("key", 1, True)],
    *[Bad("CheckpointConfig", {"enc_mode": value}, VALUE) for value in (1, None, b"AES-GCM")],
    *[
        Bad("CheckpointConfig", {"append_info": value}, TYPE)
        for value in (
            "epoch_num", {"epoch_num": 1}, ("epoch_num",), [1], [None], [{"a": 1}, {"b": 2}], [{1: 2}],
            [{"a": [1]}], [{"a": None}],
        )
    ],
    Bad("CheckpointConfig", {"append_info": ["loss"]}, VALUE),
    Bad("CheckpointConfig", {"saved_network": 1}, TYPE),
    *[Bad("ModelCheckpoint", {"prefix": value}, VALUE) for value in (1, None, "a/b")],
    Bad("ModelCheckpoint", {"directory": 1}, TYPE),
    *[Bad("ModelCheckpoint", {"config": value}, TYPE) for value in (1, {})],
    Bad("LossMonitor", {"per_print_times": -1}, VALUE),
    *[Bad("LossMonitor", {"per_print_times": value}, BOTH) for value in (1.0, True, None, "1")],
    *[Bad("TimeMonitor", {"data_size": value}, VALUE) for value in (0, -1)],
    *[Bad("TimeMonitor", {"data_size": value}, BOTH) for value in (1.5, True, "a")],
    *[Bad("TimeMonitor", {"data_time": value}, TYPE) for value in (1, None)],
    *[Bad("SummaryCollector", {"summary_dir": value}, TYPE) for value in (3, None)],
    *[Bad("SummaryCollector", {"summary_dir": value}, VALUE) for value in ("", "x" * 5000)],
    *[Bad("SummaryCollector", RUN | {"collect_freq": value}, TYPE) for value in (1.0, True, None)],
    *[Bad("SummaryCollector", RUN | {"collect_freq": value}, VALUE) for value in (0, -1)],
    *[
        Bad("SummaryCollector", RUN | {name: value}, error)
        for name in ("collect_tensor_freq", "max_file_size")
        for value, error in ((1.0, TYPE), (True, TYPE), ("1", TYPE), (0, VALUE), (-1, VALUE))
    ],
    *[Bad("SummaryCollector", RUN | {"keep_default_action": value}, TYPE) for value in (None, 1)],
    *[
        Bad("SummaryCollector", RUN | {"export_options": value}, error)
        for value, error in (
            ([], TYPE), ({3: "npy"}, TYPE), ({"tensor_format": 3}, TYPE), ({"tensor_format": "csv"}, VALUE),
            ({"format": "npy"}, VALUE),
        )
    ],
    *[Bad("SummaryCollector", RUN | {"custom_lineage_data": value}, TYPE) for value in ([], {3: 1})],
    *[
        Bad("SummaryCollector", RUN | {"collect_specified_data": value}, error)
        for value, error in (
            ([], TYPE), ({3: True}, TYPE), ({"collect_graph": 1}, TYPE), ({"collect_metric": None}, TYPE),
            ({"collect_all": True}, VALUE), ({"histogram_regular": 3}, TYPE),
            ({"histogram_regular": "("}, VALUE),
            ({"collect_landscape": True}, TYPE), ({"collect_landscape": {"unit": "step"}}, TYPE),
            ({"collect_landscape": {"intervals": [[1, 2]]}}, VALUE),
        )
    ],
    *[Bad("SummaryRecord", LOG | {name: 3}, TYPE) for name in ("log_dir", "file_prefix", "file_suffix")],
    *[Bad("SummaryRecord", LOG | {name: "a b"}, VALUE) for name in ("file_prefix", "file_suffix")],
    *[Bad("SummaryRecord", LOG | {"max_file_size": value}, TYPE) for value in (1.0, "1")],
    Bad("SummaryRecord", LOG | {"raise_exception": 1}, TYPE),
    *[Bad("SummaryLandscape", {"summary_dir": value}, TYPE) for value in (3, None)],
    *[Bad("RunContext", {"original_args": value}, TYPE) for value in (None, [], "x", 1)],
]  # fmt: skip

# What CheckpointConfig makes of the four numbers: (steps, seconds, max, minutes) given -> kept; the rest keep
POLICIES = {
    (0, 0, 0, 2): (0, 0, 0, 2), (0, 0, 1, 0): (0, 0, 1, None), (0, 0, 3, 2): (0, 0, 3, None),
    (0, 7, 0, 0): (0, 7, 1, 0), (0, 7, 0, 2): (0, 7, 0, 2), (0, 7, 3, 2): (0, 7, 3, None),
    (1, 0, 0, 0): (1, None, 1, 0), (1, 0, 3, 0): (1, None, 3, None), (5, 7, 0, 0): (5, None, 1, 0),
    (5, 7, 0, 2): (5, None, 0, 2), (5, 7, 3, 2): (5, None, 3, None),
}  # fmt: skip
APPENDED = [  # append_info -> append_dict
    (None, None),
    ([], None),
    (["epoch_num", "step_num"], {"epoch_num": 0, "step_num": 0}),
    (["epoch_num", {"lr": 0.1}], {"epoch_num": 0, "lr": 0.1}),
    ([{"text": "s", "flag": True}], {"text": "s", "flag": True}),
]

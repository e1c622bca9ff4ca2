"""Builds the lineage messages of one rank: the model, the hyperparameters, the data sets and the metrics."""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from distsummary.base.guard import guarded_log
from distsummary.base.redaction import redacted
from distsummary.errors import InvalidTypeError
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.pb import mindspore_lineage_pb2 as pb
from distsummary.frameworks.base import framework_of
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams
from distsummary.training.values import resolve, scalar

logger = guarded_log(__name__)

INT32 = 2**31 - 1
MAX_TRANSFORMS = 64  # of a data set, and attributes of a transform
MAX_HYPER_CONFIG = 100_000  # characters, MindSpore's limit
_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What another framework's data set says of itself, in place of a loader; None: it does not say.

    `batch_size` is in samples; `graph` returns the graph of the data set, which may take a while.
    """

    batch_size: int | None
    path: str | None
    graph: Callable[[], pb.DatasetGraph | None]


def train_lineage(
    params: CallbackParams,
    topology: Topology,
    *,
    loss: float | None = None,
    compatibility: Compatibility = OURS,
) -> pb.TrainLineage:
    """The lineage of a training so far, from the parameters of its loop; unknown fields stay unset.

    Args:
        loss: the last loss, None before the first.
        compatibility: with its `lineage`, the size of the data set is steps times batch size, even if another
            size is known, and 0 is the size of a model without a checkpoint file, not that of its parameters.
    """
    message = pb.TrainLineage()
    network, optimizer, dataset = params.get("network"), params.get("optimizer"), params.get("train_dataset")
    _put(message.algorithm, "network", class_name(network))
    _put(message.algorithm, "loss", loss)
    hyper = message.hyper_parameters
    _put(hyper, "optimizer", class_name(optimizer))
    if optimizer is not None:
        _put(hyper, "learning_rate", framework_of(optimizer).initial_learning_rate(optimizer))
    _put(hyper, "loss_function", class_name(params.get("loss_fn")))
    _put(hyper, "epoch", params.get("epoch_num"))
    _put(hyper, "parallel_mode", params.get("parallel_mode"))
    _put(hyper, "device_num", params.get("device_number") or topology.world_size)
    batch = batch_size(dataset, params.get("train_dataset_element"))
    _put(hyper, "batch_size", batch)
    _put(message.train_dataset, "train_dataset_path", dataset_path(dataset))
    steps = params.get("batch_num") or 0
    _put(message.train_dataset, "train_dataset_size", dataset_size(dataset, steps, batch, compatibility))
    path = params.get("latest_ckpt_file")
    message.model.path = json.dumps({"ckpt": os.path.abspath(path) if path else None})
    saved = _size_of(path) if path else 0
    message.model.size = saved if saved or compatibility.lineage else model_bytes(network)
    return message


def _size_of(path: str) -> int:
    """The bytes of a checkpoint: of a file, or of the files in a directory; 0 if it does not exist."""
    if os.path.isdir(path):
        return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    return os.path.getsize(path) if os.path.isfile(path) else 0


def model_bytes(network: object) -> int:
    """The bytes of the parameters of a model; 0 if it has none that are known."""
    if network is None:
        return 0
    try:
        return framework_of(network).nbytes(network)
    except InvalidTypeError:
        # A function, or a model of another framework, has no parameters that are known.
        return 0
    except Exception as error:
        # The model's own code may raise anything.
        logger.warning("the size of the model is not in the lineage: %s", error)
        return 0


def evaluation_lineage(
    params: CallbackParams, *, compatibility: Compatibility = OURS
) -> pb.EvaluationLineage:
    """The lineage of an evaluation: its metrics as JSON, and its data set."""
    message = pb.EvaluationLineage()
    try:
        # json encodes neither tensors nor NumPy numbers, so `default` converts them.
        message.metric = json.dumps(
            params.get("metrics") or {}, default=lambda value: resolve(scalar("a metric", value))
        )
    except (TypeError, ValueError) as error:
        logger.warning("the metrics are not in the lineage, because they are not JSON: %s", error)
    dataset = params.get("valid_dataset")
    batch = batch_size(dataset, params.get("eval_dataset_element"))
    steps = params.get("batch_num") or 0
    _put(message.valid_dataset, "valid_dataset_path", dataset_path(dataset))
    _put(message.valid_dataset, "valid_dataset_size", dataset_size(dataset, steps, batch, compatibility))
    return message


def custom_lineage(values: Mapping[str, Any], hyper_config: str = "") -> pb.UserDefinedInfo:
    """The user's own entries, each in a message of its own.

    Args:
        values: text or numbers; an integer beyond int32 is stored as a double, beyond 2^53 as text.
        hyper_config: JSON from `topology.hyper_config`; the entries of its "custom_lineage_data" are added,
            unless `values` has an entry of the same name.
    """
    message = pb.UserDefinedInfo()
    for given, value in {**redacted(_parse_hyper_config(hyper_config)), **values}.items():
        key = _text(given)
        entry = message.user_info.add()
        if isinstance(value, int) and abs(value) <= INT32:
            entry.map_int32[key] = value
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) <= 2**53):
            entry.map_double[key] = value
        else:
            entry.map_str[key] = _text(str(value))
    return message


def _parse_hyper_config(text: str) -> dict[str, str | int | float]:
    if not text:
        return {}
    reason = f"it has more than {MAX_HYPER_CONFIG} characters" if len(text) > MAX_HYPER_CONFIG else ""
    try:
        parsed = {} if reason else json.loads(text)
    except (ValueError, RecursionError) as error:
        parsed, reason = {}, f"it is not JSON: {error}"
    given = parsed.get("custom_lineage_data", {}) if isinstance(parsed, dict) else None
    if reason or not isinstance(given, dict):
        logger.warning(
            "MINDINSIGHT_HYPER_CONFIG is ignored: %s",
            reason or "it must be a JSON object, and so must its custom_lineage_data",
        )
        return {}
    return {
        key: value
        for key, value in given.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }


def dataset_graph(loader: object, steps: int = 0) -> pb.DatasetGraph | None:
    """Describes a loader and its nested data sets as a chain: names, sizes, batching, sampling, transforms.

    The transforms of a data set are those of its `transform` and `target_transform` or, without these, of its
    `transforms`, each with the numbers, texts and lists among its attributes.

    Args:
        loader: any object; the attributes of a torch DataLoader are read if present, without importing torch.
        steps: batches of the loader, 0 if unknown.
    """
    if isinstance(loader, DataFacts):
        return loader.graph()
    graph = pb.DatasetGraph()
    _describe(graph, loader, ("batch_size", "drop_last", "num_workers"))
    if steps:
        graph.parameter.mapInt["num_batches"] = steps
    sampler = getattr(loader, "sampler", None)
    if sampler is not None:
        parameters = graph.sampler.operationParam
        parameters.mapStr["class"] = class_name(sampler) or ""
        for name in ("num_replicas", "rank", "seed", "shuffle", "replacement"):
            _put_parameter(parameters, name, getattr(sampler, name, None))
    dataset, inner = getattr(loader, "dataset", None), graph
    # A Subset may wrap a Subset; the limit ends a cycle of data sets.
    for _ in range(16):
        if dataset is None:
            break
        inner = inner.children.add()
        _describe(inner, dataset, ("root", "path", "split", "train"))
        for transform in _transforms(dataset)[:MAX_TRANSFORMS]:
            _describe_transform(inner.operations.add(), transform)
        dataset = getattr(dataset, "dataset", None)
    return graph


def _transforms(dataset: object) -> list[object]:
    """The single transforms of a data set, in the order in which they are applied."""
    given = [getattr(dataset, name, None) for name in ("transform", "target_transform")]
    if all(one is None for one in given):
        given = [getattr(dataset, "transforms", None)]
    found: list[object] = []
    # The limit ends a transform that contains itself.
    for _ in range(MAX_TRANSFORMS):
        if not given:
            break
        first, *given = given
        inner = next((one for one in (first, getattr(first, "transforms", None)) if _is_sequence(one)), None)
        if inner is not None:
            given = [*itertools.islice(inner, MAX_TRANSFORMS), *given]
        elif first is not None:
            found.append(first)
    return found


def _is_sequence(thing: object) -> TypeGuard[Iterable[object]]:
    return isinstance(thing, (list, tuple)) or type(thing).__name__ in ("Sequential", "ModuleList")  # torch's


def _describe_transform(operation: pb.Operation, transform: object) -> None:
    """MindSpore's names for an operation of a data set, and its attributes of simple kinds."""
    parameters = operation.operationParam
    parameters.mapStr["tensor_op_name"] = class_name(transform) or ""
    parameters.mapStr["tensor_op_module"] = str(getattr(transform, "__module__", None) or "")
    attributes = vars(transform) if hasattr(transform, "__dict__") and not callable_name(transform) else {}
    for name, value in itertools.islice(attributes.items(), MAX_TRANSFORMS):
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, (list, tuple)) and all(isinstance(one, (int, float, str)) for one in value):
            parameters.mapStrList[name].strValue.extend(
                map(json.dumps, redacted(value[:MAX_TRANSFORMS], name))
            )
        else:
            _put_parameter(parameters, name, value.value if isinstance(value, Enum) else value)


def _describe(graph: pb.DatasetGraph, source: object, names: tuple[str, ...]) -> None:
    graph.parameter.mapStr["op_type"] = class_name(source) or ""
    for name in names:
        _put_parameter(graph.parameter, name, getattr(source, name, None))
    _put_parameter(graph.parameter, "size", _length(source))


def _put_parameter(parameters: pb.OperationParameter, name: str, value: object) -> None:
    value = redacted(str(value) if isinstance(value, Path) else value, name)
    if isinstance(value, bool):
        parameters.mapBool[name] = value
    elif isinstance(value, int) and abs(value) <= INT32:
        parameters.mapInt[name] = value
    elif isinstance(value, (int, float)):
        parameters.mapDouble[name] = float(value)
    elif isinstance(value, str):
        parameters.mapStr[name] = _text(value)


def class_name(thing: object) -> str | None:
    """The class name of a model (without wrappers such as DDP), optimizer or loss, or a function's name."""
    if thing is None:
        return None
    for _ in range(len(_WRAPPERS)):
        thing = getattr(thing, _WRAPPERS.get(type(thing).__name__, ""), thing)
    return callable_name(thing) or type(thing).__name__


def callable_name(thing: object) -> str:
    """The name of a function or class, "" for any other object."""
    return str(getattr(thing, "__name__", "")) if callable(thing) else ""


def batch_size(loader: object, batch: object = None) -> int | None:
    """Samples in one batch: the loader's `batch_size` or, if unset, the length of `batch`'s first tensor."""
    for source in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(source, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    # Of a list of batches the first one is whole; the last, which `batch` may be, often is not.
    if isinstance(loader, (list, tuple)) and loader:
        batch = loader[0]
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    shape = getattr(first, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def dataset_size(
    loader: object, steps: int, batch: int | None, compatibility: Compatibility = OURS
) -> int | None:
    """Samples that this rank sees in an epoch: its sampler's length, but at most steps times batch size.

    If one of these two numbers is unknown, the other is returned. MindSpore (and `compatibility.lineage`)
    always takes steps times batch size, which counts a smaller last batch as a whole one.
    """
    product = steps * batch if steps and batch else None
    samples = None if compatibility.lineage else _length(getattr(loader, "sampler", None))
    if samples is None:
        return product
    return samples if product is None else min(samples, product)


def dataset_path(loader: object) -> str | None:
    """The path of a loader's data, if one of its nested data sets has one."""
    if isinstance(loader, DataFacts):
        return loader.path
    source = loader
    for _ in range(16):
        source = getattr(source, "dataset", None)
        for name in ("root", "path"):
            path = getattr(source, name, None)
            if isinstance(path, (str, Path)) and str(path):
                return os.path.abspath(str(redacted(str(path))))
    return None


def _length(source: object) -> int | None:
    if not isinstance(source, Sized):
        return None
    try:
        return len(source)
    except Exception:
        # torch's classes have __len__ even if they have no length, and those of users may raise anything.
        return None


def _put(message: Any, field: str, value: object) -> None:  # Any: one of several generated messages
    """Set a field if there is a value and the field can hold it."""
    if value is None or (isinstance(value, int) and abs(value) > INT32):
        return
    # The field is float32: a number beyond its range becomes infinite.
    if isinstance(value, float) and math.isfinite(value) and abs(value) > 3.4e38:
        value = math.copysign(math.inf, value)
    setattr(message, field, _text(value) if isinstance(value, str) else value)


def _text(value: str) -> str:
    """Escapes what UTF-8 cannot encode: undecodable bytes of paths, and lone surrogates from JSON."""
    return value.encode(errors="backslashreplace").decode()

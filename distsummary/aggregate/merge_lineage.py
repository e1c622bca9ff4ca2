"""The lineages of the ranks to the lineage of the run."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from distsummary.format.lineage import Lineage, merge_custom
from distsummary.pb import mindspore_lineage_pb2 as lineage_pb2

Json: TypeAlias = str | int | float | bool | None
ByRank: TypeAlias = dict[int, Any]  # Any: whatever the field of a message holds

MAX_INT32 = 2**31 - 1
_MAX_EXACT = 2**53  # integers up to here are exact as floats
_AGREED = (
    ("hyper_parameters", "optimizer"),
    ("hyper_parameters", "learning_rate"),
    ("hyper_parameters", "loss_function"),
    ("hyper_parameters", "epoch"),
    ("hyper_parameters", "parallel_mode"),
    ("train_dataset", "train_dataset_path"),
    ("algorithm", "network"),
)
_COUNTED = (("hyper_parameters", "batch_size"), ("train_dataset", "train_dataset_size"))


class Conflict(NamedTuple):
    """A field that the ranks do not agree on, or that has no value to write; what each rank says, as JSON."""

    field: str
    by_rank: dict[int, Json]

    def as_json(self) -> dict[str, Any]:
        """For the manifest; non-finite numbers are strings there."""
        return {"field": self.field, "by_rank": {str(rank): value for rank, value in self.by_rank.items()}}


def merge_lineage(lineages: Mapping[int, Lineage], world_size: int) -> tuple[Lineage, list[Conflict]]:
    """One lineage of the run out of the ranks' own, and where they disagree.

    - Names, paths, learning rate and epochs must agree; else the lowest rank's is taken, a conflict listed.
    - `device_num` is the world size.
    - Batch and dataset sizes are summed when the dataset is split over the ranks (`is_split`); of replicas
      they must agree. A sum beyond int32, which the file cannot hold, is left out and listed.
    - The loss, and each evaluation metric, is the mean over the ranks that have one.
    - The model is that of the lowest rank that saved one, the dataset graph that of the lowest with one.
    - Custom information is joined; of a key with two values the lowest rank's is taken, a conflict listed.
    - A number that is not finite is left out and listed: MindInsight answers in JSON, which has none.

    Args:
        lineages: by rank; ranks without any may be absent.
        world_size: of the attempt that the lineages belong to.
    """
    ranks = dict(sorted(lineages.items()))
    conflicts: list[Conflict] = []
    graphs = {rank: one.dataset_graph for rank, one in ranks.items() if one.dataset_graph is not None}
    trained = {rank: one.train for rank, one in ranks.items() if one.train is not None}
    evaluated = {rank: one.evaluation for rank, one in ranks.items() if one.evaluation is not None}
    customs = {rank: one.custom for rank, one in ranks.items() if one.custom is not None}
    split = any(is_split(graph) for graph in graphs.values())
    merged = Lineage(
        train=_merge_train(trained, world_size, split, conflicts) if trained else None,
        evaluation=_merge_evaluation(evaluated, split, conflicts) if evaluated else None,
        dataset_graph=next(iter(graphs.values()), None),
        custom=_merge_custom(customs, conflicts) if customs else None,
    )
    return merged, conflicts


def is_split(graph: lineage_pb2.DatasetGraph) -> bool:
    """Whether each rank reads a part of its own: a sampler called "...distributed...", or num_shards above 1.

    `DistributedSampler` is its name in MindSpore and in torch; MindSpore's datasets also take num_shards.
    """
    for parameter in _parameters(graph):
        if parameter.mapInt.get("num_shards", 1) > 1:
            return True
    for node in _nodes(graph):
        texts = node.sampler.operationParam.mapStr.values()
        if any("distributed" in text.lower() for text in texts):
            return True
    return False


def _nodes(graph: lineage_pb2.DatasetGraph) -> Iterator[lineage_pb2.DatasetGraph]:
    yield graph
    for child in graph.children:
        yield from _nodes(child)


def _parameters(graph: lineage_pb2.DatasetGraph) -> Iterator[lineage_pb2.OperationParameter]:
    for node in _nodes(graph):
        yield node.parameter
        yield node.sampler.operationParam


def _merge_train(
    messages: dict[int, lineage_pb2.TrainLineage], world_size: int, split: bool, conflicts: list[Conflict]
) -> lineage_pb2.TrainLineage:
    merged = lineage_pb2.TrainLineage()
    for group, name in _AGREED:
        _set(merged, group, name, _agreed(f"{group}.{name}", _collect(messages, group, name), conflicts))
    for group, name in _COUNTED:
        count = _total if split else _agreed
        _set(merged, group, name, count(f"{group}.{name}", _collect(messages, group, name), conflicts))
    losses = _collect(messages, "algorithm", "loss")
    _set(merged, "algorithm", "loss", _mean("algorithm.loss", losses, conflicts))
    merged.hyper_parameters.device_num = world_size
    models = [message.model for message in messages.values() if message.HasField("model")]
    if models:
        merged.model.CopyFrom(next((model for model in models if model.size), models[0]))
    return merged


def _merge_evaluation(
    messages: dict[int, lineage_pb2.EvaluationLineage], split: bool, conflicts: list[Conflict]
) -> lineage_pb2.EvaluationLineage:
    merged = lineage_pb2.EvaluationLineage()
    metrics = _merge_metrics(
        {rank: message.metric for rank, message in messages.items() if message.HasField("metric")}, conflicts
    )
    if metrics is not None:
        merged.metric = json.dumps(metrics, allow_nan=False)
    group = "valid_dataset"
    path, size = (_collect(messages, group, f"valid_dataset_{name}") for name in ("path", "size"))
    _set(merged, group, "valid_dataset_path", _agreed(f"{group}.valid_dataset_path", path, conflicts))
    count = _total if split else _agreed
    _set(merged, group, "valid_dataset_size", count(f"{group}.valid_dataset_size", size, conflicts))
    return merged


def _merge_metrics(texts: dict[int, str], conflicts: list[Conflict]) -> dict[str, Any] | None:
    """The metrics that can be written, None when no rank has any; text that is no JSON object is listed."""
    by_name: dict[str, ByRank] = {}
    readable = False
    damaged: dict[int, Json] = {}
    for rank, text in texts.items():
        metrics = _json_object(text)
        if metrics is None:
            damaged[rank] = text
            continue
        readable = True
        for name, metric in metrics.items():
            by_name.setdefault(name, {})[rank] = metric
    if damaged:
        conflicts.append(Conflict("metric", damaged))
    merged = {}
    for name, values in by_name.items():
        merge = _mean if all(_is_number(value) for value in values.values()) else _agreed
        value = merge(f"metric.{name}", values, conflicts)
        if value is not None and _is_strict_json(value):
            merged[name] = value
        elif value is not None:
            conflicts.append(Conflict(f"metric.{name}", {rank: _as_json(v) for rank, v in values.items()}))
    return merged if readable else None


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_EXACT)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_strict_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _merge_custom(
    messages: dict[int, lineage_pb2.UserDefinedInfo], conflicts: list[Conflict]
) -> lineage_pb2.UserDefinedInfo:
    by_key: dict[str, ByRank] = {}
    entries: dict[str, lineage_pb2.UserDefinedInfo] = {}
    for rank, message in messages.items():
        for key, value, entry in _custom_entries(message):
            by_key.setdefault(key, {})[rank] = value
            entries.setdefault(key, entry)
    kept = [
        entries[key]
        for key, values in by_key.items()
        if _agreed(f"custom.{key}", values, conflicts) is not None
    ]
    return lineage_pb2.UserDefinedInfo(user_info=kept)


def _custom_entries(
    message: lineage_pb2.UserDefinedInfo,
) -> Iterator[tuple[str, Any, lineage_pb2.UserDefinedInfo]]:
    """Each key with its value and the message that holds nothing else."""
    for entry in merge_custom(None, message).user_info:
        for values in (entry.map_int32, entry.map_str, entry.map_double, entry.map_dict):
            for key, value in values.items():
                yield key, value, entry


def _collect(messages: Mapping[int, Any], group: str, name: str) -> ByRank:
    """The ranks' values of `<group>.<name>`, of those that set it."""
    return {
        rank: getattr(getattr(message, group), name)
        for rank, message in messages.items()
        if getattr(message, group).HasField(name)
    }


def _set(message: Any, group: str, name: str, value: Any) -> None:
    if value is not None:
        setattr(getattr(message, group), name, value)


def _agreed(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> Any:
    """The lowest rank's value; None for no rank's, and for a number that is not finite."""
    if not by_rank:
        return None
    said = {rank: _as_json(value) for rank, value in by_rank.items()}
    first = next(iter(by_rank.values()))
    is_writable = not isinstance(first, float) or math.isfinite(first)
    if len({repr(value) for value in said.values()}) > 1 or not is_writable:
        conflicts.append(Conflict(field, said))
    return first if is_writable else None


def _total(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> int | None:
    if not by_rank:
        return None
    total = sum(by_rank.values())
    if total > MAX_INT32:
        conflicts.append(Conflict(f"{field} (the sum exceeds int32)", dict(by_rank)))
        return None
    return int(total)


def _mean(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> float | None:
    if not by_rank:
        return None
    values = list(by_rank.values())
    if not all(math.isfinite(value) for value in values):
        conflicts.append(Conflict(field, {rank: _as_json(value) for rank, value in by_rank.items()}))
        return None
    # fsum / n of equal numbers may be off by a bit
    return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)


def _as_json(value: Any) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)

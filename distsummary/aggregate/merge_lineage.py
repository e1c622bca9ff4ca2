"""Merge the ranks' lineages (records of a training's settings and results) into the lineage of the run."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from distsummary.base.checked_json import parse_json
from distsummary.errors import DamagedFileError
from distsummary.format.lineage import Lineage, merge_custom
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2

Json: TypeAlias = str | int | float | bool | None
ByRank: TypeAlias = dict[int, Any]  # Any: the value of any field of a message

CUSTOM = "custom."  # begins the field of a conflict between users' own entries
MAX_CUSTOM = 100  # such conflicts that are listed
MAX_RANKS = 64  # listed in the manifest for each conflict
MAX_LISTED = 16  # values in a merged graph
MAX_CHARACTERS = 200  # of a text in the manifest
MAX_INT32 = 2**31 - 1
_MAX_EXACT = 2**53  # integers up to this one are exact as floats
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
_VALIDATED = ("valid_dataset", "valid_dataset_path")
_VALIDATED_SIZE = ("valid_dataset", "valid_dataset_size")


class Conflict(NamedTuple):
    """A field on which the ranks disagree, or that cannot be written, with each rank's value as JSON."""

    field: str
    by_rank: dict[int, Json]

    @property
    def is_setting(self) -> bool:
        """Whether it is about the user's own entries (`config`, `custom_lineage_data`)."""
        return self.field.startswith(CUSTOM[:-1])

    def as_json(self) -> dict[str, Any]:
        """The conflict as the manifest stores it: texts are cut, and of many ranks those with new values."""
        by_rank = self.by_rank
        if len(by_rank) > MAX_RANKS:
            # In reversed order, the lowest rank of each value is what remains.
            firsts = {repr(value): rank for rank, value in reversed(by_rank.items())}
            by_rank = {rank: by_rank[rank] for rank in sorted(firsts.values())[:MAX_RANKS]}
        cut = {
            str(rank): value[:MAX_CHARACTERS] if isinstance(value, str) else value
            for rank, value in by_rank.items()
        }
        return {"field": self.field, "by_rank": cut}

    def as_text(self) -> str:
        """The field and the ranks of each value, for a message."""
        ranks: dict[str, list[int]] = {}
        for rank, value in self.by_rank.items():
            ranks.setdefault(str(value)[:40], []).append(rank)
        said = [f"{value} on {_ranks(found)}" for value, found in list(ranks.items())[:3]]
        more = f" and {len(ranks) - 3} more values" if len(ranks) > 3 else ""
        return f"{self.field.removeprefix(CUSTOM)} ({'; '.join(said)}{more})"


# What the values of a field become, of which disagreements are noted; None: nothing is written.
How: TypeAlias = Callable[[str, ByRank, list[Conflict]], Any]


def merge_lineage(lineages: Mapping[int, Lineage], world_size: int) -> tuple[Lineage, list[Conflict]]:
    """The lineage of the run, and the conflicts between the lineages of its ranks.

    - Names, paths, learning rate and epochs should agree; if they differ, the lowest rank's value is taken.
    - `device_num` is the world size.
    - Batch and dataset sizes are summed if the dataset is split over the ranks (`is_split`); if every rank
      reads it whole, they are treated like names. A sum above int32 does not fit the file and is left out.
    - The loss and each evaluation metric become their mean over the ranks that have a value.
    - The model comes from the lowest rank that saved it, the dataset graph from the lowest rank that has one;
      see `merge_graphs` for what the ranks' graphs say differently.
    - Users' own entries are joined; if ranks give a key different values, the lowest rank's value is taken.
    - Non-finite numbers are left out: MindInsight answers in JSON, which cannot hold them.

    Every disagreement and everything that was left out is a Conflict, but for a loss or metric that is NaN on
    all ranks, or the same infinity: they agree, and their curves have it.

    Args:
        lineages: rank -> its lineage; ranks without one may be absent.
        world_size: the world size of the attempt that the lineages belong to.
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
        dataset_graph=merge_graphs(list(graphs.values()), is_split=split) if graphs else None,
        custom=_merge_custom(customs, conflicts) if customs else None,
    )
    return merged, conflicts


def is_split(graph: lineage_pb2.DatasetGraph) -> bool:
    """Whether each rank reads its own part of a dataset.

    True if num_shards is above 1 (MindSpore's datasets), or if the name of a sampler contains "distributed":
    both MindSpore and torch have a `DistributedSampler`.
    """
    sampler = graph.sampler.operationParam
    return (
        any(parameters.mapInt.get("num_shards", 1) > 1 for parameters in (graph.parameter, sampler))
        or any("distributed" in text.lower() for text in sampler.mapStr.values())
        or any(is_split(child) for child in graph.children)
    )


def merge_graphs(graphs: Sequence[lineage_pb2.DatasetGraph], *, is_split: bool) -> lineage_pb2.DatasetGraph:
    """The first rank's graph, for all ranks: the values of what differs are listed, such as a sampler's rank.

    If the dataset is split, batch sizes are summed. Graphs of another form than the first are left out.
    """
    merged = lineage_pb2.DatasetGraph()
    merged.CopyFrom(graphs[0])
    by_rank = [list(_parameters(graph)) for graph in graphs]
    same_form = [found for found in by_rank if len(found) == len(by_rank[0])]
    for target, *given in zip(_parameters(merged), *same_form, strict=True):
        _join_parameters(target, given, is_split=is_split)
    return merged


def _parameters(graph: lineage_pb2.DatasetGraph) -> Iterator[lineage_pb2.OperationParameter]:
    """The parameters of a graph and of all its parts, always in one order."""
    for part in (graph, *graph.operations, graph.sampler):
        name = "parameter" if part is graph else "operationParam"
        if part.HasField(name):
            yield getattr(part, name)
    for child in graph.children:
        yield from _parameters(child)


def _join_parameters(
    target: lineage_pb2.OperationParameter, given: Sequence[lineage_pb2.OperationParameter], *, is_split: bool
) -> None:
    for kind in ("mapStr", "mapBool", "mapInt", "mapDouble"):
        for key in sorted(getattr(target, kind)):
            values = [getattr(one, kind)[key] for one in given if key in getattr(one, kind)]
            if is_split and key == "batch_size" and kind == "mapInt" and sum(values) <= MAX_INT32:
                target.mapInt[key] = sum(values)
            elif len(different := list(dict.fromkeys(values))) > 1:
                # A list of values is a text, so a number that differs moves to the map of texts.
                del getattr(target, kind)[key]
                more = " ..." if len(different) > MAX_LISTED else ""
                target.mapStr[key] = ", ".join(map(str, different[:MAX_LISTED])) + more


def _merge_train(
    messages: dict[int, lineage_pb2.TrainLineage], world_size: int, split: bool, conflicts: list[Conflict]
) -> lineage_pb2.TrainLineage:
    merged = lineage_pb2.TrainLineage()
    for place in _AGREED:
        _merge_field(merged, place, messages, _agreed, conflicts)
    # Sizes add up if each rank reads its own part of the dataset.
    for place in _COUNTED:
        _merge_field(merged, place, messages, _total if split else _agreed, conflicts)
    _merge_field(merged, ("algorithm", "loss"), messages, _mean, conflicts)
    merged.hyper_parameters.device_num = world_size
    # The model of the lowest rank counts, but preferably one that has a size.
    models = [message.model for message in messages.values() if message.HasField("model")]
    if models:
        merged.model.CopyFrom(next((model for model in models if model.size), models[0]))
    return merged


def _merge_evaluation(
    messages: dict[int, lineage_pb2.EvaluationLineage], split: bool, conflicts: list[Conflict]
) -> lineage_pb2.EvaluationLineage:
    merged = lineage_pb2.EvaluationLineage()
    by_metric: dict[str, ByRank] = {}
    unreadable: dict[int, Json] = {}  # rank -> text that is not a JSON object
    texts = {rank: message.metric for rank, message in messages.items() if message.HasField("metric")}
    for rank, text in texts.items():
        try:
            metrics = parse_json(text, dict[str, Any], name="it", is_finite=False)
        except DamagedFileError:
            unreadable[rank] = text
            continue
        for name, metric in metrics.items():
            by_metric.setdefault(name, {})[rank] = metric
    if unreadable:
        conflicts.append(Conflict("metric", unreadable))
    written = {}
    for name, values in by_metric.items():
        # A larger integer would lose digits in a mean, so it has to agree like a name.
        are_numbers = all(
            isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_EXACT)
            for value in values.values()
        )
        value = (_mean if are_numbers else _agreed)(f"metric.{name}", values, conflicts)
        if value is None:
            continue
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            # A number somewhere in the value is not finite.
            conflicts.append(Conflict(f"metric.{name}", {rank: _as_json(v) for rank, v in values.items()}))
        else:
            written[name] = value
    if len(texts) > len(unreadable):
        merged.metric = json.dumps(written, allow_nan=False)
    _merge_field(merged, _VALIDATED, messages, _agreed, conflicts)
    _merge_field(merged, _VALIDATED_SIZE, messages, _total if split else _agreed, conflicts)
    return merged


def _merge_custom(
    messages: dict[int, lineage_pb2.UserDefinedInfo], conflicts: list[Conflict]
) -> lineage_pb2.UserDefinedInfo:
    by_key: dict[str, ByRank] = {}
    entries: dict[str, lineage_pb2.UserDefinedInfo] = {}
    for rank, message in messages.items():
        # Each entry has one key, in one of its four maps.
        for entry in merge_custom(None, message).user_info:
            for values in (entry.map_int32, entry.map_str, entry.map_double, entry.map_dict):
                for key, value in values.items():
                    by_key.setdefault(key, {})[rank] = value
                    entries.setdefault(key, entry)
    found: list[Conflict] = []
    kept = [
        entries[key] for key, values in by_key.items() if _agreed(f"{CUSTOM}{key}", values, found) is not None
    ]
    conflicts += found[:MAX_CUSTOM]
    if len(found) > MAX_CUSTOM:
        conflicts.append(Conflict(f"{CUSTOM[:-1]} ({len(found) - MAX_CUSTOM} more fields)", {}))
    return lineage_pb2.UserDefinedInfo(user_info=kept)


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:4])) + (" ..." if len(ranks) > 4 else "")
    return f"{len(ranks)} ranks ({named})"


def _merge_field(
    merged: Any, place: tuple[str, str], messages: Mapping[int, Any], how: How, conflicts: list[Conflict]
) -> None:
    """Set the field `<group>.<name>` of the merged message to what `how` makes of the ranks that set it."""
    group, name = place
    parts = {rank: getattr(message, group) for rank, message in messages.items()}
    by_rank = {rank: getattr(part, name) for rank, part in parts.items() if part.HasField(name)}
    if by_rank and (value := how(f"{group}.{name}", by_rank, conflicts)) is not None:
        setattr(getattr(merged, group), name, value)


def _agreed(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> Any:
    """The value of the lowest rank; None if it is a non-finite number."""
    said = {rank: _as_json(value) for rank, value in by_rank.items()}
    first = next(iter(by_rank.values()))
    is_writable = not isinstance(first, float) or math.isfinite(first)
    if len({repr(value) for value in said.values()}) > 1 or not is_writable:
        conflicts.append(Conflict(field, said))
    return first if is_writable else None


def _total(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> int | None:
    total = sum(by_rank.values())
    if total > MAX_INT32:
        conflicts.append(Conflict(f"{field} (the sum exceeds int32)", dict(by_rank)))
        return None
    return int(total)


def _mean(field: str, by_rank: ByRank, conflicts: list[Conflict]) -> float | None:
    values = list(by_rank.values())
    if not all(math.isfinite(value) for value in values):
        said = {rank: _as_json(value) for rank, value in by_rank.items()}
        if len({*said.values()}) > 1:
            conflicts.append(Conflict(field, said))
        return None
    # The fsum of n equal numbers, divided by n, may differ from them in the last bit.
    return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)


def _as_json(value: Any) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)

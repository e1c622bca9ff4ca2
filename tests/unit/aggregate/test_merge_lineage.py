import json

import pytest

from distsummary.aggregate.merge_lineage import (
    MAX_CUSTOM,
    MAX_RANKS,
    Conflict,
    is_split,
    merge_graphs,
    merge_lineage,
)
from distsummary.collect.run_lineage import custom_lineage, dataset_graph
from distsummary.format.lineage import Lineage, custom_values
from distsummary.format.pb import mindspore_lineage_pb2 as pb

NAN = float("nan")


def train(**fields):
    message = pb.TrainLineage()
    for group in ("hyper_parameters", "train_dataset", "algorithm", "model"):
        part = getattr(message, group)
        for name in part.DESCRIPTOR.fields_by_name:
            if name in fields:
                setattr(part, name, fields.pop(name))
    assert not fields
    return message


def trained(**fields):
    return Lineage(train=train(**fields))


def evaluated(metric, **dataset):
    metric = metric if isinstance(metric, str) else json.dumps(metric)
    return Lineage(
        evaluation=pb.EvaluationLineage(
            metric=metric, valid_dataset=pb.EvaluationLineage.ValidDataset(**dataset)
        )
    )


def custom(**entries):
    info = pb.UserDefinedInfo()
    for key, value in entries.items():
        kind = {int: "map_int32", str: "map_str", float: "map_double"}[type(value)]
        getattr(info.user_info.add(), kind)[key] = value
    return Lineage(custom=info)


def custom_entries(lineage):
    return {
        key: value
        for info in lineage.custom.user_info
        for values in (info.map_int32, info.map_str, info.map_double)
        for key, value in values.items()
    }


def distributed_graph(rank=0, name="DistributedSampler"):
    graph = pb.DatasetGraph()
    leaf = graph.children.add()
    leaf.sampler.operationParam.mapStr["sampler_name"] = name
    leaf.sampler.operationParam.mapInt["shard_id"] = rank
    return graph


def test_fields_on_which_the_ranks_agree_stand_once():
    merged, conflicts = merge_lineage(
        {rank: trained(optimizer="Adam", learning_rate=0.1, epoch=3, network="MLP") for rank in range(3)}, 3
    )
    assert conflicts == []
    assert merged.train == train(optimizer="Adam", learning_rate=0.1, epoch=3, network="MLP", device_num=3)


def test_the_lowest_rank_wins_a_disagreement_that_is_listed_by_rank():
    merged, conflicts = merge_lineage(
        {2: trained(optimizer="SGD"), 0: trained(optimizer="Adam"), 1: trained(optimizer="Adam")}, 3
    )
    assert merged.train.hyper_parameters.optimizer == "Adam"
    assert conflicts == [Conflict("hyper_parameters.optimizer", {0: "Adam", 1: "Adam", 2: "SGD"})]
    assert conflicts[0].as_json()["by_rank"] == {"0": "Adam", "1": "Adam", "2": "SGD"}


def test_the_device_number_is_the_world_size_not_that_of_the_ranks_that_reported():
    merged, conflicts = merge_lineage({0: trained(device_num=1)}, 8)
    assert merged.train.hyper_parameters.device_num == 8
    assert conflicts == []


@pytest.mark.parametrize("is_sharded", [True, False])
def test_sizes_are_summed_over_shards_and_not_over_replicas(is_sharded):
    lineages = {
        rank: Lineage(
            train=train(batch_size=32, train_dataset_size=250),
            dataset_graph=distributed_graph(rank) if is_sharded else pb.DatasetGraph(),
        )
        for rank in range(4)
    }
    merged, conflicts = merge_lineage(lineages, 4)
    factor = 4 if is_sharded else 1
    assert merged.train.hyper_parameters.batch_size == 32 * factor
    assert merged.train.train_dataset.train_dataset_size == 250 * factor
    assert conflicts == []


def test_uneven_shards_are_no_conflict_and_uneven_replicas_are_one():
    sizes = {0: 251, 1: 250}
    shards = {
        r: Lineage(train=train(train_dataset_size=n), dataset_graph=distributed_graph(r))
        for r, n in sizes.items()
    }
    merged, conflicts = merge_lineage(shards, 2)
    assert merged.train.train_dataset.train_dataset_size == 501
    assert conflicts == []
    merged, conflicts = merge_lineage({r: trained(train_dataset_size=n) for r, n in sizes.items()}, 2)
    assert merged.train.train_dataset.train_dataset_size == 251
    assert conflicts == [Conflict("train_dataset.train_dataset_size", sizes)]


def test_a_sum_that_the_file_cannot_hold_is_left_out_and_listed():
    lineages = {
        r: Lineage(train=train(train_dataset_size=2**30), dataset_graph=distributed_graph(r)) for r in (0, 1)
    }
    merged, conflicts = merge_lineage(lineages, 2)
    assert not merged.train.train_dataset.HasField("train_dataset_size")
    assert "int32" in conflicts[0].field


def test_a_split_dataset_is_known_by_its_sampler_or_its_shards():
    assert is_split(distributed_graph())
    assert is_split(distributed_graph(name="torch.utils.data.distributed.DistributedSampler"))
    assert not is_split(distributed_graph(name="RandomSampler"))
    sharded = pb.DatasetGraph()
    sharded.children.add().children.add().parameter.mapInt["num_shards"] = 2
    assert is_split(sharded)
    whole = pb.DatasetGraph()
    whole.parameter.mapInt["num_shards"] = 1
    assert not is_split(whole)


def test_the_loss_is_the_mean_over_the_ranks_that_have_one():
    merged, conflicts = merge_lineage({0: trained(loss=1.0), 1: trained(epoch=1), 2: trained(loss=2.0)}, 3)
    assert merged.train.algorithm.loss == 1.5
    assert conflicts == []


def test_a_loss_that_is_no_number_is_left_out_and_named():
    merged, conflicts = merge_lineage({0: trained(loss=1.0), 1: trained(loss=NAN)}, 2)
    assert not merged.train.algorithm.HasField("loss")
    assert conflicts == [Conflict("algorithm.loss", {0: 1.0, 1: "nan"})]


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_ranks_whose_loss_and_metrics_are_all_nan_agree(bad):
    train, evaluation = trained(loss=bad).train, evaluated({"acc": bad}).evaluation
    lineages = {rank: Lineage(train=train, evaluation=evaluation) for rank in range(3)}
    merged, conflicts = merge_lineage(lineages, 3)
    assert not merged.train.algorithm.HasField("loss")
    assert merged.evaluation.metric == "{}"
    assert conflicts == []
    lineages[3] = trained(loss=-bad if bad > 0 else 1.0)
    assert [one.field for one in merge_lineage(lineages, 4)[1]] == ["algorithm.loss"]


def test_the_model_is_that_of_the_lowest_rank_that_saved_one():
    nothing = trained(path='{"ckpt": null}', size=0)
    merged, conflicts = merge_lineage(
        {0: nothing, 1: trained(path='{"ckpt": "/a"}', size=9), 2: trained(path='{"ckpt": "/b"}', size=9)}, 3
    )
    assert merged.train.model.path == '{"ckpt": "/a"}'
    assert merged.train.model.size == 9
    assert conflicts == []
    assert merge_lineage({0: nothing}, 1)[0].train.model == nothing.train.model


def test_evaluation_metrics_are_means_over_the_ranks():
    merged, conflicts = merge_lineage(
        {0: evaluated({"acc": 0.5, "n": 10}), 1: evaluated({"acc": 1.0, "n": 10, "f1": 0.25})}, 2
    )
    assert json.loads(merged.evaluation.metric) == {"acc": 0.75, "n": 10, "f1": 0.25}
    assert conflicts == []


@pytest.mark.parametrize("bad", [NAN, float("-inf")])
def test_a_metric_that_is_no_number_never_makes_json_that_is_not_strict(bad):
    merged, conflicts = merge_lineage(
        {0: evaluated({"acc": 0.5, "loss": 1.0}), 1: evaluated({"loss": bad})}, 2
    )
    assert merged.evaluation.metric == '{"acc": 0.5}'
    assert conflicts == [Conflict("metric.loss", {0: 1.0, 1: str(bad)})]
    json.dumps([conflict.as_json() for conflict in conflicts], allow_nan=False)


def test_other_metrics_must_agree_and_nested_nan_is_left_out():
    lineages = {0: evaluated({"name": "a", "table": [NAN]}), 1: evaluated({"name": "b", "table": [NAN]})}
    merged, conflicts = merge_lineage(lineages, 2)
    assert merged.evaluation.metric == '{"name": "a"}'
    assert conflicts == [
        Conflict("metric.name", {0: "a", 1: "b"}),
        Conflict("metric.table", {0: "[nan]", 1: "[nan]"}),
    ]


def test_metrics_that_are_no_json_cost_that_rank_only():
    merged, conflicts = merge_lineage({0: evaluated("{oops"), 1: evaluated({"acc": 0.5})}, 2)
    assert merged.evaluation.metric == '{"acc": 0.5}'
    assert conflicts == [Conflict("metric", {0: "{oops"})]
    assert not merge_lineage({0: evaluated("[1]")}, 1)[0].evaluation.HasField("metric")


def test_the_evaluated_dataset_is_summed_over_shards():
    lineages = {
        r: Lineage(
            evaluation=evaluated({}, valid_dataset_path="/d", valid_dataset_size=5).evaluation,
            dataset_graph=distributed_graph(r),
        )
        for r in (0, 1)
    }
    merged, _ = merge_lineage(lineages, 2)
    assert merged.evaluation.valid_dataset.valid_dataset_size == 10
    assert merged.evaluation.valid_dataset.valid_dataset_path == "/d"


def test_custom_information_is_joined_and_conflicts_are_listed():
    merged, conflicts = merge_lineage(
        {0: custom(k=1, s="x"), 1: custom(k=1, s="y", only=2.5), 2: custom(bad=NAN)}, 3
    )
    assert custom_entries(merged) == {"k": 1, "s": "x", "only": 2.5}
    assert len(merged.custom.user_info) == 3
    assert conflicts == [Conflict("custom.s", {0: "x", 1: "y"}), Conflict("custom.bad", {2: "nan"})]


def test_the_dataset_graph_is_that_of_the_lowest_rank_that_has_one():
    graphs = {2: Lineage(dataset_graph=distributed_graph(2)), 1: Lineage(dataset_graph=distributed_graph(1))}
    merged, conflicts = merge_lineage({0: Lineage(), **graphs}, 3)
    sampler = merged.dataset_graph.children[0].sampler.operationParam
    assert dict(sampler.mapStr) == {"sampler_name": "DistributedSampler", "shard_id": "1, 2"}
    assert not sampler.mapInt  # one rank's number would say that the run is that rank
    assert graphs[1].dataset_graph == distributed_graph(1)
    assert merged.train is None
    assert merged.evaluation is None
    assert merged.custom is None
    assert conflicts == []


def test_no_lineage_merges_to_none():
    assert merge_lineage({}, 4) == (Lineage(), [])


def test_settings_of_ranks_that_differ_are_listed_but_not_without_end():
    def settings(rank):
        return Lineage(custom=custom_lineage({f"k{i}": rank for i in range(MAX_CUSTOM + 20)}))

    merged, conflicts = merge_lineage({rank: settings(rank) for rank in range(100)}, 100)
    assert custom_values(merged.custom) == {f"k{i}": 0 for i in range(MAX_CUSTOM + 20)}
    assert len(conflicts) == MAX_CUSTOM + 1
    assert conflicts[-1].field == "custom (20 more fields)"
    assert len(conflicts[0].as_json()["by_rank"]) == MAX_RANKS


def test_a_conflict_in_words_groups_the_ranks_by_value():
    conflict = Conflict("custom.lr", {0: 0.1, 1: 0.2, 2: 0.2, 3: "x" * 5000})
    assert conflict.as_text() == f"lr (0.1 on rank 0; 0.2 on 2 ranks (1, 2); {'x' * 40} on rank 3)"
    assert conflict.as_json()["by_rank"]["3"] == "x" * 200


class Loader:
    """A DataLoader of one rank of four: it reads its own part of the data, or all of them."""

    batch_size, drop_last, num_workers = 16, True, 0

    def __init__(self, rank: int, *, is_split: bool) -> None:
        self.dataset = range(1000)
        kind = "DistributedSampler" if is_split else "RandomSampler"
        self.sampler = type(kind, (), {"num_replicas": 4, "rank": rank, "seed": 7})()

    def __len__(self) -> int:
        return 15


@pytest.mark.parametrize("is_split", [True, False])
def test_the_merged_graph_is_that_of_all_ranks(is_split: bool) -> None:
    """A batch of the run is one of each rank, and its sampler is not that of rank 0."""
    graphs = {rank: dataset_graph(Loader(rank, is_split=is_split), steps=15) for rank in range(4)}
    lineages = {rank: Lineage(dataset_graph=graph) for rank, graph in graphs.items()}
    merged, conflicts = merge_lineage(lineages, 4)
    loader = merged.dataset_graph.parameter
    assert dict(loader.mapInt) == {
        "batch_size": 64 if is_split else 16, "num_workers": 0, "size": 15, "num_batches": 15,
    }  # fmt: skip
    sampler = merged.dataset_graph.sampler.operationParam
    assert dict(sampler.mapInt) == {"num_replicas": 4, "seed": 7}
    assert sampler.mapStr["rank"] == "0, 1, 2, 3"
    assert (merged.dataset_graph.children, conflicts) == (graphs[0].children, [])


def test_a_graph_of_another_form_is_left_out_of_the_merged_one() -> None:
    mine, other = dataset_graph(Loader(0, is_split=True)), dataset_graph([1, 2])
    assert merge_graphs([mine, other, dataset_graph(None)], is_split=True) == mine
    many = [dataset_graph(Loader(rank, is_split=True)) for rank in range(40)]
    joined = merge_graphs(many, is_split=True)
    assert joined.sampler.operationParam.mapStr["rank"].endswith(", 14, 15 ...")
    assert joined.parameter.mapInt["batch_size"] == 40 * 16

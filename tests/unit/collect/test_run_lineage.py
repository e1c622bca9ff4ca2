import enum
import json
from pathlib import Path

import numpy as np
import pytest

from distsummary.collect.provenance import error_text, git_state, provenance
from distsummary.collect.run_lineage import (
    batch_size,
    class_name,
    custom_lineage,
    dataset_graph,
    dataset_path,
    dataset_size,
    evaluation_lineage,
    train_lineage,
)
from distsummary.format.compatibility import Compatibility
from distsummary.rundir.topology import Topology, hyper_config
from distsummary.training.callbacks import CallbackParams
from tests.unit.collect.doubles import Model, Momentum


class Digits:
    root = "data/digits"

    def __len__(self):
        return 12


class Subset:
    def __init__(self, dataset):
        self.dataset = dataset


class DistributedSampler:
    num_replicas, rank, shuffle, seed = 2, 1, True, 0

    def __len__(self):
        return 6


class DataLoader:
    """The attributes of torch's."""

    batch_size, drop_last, num_workers = 5, False, 0

    def __init__(self, dataset, sampler=None):
        self.dataset, self.sampler = dataset, sampler

    def __len__(self):
        return 2


class DistributedDataParallel:
    def __init__(self, module):
        self.module = module


def cross_entropy(outputs, labels):
    return 0.0


def reported(**more):
    return CallbackParams(
        {"network": DistributedDataParallel(Model()), "optimizer": Momentum(), "loss_fn": cross_entropy,
         "epoch_num": 3, "batch_num": 2, "parallel_mode": "data_parallel",
         "train_dataset": DataLoader(Subset(Digits()), DistributedSampler())} | more
    )  # fmt: skip


def test_the_lineage_of_a_training_says_what_its_loop_reports():
    message = train_lineage(reported(), Topology(world_size=2), loss=0.5)
    hyper = message.hyper_parameters
    assert (hyper.optimizer, hyper.learning_rate, hyper.loss_function) == ("Momentum", 0.25, "cross_entropy")
    assert (hyper.epoch, hyper.parallel_mode, hyper.device_num, hyper.batch_size) == (
        3, "data_parallel", 2, 5,
    )  # fmt: skip
    assert (message.algorithm.network, message.algorithm.loss) == ("Model", 0.5)
    assert message.train_dataset.train_dataset_path.endswith("/data/digits")
    assert message.train_dataset.train_dataset_size == 6
    assert (json.loads(message.model.path), message.model.size) == ({"ckpt": None}, 0)


def test_what_the_loop_does_not_report_stays_unset():
    message = train_lineage(CallbackParams(), Topology())
    assert not message.algorithm.HasField("network")
    assert not message.algorithm.HasField("loss")
    assert not message.hyper_parameters.HasField("learning_rate")
    assert not message.hyper_parameters.HasField("batch_size")
    assert not message.train_dataset.HasField("train_dataset_path")
    assert not message.train_dataset.HasField("train_dataset_size")


def test_values_that_a_field_cannot_hold_do_not_stop_the_lineage():
    message = train_lineage(reported(epoch_num=2**40), Topology(), loss=1e300)
    assert not message.hyper_parameters.HasField("epoch")
    assert message.algorithm.loss == float("inf")


def test_text_that_is_none_is_escaped_and_costs_no_lineage():
    class Odd(Digits):
        root = "/data/\udcff"

    message = train_lineage(reported(train_dataset=DataLoader(Odd())), Topology())
    assert message.train_dataset.train_dataset_path == "/data/\\udcff"
    assert message.hyper_parameters.epoch == 3
    graph = dataset_graph(DataLoader(Odd()))
    assert graph.children[0].parameter.mapStr["root"] == "/data/\\udcff"
    [entry] = custom_lineage({}, '{"custom_lineage_data": {"a": "\\ud800"}}').user_info
    assert dict(entry.map_str) == {"a": "\\ud800"}


def test_the_last_checkpoint_is_named_with_its_size(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"1234")
    model = train_lineage(reported(latest_ckpt_file=str(tmp_path / "last.ckpt")), Topology()).model
    assert (json.loads(model.path)["ckpt"], model.size) == (str(tmp_path / "last.ckpt"), 4)


def test_the_size_of_the_model_is_that_of_its_newest_file_and_without_one_that_of_its_parameters(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"1234")
    network = Model()
    network.parameters = {"weight": np.zeros((2, 3), np.float32)}
    for path, compat, size in (
        (tmp_path / "last.ckpt", False, 4),
        (tmp_path / "last.ckpt", True, 4),
        (None, False, 24),
        (None, True, 0),
    ):
        params = reported(network=network, latest_ckpt_file=path and str(path))
        follows = Compatibility(lineage=compat)
        assert train_lineage(params, Topology(), compatibility=follows).model.size == size


def test_a_model_whose_parameters_cannot_be_counted_has_its_lineage(caplog):
    class Broken:
        @property
        def parameters(self):
            raise RuntimeError("no parameters before the first call")

    assert train_lineage(reported(network=Broken()), Topology()).model.size == 0
    assert "no parameters before the first call" in caplog.text


@pytest.mark.parametrize(
    ("sampler", "steps", "compat", "size"),
    [(None, 3, False, 15), (range(12), 3, False, 12), (range(12), 2, False, 10), (range(12), 3, True, 15),
     (range(12), 0, False, 12), (None, 0, False, None)],
)  # fmt: skip
def test_the_size_of_a_dataset_is_what_a_rank_really_sees(sampler, steps, compat, size):
    assert dataset_size(DataLoader(None, sampler), steps, 5, Compatibility(lineage=compat)) == size


def test_the_batch_size_comes_from_the_loader_or_from_a_batch():
    class Batches:
        batch_sampler = DataLoader(None)

    assert batch_size(DataLoader(None)) == batch_size(Batches()) == 5
    assert batch_size([], (np.zeros((7, 2)), None)) == batch_size([], np.zeros(7)) == 7
    assert batch_size([], "text") is None


def test_the_graph_of_a_dataset_is_the_chain_below_its_loader():
    graph = dataset_graph(DataLoader(Subset(Digits()), DistributedSampler()), 2)
    assert graph.parameter.mapStr["op_type"] == "DataLoader"
    assert dict(graph.parameter.mapInt) == {"batch_size": 5, "num_workers": 0, "size": 2, "num_batches": 2}
    assert dict(graph.parameter.mapBool) == {"drop_last": False}
    assert graph.sampler.operationParam.mapStr["class"] == "DistributedSampler"
    assert graph.sampler.operationParam.mapInt["num_replicas"] == 2
    [subset] = graph.children
    [digits] = subset.children
    assert (subset.parameter.mapStr["op_type"], digits.parameter.mapStr["op_type"]) == ("Subset", "Digits")
    assert digits.parameter.mapStr["root"] == "data/digits"
    assert digits.parameter.mapInt["size"] == 12


class Mode(enum.Enum):
    BILINEAR = "bilinear"


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)


class Resize:
    def __init__(self, size):
        self.size, self.interpolation, self.training, self._hidden = size, Mode.BILINEAR, True, 1


class Normalize:
    def __init__(self):
        self.mean, self.std, self.inplace, self.scale = [0.5, 0.25], (1.0,), False, 2.0


class Transformed(Digits):
    def __init__(self, transform, target_transform=None):
        self.transform, self.target_transform = transform, target_transform


def one_hot(label):
    return label


def test_the_graph_of_the_data_has_the_transforms_in_their_order():
    transform = Compose(Resize((28, 28)), Compose(Normalize(), lambda image: image))
    graph = dataset_graph(DataLoader(Subset(Transformed(transform, one_hot))))
    [digits] = graph.children[0].children
    said = [operation.operationParam for operation in digits.operations]
    names = [parameters.mapStr["tensor_op_name"] for parameters in said]
    assert names == ["Resize", "Normalize", "<lambda>", "one_hot"]
    assert {parameters.mapStr["tensor_op_module"] for parameters in said} == {__name__}
    resize, normalize, *_ = said
    assert list(resize.mapStrList["size"].strValue) == ["28", "28"]
    assert resize.mapStr["interpolation"] == "bilinear"
    assert not {"training", "_hidden"} & {*resize.mapBool, *resize.mapInt}
    assert list(normalize.mapStrList["mean"].strValue) == ["0.5", "0.25"]
    assert (dict(normalize.mapBool), dict(normalize.mapDouble)) == ({"inplace": False}, {"scale": 2.0})


def test_a_transform_within_itself_ends():
    endless = Compose()
    endless.transforms = [endless, Resize(3)]
    graph = dataset_graph(DataLoader(Transformed(endless)))
    assert len(graph.children[0].operations) <= 64


@pytest.mark.parametrize("transform", [None, 3, "flip", {"a": 1}, [], object()])
def test_odd_transforms_are_named_or_left_out(transform):
    graph = dataset_graph(DataLoader(Transformed(transform)))
    names = [one.operationParam.mapStr["tensor_op_name"] for one in graph.children[0].operations]
    assert names in ([], [type(transform).__name__])


def test_a_dataset_that_is_its_own_ends():
    endless = Subset(None)
    endless.dataset = endless
    assert dataset_path(endless) is None
    assert dataset_graph(endless).children


def test_a_loader_of_any_kind_has_a_graph():
    assert dataset_graph([1, 2]).parameter.mapInt["size"] == 2
    assert dataset_graph(iter([])).parameter.mapStr["op_type"] == "list_iterator"
    assert dataset_graph(None).parameter.mapStr["op_type"] == ""


def test_functions_and_classes_are_called_by_their_names():
    assert class_name(cross_entropy) == "cross_entropy"
    assert class_name(Model) == class_name(Model()) == "Model"
    assert class_name(DistributedDataParallel(DistributedDataParallel(Model()))) == "Model"
    assert class_name(None) is None


def test_custom_entries_are_one_message_each_and_large_integers_no_error():
    message = custom_lineage({"i": 3, "f": 0.5, "s": "x", "big": 2**40, "huge": 2**80})
    kinds = [
        (dict(entry.map_int32), dict(entry.map_double), dict(entry.map_str)) for entry in message.user_info
    ]
    assert kinds == [
        ({"i": 3}, {}, {}), ({}, {"f": 0.5}, {}), ({}, {}, {"s": "x"}), ({}, {"big": 2.0**40}, {}),
        ({}, {}, {"huge": str(2**80)}),
    ]  # fmt: skip


def test_a_tuning_jobs_entries_stand_below_the_users():
    text = json.dumps({"custom_lineage_data": {"a": 1, "b": 2, "no": None, "flag": True}})
    entries = [dict(entry.map_int32) for entry in custom_lineage({"b": 3}, text).user_info]
    assert entries == [{"a": 1}, {"b": 3}]


def test_no_secret_of_data_sets_transforms_and_tuning_jobs_is_in_the_lineage():
    transform = Resize((28, 28))
    transform.api_key, transform.mean, transform.headers = "needle1", [0.5], ["Authorization", "needle2"]
    data = Transformed(transform)
    data.root, data.path = Path("s3://AKIAIOSFODNN7EXAMPLE:needle3@bucket/x"), "https://h/?token=needle4"
    graph = str(dataset_graph(DataLoader(data)))
    assert "needle" not in graph
    assert "bucket/x" in graph
    assert (dataset_path(DataLoader(data)) or "").endswith("bucket/x")
    assert "needle" not in (dataset_path(DataLoader(data)) or "")
    text = json.dumps({"custom_lineage_data": {"password": "needle5", "pin": 1234, "lr": 0.5}})
    entries = str(custom_lineage({}, text))
    assert "needle" not in entries
    assert "1234" not in entries


@pytest.mark.parametrize("text", ["{", "[1]", '{"custom_lineage_data": 3}', '{"a": "' + "x" * 100_001 + '"}'])
def test_a_bad_tuning_config_is_ignored_with_a_warning(caplog, text):
    assert not custom_lineage({}, text).user_info
    assert "MINDINSIGHT_HYPER_CONFIG is ignored" in caplog.text


def test_the_tuning_config_comes_from_the_environment():
    assert hyper_config({"MINDINSIGHT_HYPER_CONFIG": "{}"}) == "{}"
    assert hyper_config({}) == ""


def test_metrics_are_json_and_those_that_are_none_are_left_out(caplog):
    message = evaluation_lineage(
        CallbackParams(
            metrics={"a": 0.5, "b": np.float32(0.25), "c": np.array([3])},
            batch_num=2,
            valid_dataset=DataLoader(Digits()),
        )
    )
    assert json.loads(message.metric) == {"a": 0.5, "b": 0.25, "c": 3.0}
    assert message.valid_dataset.valid_dataset_size == 10
    assert not evaluation_lineage(CallbackParams(metrics={"a": object()})).HasField("metric")
    assert "not JSON" in caplog.text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no\nmore"), "ValueError: no"),
        (KeyError("a"), "KeyError: 'a'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError("https://me:pw@host/ with password='a b'"), "OSError: https://***@host/ with password=***"),
        (ValueError("x" * 10_000_000), f"ValueError: {'x' * 285}..."),
        (ValueError("\ud800"), "ValueError: ?"),
        (Unprintable(), "Unprintable: its message raises ValueError"),
    ],
)
def test_the_text_of_an_error_is_short_and_without_secrets(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_outside_a_repository_there_is_no_commit(tmp_path):
    assert git_state(tmp_path) == {}
    assert git_state(tmp_path / "nowhere") == {}


def test_provenance_is_json(tmp_path):
    assert json.loads(json.dumps(provenance(tmp_path)))["versions"]["numpy"] == np.__version__

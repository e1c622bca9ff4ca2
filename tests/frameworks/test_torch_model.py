"""Model with torch: the same numbers as a loop of one's own, its hooks, precision, metrics and refusals."""

import copy
import logging
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import distsummary as ds
from distsummary.errors import InvalidTypeError, InvalidValueError, NoSamplesError
from distsummary.events.reader import read_lineage, read_values
from distsummary.model import metrics
from tests.refusals import refused

LOSS = nn.CrossEntropyLoss()


def batches(count=6, *, size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 3, generator=generator), torch.randint(0, 2, (size,), generator=generator))
        for _ in range(count)
    ]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def sgd(network, lr=0.1):
    return torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)


def model_of(network=None, **options):
    network = net() if network is None else network
    return ds.Model(network, LOSS, sgd(network), **options)


def own_loop(network, data, epochs):
    """The loop that a user would write; returns the losses."""
    optimizer, losses = sgd(network), []
    for _ in range(epochs):
        for inputs, labels in data:
            loss = LOSS(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


class Seen(ds.Callback):
    """Keeps hook, epoch, step and what else is asked for."""

    def __init__(self, *names):
        self.names, self.calls = names, []

    def of(self, hook):
        return [call[1:] for call in self.calls if call[0] == hook]


def _noting(hook):
    def note(self, run_context):
        params = run_context.original_args()
        epoch, step = params.get("cur_epoch_num"), params.get("cur_step_num")
        self.calls.append((hook, epoch, step, *(params.get(name) for name in self.names)))

    return note


for _phase in ("train", "eval"):
    for _event in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"):
        setattr(Seen, f"on_{_phase}_{_event}", _noting(f"on_{_phase}_{_event}"))


def equal(first, second):
    return all(
        torch.equal(a, b)
        for a, b in zip(*(one.state_dict().values() for one in (first, second)), strict=True)
    )


def test_training_gives_the_numbers_of_a_loop_of_ones_own():
    data, mine, own = batches(), net(), net()
    torch.manual_seed(1)
    expected = own_loop(own, data, 2)
    seen = Seen("net_outputs")
    torch.manual_seed(1)
    assert model_of(mine).train(2, data, callbacks=seen) is None
    outputs = [outputs for _, _, outputs in seen.of("on_train_step_end")]
    assert [loss.item() for loss in outputs] == expected
    assert not any(loss.requires_grad for loss in outputs)
    assert equal(mine, own)
    assert mine.training


def test_callbacks_find_what_mindspore_gives_them():
    data, seen = batches(3), Seen()
    found = {}
    seen.on_train_begin = lambda run_context: found.update(run_context.original_args())
    network = net()
    manager = ds.FixedLossScaleManager()
    optimizer = sgd(network)
    ds.Model(network, LOSS, optimizer, loss_scale_manager=manager).train(2, data, callbacks=[seen])
    expected = {
        "batch_num": 3, "cur_step_num": 0, "dataset_sink_mode": False, "device_number": 1, "epoch_num": 2,
        "initial_step": 0, "mode": "train", "parallel_mode": "stand_alone", "last_save_ckpt_step": None,
        "latest_ckpt_file": None, "train_dataset_element": None,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    kept = ("network", "train_network", "optimizer", "loss_fn", "loss_scale_mananger", "train_dataset")
    assert [found[name] for name in kept] == [network, network, optimizer, LOSS, manager, data]
    assert found["list_callback"] == [seen]


def test_fit_evaluates_when_it_is_due_and_shows_the_results():
    seen = Seen("metrics", "eval_results")
    model = model_of(metrics={"acc", "recall"})
    model.fit(4, batches(2), batches(3, seed=1), valid_frequency=2, callbacks=seen)
    order = Counter(call[0] for call in seen.calls)
    assert order["on_eval_begin"] == order["on_eval_end"] == 2
    assert order["on_eval_step_end"] == 6
    assert [call[0] for call in seen.calls if call[1] == 2][-4:] == [
        "on_eval_step_end", "on_eval_epoch_end", "on_eval_end", "on_train_epoch_end",
    ]  # fmt: skip
    ends = seen.of("on_train_epoch_end")
    assert [metrics is None for _, _, metrics, _ in ends] == [True, False, True, False]
    metrics, results = ends[1][2:]
    assert metrics.keys() == {"acc", "recall"}
    assert metrics["recall"].shape == (2,)
    assert results.keys() == {"acc", "recall", "eval_loss"}
    # the last step of a training follows its evaluation
    assert model.eval(batches(3, seed=1))["acc"] == ends[3][2]["acc"]


@pytest.mark.parametrize(("frequency", "epochs"), [(1, [1, 2, 3]), (2, [2]), ([1, 3], [1, 3]), ([], [])])
def test_the_epochs_of_evaluations(frequency, epochs):
    seen = Seen("global_step")
    model_of(metrics={"loss"}).fit(3, batches(2), batches(1), frequency, seen)
    assert [step // 2 for _, _, step in seen.of("on_eval_end")] == epochs


def test_data_that_can_be_read_once_are_evaluated_once():
    history = ds.History()
    model_of(metrics={"loss"}).fit(3, batches(2), iter(batches(1)), 2, history)
    assert len(history.history["loss"]) == 1
    with pytest.raises(InvalidValueError, match="valid_dataset can be read only once, got a list_iterator"):
        model_of(metrics={"loss"}).fit(3, batches(2), iter(batches(1)))


def test_an_evaluation_changes_nothing():
    network = net()
    network[1].eval()  # a frozen batch norm, as some users have
    state, modes = copy.deepcopy(network), [module.training for module in network.modules()]
    model = model_of(network, metrics={"acc", "loss"})
    found = model.eval(batches())
    assert equal(network, state)
    assert [module.training for module in network.modules()] == modes
    with torch.no_grad():
        outputs = [(state.eval()(x), y) for x, y in batches()]
    assert found["loss"] == pytest.approx(float(np.mean([LOSS(x, y).item() for x, y in outputs])))
    assert found["acc"] == np.mean([(x.argmax(1) == y).float().mean().item() for x, y in outputs])
    predicted = model.predict(batches()[0][0])
    assert torch.equal(predicted, outputs[0][0])
    assert not predicted.requires_grad
    assert [module.training for module in network.modules()] == modes


def test_a_batch_norm_that_the_user_froze_stays_frozen():
    network = net()
    network[1].eval()
    before = network[1].running_mean.clone()
    model_of(network, metrics={"loss"}).fit(2, batches(2), batches(1))
    assert torch.equal(network[1].running_mean, before)


def test_a_summary_collector_records_what_it_records_for_mindspore(tmp_path):
    collector = ds.SummaryCollector(str(tmp_path / "run"), collect_freq=2)
    data = DataLoader(TensorDataset(torch.randn(24, 3), torch.randint(0, 2, (24,))), batch_size=4)
    model = model_of(metrics={"acc", "precision"})
    model.fit(1, data, data, callbacks=[ds.LearningRateScheduler(lambda lr, _: lr / 2), collector])
    assert not collector.health().dropped
    values = {}
    for value in read_values(tmp_path / "run"):
        values.setdefault(value.tag, []).append(value.step)
    assert values["loss/auto"] == values["learning_rate/auto"] == [1, 2, 4, 6]
    assert values["0.weight/auto"] == [1, 2, 4, 6]
    assert values["eval/acc"] == values["eval/precision/0"] == values["eval/precision/1"] == [6]
    lineage = read_lineage(tmp_path / "run")
    assert lineage is not None
    assert "Sequential" in str(lineage)
    assert "CrossEntropyLoss" in str(lineage)


def test_a_network_that_trains_itself_has_its_optimizer_loss_and_rate(tmp_path):
    class Training(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.loss = net(), nn.CrossEntropyLoss()
            self.optimizer = torch.optim.SGD(self.network.parameters(), 0.25, 0.9)

        def forward(self, x, y):
            self.optimizer.zero_grad()
            loss = self.loss(self.network(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    data = DataLoader(TensorDataset(torch.randn(24, 3), torch.randint(0, 2, (24,))), batch_size=4)
    collector = ds.SummaryCollector(str(tmp_path / "run"), collect_freq=2)
    config = ds.CheckpointConfig(save_checkpoint_steps=6)
    checkpoints = ds.ModelCheckpoint("own", str(tmp_path / "saved"), config)
    ds.Model(Training()).train(1, data, callbacks=[checkpoints, collector])
    hyper = read_lineage(tmp_path / "run").train.hyper_parameters
    assert (hyper.optimizer, hyper.learning_rate, hyper.loss_function) == ("SGD", 0.25, "CrossEntropyLoss")
    assert [v.step for v in read_values(tmp_path / "run") if v.tag == "learning_rate/auto"] == [1, 2, 4, 6]
    again = Training()
    ds.Model(again).train(2, data, resume=str(tmp_path / "saved"))
    assert again.optimizer.state


def test_in_sink_mode_the_hooks_come_once_an_epoch_and_the_steps_are_the_same():
    data, mine, own = batches(4), net(), net()
    torch.manual_seed(1)
    model_of(own).train(3, data)
    seen = Seen("dataset_sink_mode", "batch_num")
    torch.manual_seed(1)
    model_of(mine).train(3, data, seen, True)
    assert equal(mine, own)
    assert seen.of("on_train_step_end") == [(1, 4, True, 4), (2, 8, True, 4), (3, 12, True, 4)]


def test_a_sink_size_makes_epochs_of_its_own_that_continue_in_the_data():
    data, elements = batches(4), []
    seen = Seen("batch_num", "sink_size")
    seen.on_train_step_end = lambda run_context: elements.append(
        (run_context.original_args().cur_step_num, run_context.original_args().train_dataset_element)
    )
    model_of().train(3, data, seen, dataset_sink_mode=True, sink_size=3)
    assert [(step, [given is batch for given in data].index(True)) for step, batch in elements] == [
        (3, 2), (6, 1), (9, 0),
    ]  # fmt: skip
    assert seen.of("on_train_epoch_begin") == [(1, 0, 3, 3), (2, 3, 3, 3), (3, 6, 3, 3)]
    losses = iter(range(99))
    model_of().train(2, (batch for batch in batches(4) if next(losses) >= 0), None, True, 2)  # read once
    with pytest.raises(InvalidValueError, match="gave no more batches for sink_size"):
        model_of().train(2, iter(batches(3)), None, True, 2)


def test_a_collector_counts_epochs_in_sink_mode(tmp_path):
    collector = ds.SummaryCollector(str(tmp_path), collect_freq=2)
    model_of().train(4, batches(3), collector, dataset_sink_mode=True)
    found = {}
    for value in read_values(tmp_path):
        found.setdefault(value.tag, []).append(value.step)
    assert found["loss/auto"] == [3, 6, 12]  # epochs 1, 2 and 4
    assert found["zz_perf/step_ms"] == [3, 6, 9, 12]


def test_a_resumed_training_counts_on():
    seen = Seen("initial_step")
    model_of().train(3, batches(4), seen, initial_epoch=2)
    assert seen.of("on_train_step_end") == [(3, step, 8) for step in (9, 10, 11, 12)]
    with pytest.raises(InvalidValueError, match=r"initial_epoch=2 needs the step.*pass initial_step="):
        model_of().train(3, iter(batches()), initial_epoch=2)
    seen = Seen()
    model_of(metrics={"acc"}).fit(3, iter(batches(2)), callbacks=seen, initial_epoch=2, initial_step=7)
    assert seen.of("on_train_step_end") == [(3, 8), (3, 9)]


def test_a_sampler_is_reported_the_epoch():
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=3)
    numbers = []
    sampler.set_epoch = numbers.append
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model_of().train(3, loader)
    model_of().train(3, loader, initial_epoch=1)
    model_of().train(2, loader, None, True, 3)
    assert numbers == [0, 1, 2, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_mixed_precision_is_that_of_autocast(level):
    seen_dtypes = set()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs):
            outputs = self.layer(inputs)
            seen_dtypes.add(outputs.dtype)
            return outputs

    network = Net()
    seen = Seen("net_outputs", "loss_scale_mananger")
    model = model_of(network, amp_level=level, metrics={"loss", "acc"})
    model.fit(1, batches(3), batches(2), callbacks=seen)
    assert seen_dtypes == {torch.get_autocast_dtype("cpu")} != {torch.float32}
    assert network.layer.weight.dtype == torch.float32
    _, _, outputs, manager = seen.of("on_train_step_end")[-1]
    if level == "O2":
        assert isinstance(manager, ds.DynamicLossScaleManager)
        assert (outputs[1:], outputs[0].dtype) == ((False, 2**24), torch.float32)
    else:
        assert manager is None


def test_a_loss_scale_that_is_a_power_of_two_changes_no_number():
    data, mine, own = batches(), net(), net()
    torch.manual_seed(1)
    model_of(own).train(1, data)
    for manager in (ds.FixedLossScaleManager(1024.0, False), ds.DynamicLossScaleManager()):
        network = copy.deepcopy(mine)
        torch.manual_seed(1)
        model_of(network, loss_scale_manager=manager).train(1, data)
        assert equal(network, own)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_overflows_is_dropped_or_made(bad):
    data = batches(3)
    data[1][0][0, 0] = bad
    for manager, scales, is_lost in (
        (ds.DynamicLossScaleManager(1024, 2), [1024, 1024, 512], False),
        (ds.FixedLossScaleManager(8.0), [8, 8, 8], False),
        (ds.FixedLossScaleManager(8.0, drop_overflow_update=False), None, True),
    ):
        network = nn.Linear(3, 2)
        seen = Seen("net_outputs")
        model_of(network, loss_scale_manager=manager).train(1, data, seen)
        assert is_lost == bool(network.weight.isnan().any())
        if scales:
            outputs = [outputs for _, _, outputs in seen.of("on_train_step_end")]
            assert [(overflow, scale) for _, overflow, scale in outputs] == list(
                zip([False, True, False], scales, strict=True)
            )


def test_a_loss_scale_of_a_float16_network_is_refused():
    network = nn.Linear(3, 2).half()
    data = [(x.half(), y) for x, y in batches(1)]
    with pytest.raises(ValueError, match="FP16 gradients"):
        model_of(network, loss_scale_manager=ds.FixedLossScaleManager(8.0)).train(1, data)


def test_a_loss_of_several_elements_is_trained_on_their_sum():
    data, mine, own = batches(1), nn.Linear(3, 2), nn.Linear(3, 2)
    own.load_state_dict(mine.state_dict())
    ds.Model(own, nn.CrossEntropyLoss(reduction="sum"), sgd(own)).train(1, data)
    history = ds.History()
    ds.Model(mine, nn.CrossEntropyLoss(reduction="none"), sgd(mine)).train(1, data, history)
    torch.testing.assert_close(mine.weight, own.weight)
    assert isinstance(history.history["net_output"][0], float)


class Named(nn.Module):
    """A network that computes its loss, from arguments by name or place."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs, labels, weight=1.0):
        outputs = self.inner(inputs)
        return LOSS(outputs, labels) * weight, outputs, labels


@pytest.mark.parametrize(
    "batch",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y, 2.0],
        lambda x, y: {"labels": y, "inputs": x},
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: (np.broadcast_to(x.numpy()[:1], x.shape), y.numpy()),  # read-only
    ],
)
def test_a_network_with_its_own_loss_takes_whole_batches(batch):
    network = Named()
    before = network.inner.weight.clone()
    data = [batch(x, y) for x, y in batches(2)]
    metrics = {"Loss": ds.Loss(), "acc": ds.Accuracy()}
    model = ds.Model(network, None, sgd(network), metrics, network, [0, 1, 2])
    model.train(1, data)
    assert not torch.equal(network.inner.weight, before)
    assert model.eval(data).keys() == {"Loss", "acc"}
    assert model.eval_network is model.train_network is model.predict_network is network


def test_without_indexes_a_metric_gets_all_outputs_or_chooses():
    network = Named()
    metrics = {"acc": ds.Accuracy().set_indexes([1, 2]), "Loss": ds.Loss().set_indexes([0])}
    model = ds.Model(network, metrics=metrics, eval_network=network)
    assert model.eval(batches(2)).keys() == metrics.keys()
    with pytest.raises(InvalidValueError, match="takes two inputs, predictions and labels, got 3"):
        ds.Model(network, metrics={"acc"}, eval_network=network).eval(batches(1))
    with pytest.raises(
        InvalidValueError, match=r"eval_indexes=\[0, 1, 3\] must be positions in the 3 outputs"
    ):
        ds.Model(network, metrics={"acc"}, eval_network=network, eval_indexes=[0, 1, 3]).eval(batches(1))


def test_metrics_of_torchmetrics_give_the_numbers_of_ours():
    theirs = {
        "acc": torchmetrics.Accuracy("multiclass", num_classes=2, average="micro"),
        "recall": torchmetrics.Recall("multiclass", num_classes=2, average="none"),
        "f1": torchmetrics.F1Score("multiclass", num_classes=2, average="none"),
    }
    network = net()
    found = model_of(network, metrics=theirs).eval(batches())
    ours = model_of(network, metrics={"acc", "recall", "F1"}).eval(batches())
    assert isinstance(found["acc"], float)
    assert found["acc"] == pytest.approx(ours["acc"])
    np.testing.assert_allclose(found["recall"], ours["recall"], rtol=1e-6)
    np.testing.assert_allclose(found["f1"], ours["F1"], rtol=1e-6)


def test_curves_and_matrices_are_returned_beside_recorded_numbers(tmp_path):
    kinds = {"matrix": metrics.ConfusionMatrix(2), "roc": metrics.ROC(class_num=2), "acc": ds.Accuracy()}
    network = net()
    outputs = [network.eval()(x).detach() for x, _ in batches()]
    collector = ds.SummaryCollector(tmp_path)
    found = model_of(network, metrics=kinds).eval(batches(), callbacks=[collector])
    labels = torch.cat([y for _, y in batches()]).numpy()
    predicted = torch.cat(outputs).argmax(1).numpy()
    expected = [[((labels == true) & (predicted == other)).sum() for other in (0, 1)] for true in (0, 1)]
    np.testing.assert_array_equal(found["matrix"], expected)
    assert found["acc"] == pytest.approx(np.trace(expected) / len(labels))
    last = metrics.ROC(class_num=2)(outputs[-1], batches()[-1][1])
    np.testing.assert_array_equal(found["roc"][1][0], last[1][0])
    assert {value.tag for value in read_values(tmp_path / "eval")} == {"eval/acc"}
    assert "matrix" not in str(read_lineage(tmp_path))


def test_the_occlusion_of_a_torch_network_leaves_it_without_gradients():
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    image = torch.randn(1, 3, 4)
    found = metrics.OcclusionSensitivity(margin=1, n_batch=5)(network, image, torch.tensor(1))
    covered = image.clone()
    covered[:, 1:3, 0:2] = 0  # the place (2, 1)
    with torch.no_grad():
        fall = network(image.double())[0, 1] - network(covered.double())[0, 1]
    assert found.shape == (3, 4)
    assert found[2, 1] == pytest.approx(float(fall))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_bfloat16_predictions_are_counted():
    network = net().to(torch.bfloat16)
    data = [(x.bfloat16(), y) for x, y in batches(2)]
    assert 0 <= ds.Model(network, LOSS, metrics={"acc", "loss"}).eval(data)["acc"] <= 1


@pytest.fixture
def gloo():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("manager", [None, ds.DynamicLossScaleManager(64)])
def test_a_distributed_network_trains_like_a_plain_one(gloo, kind, manager):
    data, own = batches(3), net()
    torch.manual_seed(1)
    model_of(own).train(1, data)
    inner = net()
    mesh = init_device_mesh("cpu", (1,))
    network = DistributedDataParallel(inner) if kind == "ddp" else fully_shard(inner, mesh=mesh)
    torch.manual_seed(1)
    model = model_of(network, loss_scale_manager=manager, metrics={"acc"})
    model.fit(1, data, data)
    whole = inner[0].weight.full_tensor() if kind == "fsdp2" else inner[0].weight
    torch.testing.assert_close(whole, own[0].weight)
    assert inner.training


NETWORK = net()


def test_bad_arguments_of_the_model_are_refused():
    def made(**options):
        return lambda: ds.Model(**{"network": NETWORK, "loss_fn": LOSS, "optimizer": sgd(NETWORK)} | options)

    refused(
        InvalidTypeError,
        (made(network=torch.ones(1)), "network must be a torch.nn.Module, got Tensor"),
        (made(loss_fn=1), "loss_fn must be a function or a module"),
        (made(optimizer=0.1), "optimizer must be a torch optimizer, got float"),
        (made(optimizer=torch.optim.LBFGS(NETWORK.parameters())), "without a closure"),
        (made(metrics=["acc"]), "metrics must be a set or dict"),
        (made(eval_network=1), "eval_network must be a torch.nn.Module"),
        (made(amp_level=1), "amp_level must be str"),
        (made(loss_scale_manager=128), "loss_scale_manager must be LossScaleManager"),
        (made(keep_batchnorm_fp32=1), "keep_batchnorm_fp32 must be bool or None"),
    )
    refused(
        InvalidValueError,
        (made(metrics={"acc"}, loss_fn=None), "metrics need a way to evaluate"),
        (made(eval_indexes=[0, 1]), "eval_indexes must be a list of three int"),
        (made(amp_level="O4"), "amp_level must be one of"),
        (made(amp_level="O2", optimizer=None), "amp_level='O2' needs an optimizer"),
        (made(loss_scale_manager=ds.FixedLossScaleManager(), optimizer=None), "loss_scale_manager needs an"),
        (made(metric={"acc"}), "Model has no argument 'metric'"),
    )


def test_what_has_no_effect_is_said(caplog):
    model_of(boost_level="O1", amp_level="O1", keep_batchnorm_fp32=False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "boost_level has no effect" in caplog.text
    assert "keep_batchnorm_fp32=False has no effect" in caplog.text


class OfMindSpore:
    """A data set that MindSpore would read."""

    def get_dataset_size(self):
        return 1


@pytest.mark.parametrize("method", ["train", "fit"])
def test_bad_arguments_of_a_training_are_refused(method):
    def trained(**options):
        given = {"epoch": 2, "train_dataset": batches(1)} | options
        return lambda: getattr(model_of(), method)(**given)

    refused(
        InvalidValueError,
        (trained(epoch=0), "epoch must be >= 1"),
        (trained(initial_epoch=-1), "initial_epoch must be >= 0"),
        (trained(initial_step=-1), "initial_step must be >= 0"),
        (trained(initial_epoch=2), "epoch must be above initial_epoch, got 2 and 2"),
        (trained(sink_size=0), "sink_size must be -1 or >= 1, got 0"),
        (trained(sink_size=-2), "sink_size must be -1 or >= 1, got -2"),
        (trained(train_dataset=[]), "train_dataset must hold at least one batch"),
        (trained(train_dataset=iter(batches())), "can be read only once"),
        (trained(train_dataset=iter(()), epoch=1), "train_dataset gave no batches"),
        (trained(train_dataset=iter(()), epoch=1, dataset_sink_mode=True), "train_dataset gave no batches"),
        (trained(train_dataset=[torch.ones(1)]), r"must be \(data, labels\), got a Tensor"),
        (trained(train_dataset=[(1, 2, 3)]), "got a tuple of 3"),
        (trained(train_dataset=[{"x": 1, "y": 2}]), "keys 'x', 'y'; give .* a collate_fn"),
    )
    refused(
        InvalidTypeError,
        (trained(epoch=True), "epoch must be int"),
        (trained(initial_step=1.0), "initial_step must be int or None"),
        (trained(dataset_sink_mode=1), "dataset_sink_mode must be bool"),
        (trained(sink_size=1.0), "sink_size must be int"),
        (trained(train_dataset=1), "train_dataset must be iterable, got int"),
        (trained(train_dataset=OfMindSpore()), r"got OfMindSpore; .* list.dataset"),
        (trained(callbacks=1), "callbacks must be list or tuple"),
        (trained(callbacks=[1]), "a callback must be Callback"),
    )


def test_what_cannot_be_evaluated_is_refused():
    plain, measured = model_of(), model_of(metrics={"acc"})
    refused(
        InvalidValueError,
        (lambda: plain.fit(1, batches(1), batches(1)), "Model.fit needs metrics"),
        (lambda: plain.eval(batches(1)), "Model.eval needs metrics"),
        (lambda: plain.fit(1, batches(1), None, 0), "valid_frequency must be >= 1"),
        (lambda: plain.fit(1, batches(1), None, [0]), "valid_frequency must be >= 1"),
        (lambda: plain.predict(torch.ones(0, 3)), r"no empty tensor.*\(0, 3\)"),
        (lambda: measured.eval([]), "valid_dataset must hold at least one batch"),
    )
    refused(
        InvalidTypeError,
        (lambda: plain.fit(1, batches(1), None, "1"), "valid_frequency"),
        (lambda: plain.predict(object()), "predict takes tensors.*got object"),
        (lambda: measured.eval(batches(1), dataset_sink_mode=1), "dataset_sink_mode"),
    )
    refused(NoSamplesError, (lambda: measured.eval(iter(())), "Accuracy has no samples"))


def test_a_training_that_trains_nothing_is_said_once(caplog):
    class Itself(nn.Linear):
        def forward(self, x, y):
            loss = super().forward(x).sum()
            loss.backward()
            with torch.no_grad():
                self.weight -= self.weight.grad
            self.zero_grad()
            return loss.detach()

    ds.Model(Itself(3, 2)).train(1, batches(3))
    assert "nothing is trained" not in caplog.text
    model = ds.Model(nn.Linear(3, 2), nn.CrossEntropyLoss())
    model.train(2, batches(3))
    assert caplog.text.count("changed no weight of Linear and made no gradient: nothing is trained") == 1


def test_a_network_that_returns_no_loss_is_refused():
    network = nn.Linear(3, 2)
    with pytest.raises(InvalidTypeError, match="the loss must be a tensor, got float"):
        ds.Model(network, lambda outputs, labels: 1.0, sgd(network)).train(1, batches(1))


def test_an_error_in_the_training_passes_through_and_leaves_the_callbacks():
    left = []

    class Leaves(ds.Callback):
        def __exit__(self, kind, error, trace):
            left.append(kind)

    def fails():
        yield batches(1)[0]
        raise OSError("the disk of the data")

    with pytest.raises(OSError, match="the disk of the data"):
        model_of().train(1, fails(), Leaves())
    assert left == [OSError]


def test_nan_stops_the_training_at_its_step():
    data = batches(4)
    data[2][0][:] = math.nan
    seen = Seen()
    with pytest.raises(ValueError, match="epoch: 1 step: 3, the loss is nan"):
        model_of().train(1, data, [seen, ds.LossMonitor(0)])
    assert len(seen.of("on_train_step_end")) == 3


@pytest.mark.parametrize("method", ["train", "fit"])
def test_an_optimizer_of_another_network_is_refused_before_the_first_callback(method):
    model = ds.Model(net(), LOSS, sgd(net()), metrics={"loss"})
    data = [batches()] * (1 + (method == "fit"))
    message = "optimizer must hold parameters of the network, got SGD with 6 others, and Sequential would not"
    with pytest.raises(InvalidValueError, match=message):
        getattr(model, method)(1, *data, callbacks=[ds.LambdaCallback(on_train_begin=pytest.fail)])


def test_an_optimizer_of_some_parameters_or_of_those_of_the_loss_trains():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, labels):
            return LOSS(outputs * self.scale, labels)

    network, loss = net(), Scaled()
    for optimizer in (torch.optim.SGD([network[4].bias], 0.1), torch.optim.SGD(loss.parameters(), 0.1)):
        ds.Model(network, loss, optimizer).train(1, batches())
    assert loss.scale != 1

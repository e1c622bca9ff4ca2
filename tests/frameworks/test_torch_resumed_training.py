"""A training that was ended and resumed computes what the uninterrupted one does, bit for bit."""

import random
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import distsummary as ds
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingFileError
from distsummary.rundir.topology import Topology

STEPS = 4  # of an epoch


class Noisy(Dataset):
    """Samples that draw from each library's generator."""

    def __len__(self):
        return 8 * STEPS - 3

    def __getitem__(self, index):
        x = torch.full((6,), index / 10) + torch.rand(6) + float(np.random.rand()) + random.random()
        return x, index % 3


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Losses(ds.Callback):
    """Keeps the losses by step, and ends the training after some step, as a kill would."""

    def __init__(self, last=10**9):
        self.losses, self.last = {}, last

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        outputs = params.net_outputs
        self.losses[params.cur_step_num] = float(outputs[0] if isinstance(outputs, tuple) else outputs)
        if params.cur_step_num == self.last:
            raise KeyboardInterrupt


class Training:
    """A network with dropout, shuffled noisy data, two schedules and a loss scale that grows."""

    def __init__(self, directory, seed, **how):
        seed_all(seed)
        self.net = nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.ReLU(), nn.Linear(5, 3)
        )
        optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5)
        self.manager = ds.DynamicLossScaleManager(4, 2, 3)
        self.model = ds.Model(
            self.net, nn.CrossEntropyLoss(), optimizer, metrics={"acc"}, loss_scale_manager=self.manager
        )
        self.loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
        config = ds.CheckpointConfig(1, append_info=[{"scheduler": self.scheduler}], **how)
        self.checkpoint = ds.ModelCheckpoint("a", directory, config)

    def fit(self, epochs, losses, **how):
        callbacks = [
            ds.LearningRateScheduler(lambda rate, step: rate * 0.97),
            ds.LambdaCallback(on_train_epoch_end=lambda context: self.scheduler.step()),
            self.checkpoint,
            ds.History(),
            ds.TimeMonitor(),
            losses,
        ]
        self.model.fit(epochs, self.loader, self.loader, callbacks=callbacks, **how)
        assert self.checkpoint.failures == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    training, losses = Training(tmp_path_factory.mktemp("whole"), 0), Losses()
    training.fit(3, losses)
    return training, losses.losses


@pytest.mark.parametrize(
    ("last", "how"),
    [
        (1, {"async_save": True}),
        (STEPS, {}),  # the epoch's evaluation and schedule are still to come
        (STEPS + 2, {"format": "ckpt"}),
        (2 * STEPS + 3, {"format": "dcp"}),
        (STEPS + 1, {"enc_key": b"0123456789ABCDEF"}),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_model_continues_bit_for_bit(tmp_path, uninterrupted, last, how, again):
    whole, expected = uninterrupted
    with pytest.raises(KeyboardInterrupt):
        Training(tmp_path, 0, **how).fit(3, Losses(last))
    if again:  # resumed and ended within the same epoch
        last += 1
        with pytest.raises(KeyboardInterrupt):
            Training(tmp_path, 5, **how).fit(3, Losses(last), resume=tmp_path)
    resumed, losses = Training(tmp_path, 7, **how), Losses()
    resumed.fit(3, losses, resume=tmp_path)
    assert losses.losses == {step: loss for step, loss in expected.items() if step > last}
    for name, value in whole.net.state_dict().items():
        assert torch.equal(resumed.net.state_dict()[name], value), name
    assert resumed.manager.state_dict() == whole.manager.state_dict()
    assert resumed.scheduler.state_dict() == whole.scheduler.state_dict()
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert "a_1-3_4" in names or "a_2-3_4" in names  # the step counts from the epoch's beginning


def test_a_training_of_one_epoch_continues_with_the_second(tmp_path, uninterrupted):
    _, expected = uninterrupted
    Training(tmp_path, 0).fit(1, Losses())
    losses = Losses()
    resumed = Training(tmp_path, 3)
    resumed.fit(3, losses, resume=tmp_path)
    assert losses.losses == {step: loss for step, loss in expected.items() if step > STEPS}
    with pytest.raises(InvalidValueError, match="initial_epoch and initial_step must be left out"):
        resumed.fit(3, losses, resume=tmp_path, initial_epoch=1)


def test_in_sink_mode(tmp_path):
    whole = Training(tmp_path / "whole", 0)
    whole.fit(2, Losses(), dataset_sink_mode=True)
    with pytest.raises(KeyboardInterrupt):
        Training(tmp_path / "ended", 0).fit(2, Losses(STEPS), dataset_sink_mode=True)
    resumed = Training(tmp_path / "ended", 7)
    resumed.fit(2, Losses(), dataset_sink_mode=True, resume=tmp_path / "ended")
    for name, value in whole.net.state_dict().items():
        assert torch.equal(resumed.net.state_dict()[name], value), name


class Batches(ds.Callback):
    """Keeps which batches of `BATCHES` were trained, and at which steps; may stop the training."""

    def __init__(self, stop=None):
        self.trained, self.stop = {}, stop

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.trained[params.cur_step_num] = int(params.train_dataset_element[1][0])
        if params.cur_step_num == self.stop:
            run_context.request_stop()


BATCHES = [(torch.full((2, 3), index / 8), torch.tensor([index, index])) for index in range(8)]


def train_batches(directory, *, error=None, at=None, stop=None, epochs=1, **how):
    """Train on `BATCHES`, and raise `error` in the forward pass of step `at` of this training."""
    seed_all(0)
    net = nn.Linear(3, 8)
    passes = []

    def dying(*_):
        passes.append(1)
        if len(passes) == at:
            raise error

    net.register_forward_hook(dying)
    config = ds.CheckpointConfig(100, exception_save=True)
    batches = Batches(stop)
    model = ds.Model(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), 0.1, 0.9))
    with pytest.raises(error) if error else nullcontext():
        model.train(epochs, BATCHES, [batches, ds.ModelCheckpoint("m", directory, config)], **how)
    return net, batches.trained


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_after_an_exception_the_batch_of_its_step_is_trained(tmp_path, error):
    whole, _ = train_batches(tmp_path / "whole")
    train_batches(tmp_path / "ended", error=error, at=5)
    assert [path.name for path in (tmp_path / "ended").iterdir()] == ["m-1_4_breakpoint.safetensors"]
    _, trained = train_batches(tmp_path / "ended", error=error, at=3, resume=tmp_path / "ended")
    assert trained == {5: 4, 6: 5}
    net, trained = train_batches(tmp_path / "ended", resume=tmp_path / "ended")
    assert trained == {7: 6, 8: 7}
    assert torch.equal(net.weight, whole.weight)


def test_a_training_that_was_asked_to_stop_continues_within_its_epoch(tmp_path):
    whole, _ = train_batches(tmp_path / "whole")
    train_batches(tmp_path / "stopped", stop=4)
    net, trained = train_batches(tmp_path / "stopped", resume=tmp_path / "stopped", stop=8)
    assert trained == {5: 4, 6: 5, 7: 6, 8: 7}
    assert torch.equal(net.weight, whole.weight)
    with pytest.raises(InvalidValueError, match="stopped has finished epoch 1 of 1; pass a larger epoch"):
        train_batches(tmp_path / "stopped", resume=tmp_path / "stopped")


def test_a_loop_of_ones_own_continues_after_several_exceptions_in_an_epoch(tmp_path):
    trained = []
    for dies_at in (5, 7, None):
        net = nn.Linear(3, 8)
        resumed = ds.resume(tmp_path, net)
        checkpoint = ds.ModelCheckpoint("m", tmp_path, ds.CheckpointConfig(100, exception_save=True))
        with (
            suppress(RuntimeError),
            ds.Run(
                callbacks=checkpoint, network=net, initial_step=resumed.step, initial_epoch=resumed.epoch
            ) as run,
        ):
            for _ in run.epochs(1):
                for _, index in run.steps(resumed.rest_of(BATCHES)):
                    if run.step == dies_at:
                        raise RuntimeError
                    trained.append((run.step, int(index[0])))
                    assert run.context.original_args()["batch_num"] == 8
    assert trained == [(step, step - 1) for step in range(1, 9)]
    assert (tmp_path / "m_2-1_8.safetensors").exists()


SCHEDULERS = {
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "chain": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 4, 4]),
        ],
        milestones=[3],
    ),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_loop_of_ones_own_continues_bit_for_bit(tmp_path, kind):
    def train(epochs, *, seed, last=10**9, resume=None):
        seed_all(seed)
        net = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        scheduler, scaler = SCHEDULERS[kind](optimizer), torch.amp.GradScaler("cpu", init_scale=8.0)
        states = {"scheduler": scheduler, "scaler": scaler}
        loader, losses = DataLoader(Noisy(), batch_size=8, shuffle=True), {}
        position = ds.Resumed(epoch=0, step=0)
        if resume:
            position = ds.resume(resume, net, optimizer, **states)
        checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(1, append_info=[states]))
        with ds.Run(
            callbacks=checkpoint,
            network=net,
            optimizer=optimizer,
            initial_step=position.step,
            initial_epoch=position.epoch,
        ) as run:
            for epoch in run.epochs(epochs):
                rest = position.rest_of(loader) if epoch == position.epoch else loader
                for x, _ in run.steps(rest):
                    optimizer.zero_grad()
                    loss = net(x.float()).square().mean()
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    scheduler.step(*([loss.item()] if kind == "plateau" else []))
                    losses[run.step] = loss.item()
                    run.log(loss=loss.item())
                    if run.step == last:
                        break
                if run.step == last:
                    break
        return losses, scaler.state_dict()

    expected, scale = train(2, seed=0)
    train(2, seed=0, last=3)
    losses, found = train(2, seed=5, resume=tmp_path / "a_1-1_3.safetensors")
    assert losses == {step: loss for step, loss in expected.items() if step > 3}
    assert found == scale


def test_each_rank_of_replicas_has_its_own_random_numbers(tmp_path, monkeypatch, caplog):
    drawn = {}
    for rank in (1, 0):
        torch.manual_seed(rank)
        net = nn.Linear(2, 1)
        checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(1, keep_checkpoint_max=2))
        topology = Topology(rank=rank, world_size=3)
        with ds.Run(callbacks=checkpoint, network=net, topology=topology) as run:
            for _ in run.steps(range(5)):
                torch.rand(3 + rank)
        drawn[rank] = torch.rand(1)
        assert checkpoint.failures == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["a-1_4.safetensors", "a-1_4.training"]
    for rank in (0, 1, 2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        resumed = ds.resume(tmp_path / "a-1_5.safetensors", nn.Linear(2, 1))
        assert (resumed.epoch, resumed.step, resumed.step_in_epoch) == (0, 5, 5)
        assert not list(resumed.rest_of(range(5)))
        assert (rank == 2) == ("no random numbers of rank 2" in caplog.text)
        if rank in drawn:
            assert torch.rand(1) == drawn[rank]


def test_what_cannot_be_resumed_is_named(tmp_path, caplog):
    net = nn.Linear(2, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net.parameters(), lr=0.1), 1)
    config = ds.CheckpointConfig(append_info=[{"schedule": scheduler}])
    with ds.Run(callbacks=ds.ModelCheckpoint("a", tmp_path, config), network=net) as run:
        for _ in run.steps(range(2)):
            pass
    with pytest.raises(InvalidValueError, match=r"no state 'scheduler', only \['schedule'\]"):
        ds.resume(tmp_path, net, scheduler=scheduler)
    with pytest.raises(InvalidTypeError, match="load_state_dict"):
        ds.resume(tmp_path, net, schedule=3)
    odd = SimpleNamespace(state_dict=lambda: {"a": [object()]}, load_state_dict=print)
    with pytest.raises(InvalidTypeError, match=r"\['a'\]\[0\] is a object.*without pickling"):
        ds.CheckpointConfig(append_info=[{"odd": odd}])
    from safetensors.torch import save_file

    save_file(net.state_dict(), tmp_path / "other.safetensors")
    assert ds.resume(tmp_path / "other.safetensors", net) == ds.Resumed(epoch=0, step=0)
    assert "does not say where" in caplog.text
    (tmp_path / "empty").mkdir()
    assert ds.resume(tmp_path / "empty", net) == ds.Resumed(epoch=0, step=0)
    assert "begins at its first step" in caplog.text
    with pytest.raises(MissingFileError):
        ds.resume(tmp_path / "missing", net)

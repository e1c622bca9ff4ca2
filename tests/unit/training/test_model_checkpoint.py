"""ModelCheckpoint with a model of NumPy: which steps are saved, kept and loaded, and what goes wrong."""

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.checkpoints import model_file
from distsummary.checkpoints.model_file import Saved, superseded
from distsummary.errors import (
    DamagedFileError,
    InvalidTypeError,
    InvalidValueError,
    MissingFileError,
    NotADirectoryPathError,
)
from distsummary.rundir.topology import Topology
from distsummary.training import model_checkpoint, model_state
from tests.disks import FULL, room_for
from tests.patience import PATIENCE_S
from tests.refusals import refused

KEY = b"0123456789ABCDEF"


class Net:
    """A model whose only weight is the number of the step."""

    def __init__(self):
        self.parameters = {"w": np.zeros(3, np.float32), "half": np.zeros((2, 2), np.float16)}


class Failing(ds.Callback):
    """Ends the training at a step."""

    def __init__(self, step):
        self.step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] == self.step:
            raise RuntimeError("the end")


def train(callbacks, *, steps=5, epochs=2, net=None, **more):
    net = net or Net()
    with ds.Run(callbacks=callbacks, network=net, **more) as run:
        for _ in run.epochs(epochs):
            for _ in run.steps(range(steps)):
                net.parameters["w"][:] = run.step
    return run


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("async_save", [False, True, "thread", "process"])
@pytest.mark.parametrize("format", ["safetensors", "ckpt", "dcp"])
def test_mindspores_example_of_every_third_step_and_the_last(tmp_path, async_save, format):
    config = ds.CheckpointConfig(3, async_save=async_save, format=format)
    checkpoint = ds.ModelCheckpoint(directory=str(tmp_path / "new" / "dir"), config=config)
    assert checkpoint.latest_ckpt_file_name == ""
    run = train(checkpoint)
    assert checkpoint.failures == 0
    saved = names(tmp_path / "new" / "dir")
    if not async_save:  # a thread may still write when the next one is due
        assert saved == [f"CKP-{name}.{format}" for name in ("1_3", "2_1", "2_4", "2_5")]
    latest = checkpoint.latest_ckpt_file_name
    assert latest == str(tmp_path / "new" / "dir" / f"CKP-2_5.{format}")
    assert run.context.original_args().latest_ckpt_file == latest
    assert run.context.original_args().last_save_ckpt_step == 10
    loaded = ds.load_checkpoint(latest)
    np.testing.assert_array_equal(loaded["w"], np.full(3, 10, np.float32))
    assert (int(loaded["epoch_num"]), int(loaded["step_num"])) == (2, 10)
    assert loaded["half"].dtype == np.float16
    assert not [t for t in threading.enumerate() if t.name.startswith("distsummary-checkpoint")]


def test_without_arguments_each_step_is_saved_here_and_five_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(ds.ModelCheckpoint())
    assert names(tmp_path) == [f"CKP-2_{step}.safetensors" for step in range(1, 6)]


@pytest.mark.parametrize("directory", [None, "saved"])
def test_a_script_may_change_its_working_directory(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    checkpoint = ds.ModelCheckpoint("a", directory, ds.CheckpointConfig(5))
    monkeypatch.chdir("/")
    train(checkpoint)
    assert checkpoint.failures == 0
    assert names(tmp_path / (directory or "")) == ["a-1_5.safetensors", "a-2_5.safetensors"]


def test_a_later_training_takes_other_names_and_removes_none_of_the_earlier(tmp_path):
    for expected in ("a", "a_1", "a_2"):
        checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(1, keep_checkpoint_max=1))
        train(checkpoint, steps=2, epochs=1)
        assert Path(checkpoint.latest_ckpt_file_name).name == f"{expected}-1_2.safetensors"
    assert len(names(tmp_path)) == 3


def test_the_same_object_continues_in_a_resumed_training(tmp_path):
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(4))
    train(checkpoint, epochs=1)
    train(checkpoint, epochs=2, initial_step=5, initial_epoch=1)
    assert names(tmp_path) == [
        f"a-{name}.safetensors" for name in ("1_4", "1_5", "2_3", "2_5")
    ]  # as if it had not ended


def test_seconds_count_if_steps_do_not(tmp_path, monkeypatch):
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(model_checkpoint, "monotonic", lambda: next(now))
    train(ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(0, 25)), steps=8, epochs=1)
    assert names(tmp_path) == ["a-1_3.safetensors", "a-1_6.safetensors", "a-1_8.safetensors"]


def test_what_is_kept():
    saved = [Saved(60.0 * minute, (1, minute), Path(f"a-1_{minute}.ckpt")) for minute in (0, 1, 2, 5, 6, 7)]
    assert superseded(saved, keep_max=2, keep_minutes=None) == saved[:4]
    assert superseded(saved, keep_max=None, keep_minutes=3) == [saved[4]]  # 5 is the oldest after 4
    assert superseded(saved[:1], keep_max=None, keep_minutes=3) == []


class Dating(ds.Callback):
    """Gives each checkpoint the time `time_of(step)`."""

    def __init__(self, directory, time_of):
        self.directory, self.time_of = directory, time_of

    def on_train_step_end(self, run_context):
        step = run_context.original_args()["cur_step_num"]
        os.utime(self.directory / f"a-1_{step}.safetensors", (self.time_of(step),) * 2)


def test_a_clock_that_is_set_back_removes_no_newer_file(tmp_path):
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(1, keep_checkpoint_max=1))
    train([checkpoint, Dating(tmp_path, lambda step: 2e9 - step)], epochs=1)
    assert names(tmp_path) == ["a-1_5.safetensors"]


def test_a_coarse_clock_orders_the_files_by_their_numbers(tmp_path):
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(1, keep_checkpoint_max=3))
    train([checkpoint, Dating(tmp_path, lambda step: 2e9)], steps=11, epochs=1)
    assert names(tmp_path) == ["a-1_10.safetensors", "a-1_11.safetensors", "a-1_9.safetensors"]
    assert ds.load_checkpoint(tmp_path)["step_num"] == 11


def test_of_n_minutes_one_file_is_kept(tmp_path):
    config = ds.CheckpointConfig(1, keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=1)
    train(ds.ModelCheckpoint("a", tmp_path, config), epochs=1)
    assert names(tmp_path) == ["a-1_1.safetensors", "a-1_5.safetensors"]


def test_prefix_and_directory_may_be_functions(tmp_path):
    checkpoint = ds.ModelCheckpoint(
        lambda params: f"step{params.cur_step_num}",
        lambda params: str(tmp_path / f"epoch{params.cur_epoch_num}"),
        ds.CheckpointConfig(2, keep_checkpoint_max=1),
    )
    train(checkpoint)
    assert names(tmp_path / "epoch1") == ["step2.safetensors", "step4.safetensors"]
    assert names(tmp_path / "epoch2") == [f"step{step}.safetensors" for step in (10, 6, 8)]


def test_what_append_info_adds(tmp_path):
    info = ["step_num", {"epoch_num": 7, "rate": 0.5, "text": "größe", "table": np.ones((2, 1))}]
    for format in ("safetensors", "ckpt"):
        checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(append_info=info, format=format))
        train(checkpoint)
        loaded = ds.load_checkpoint(checkpoint.latest_ckpt_file_name)
        assert (int(loaded["epoch_num"]), int(loaded["step_num"])) == (9, 10)
        assert (float(loaded["rate"]), loaded["text"]) == (0.5, "größe")
        np.testing.assert_array_equal(loaded["table"], np.ones((2, 1)))


def test_another_network_is_saved(tmp_path):
    other = Net()
    other.parameters["w"][:] = -1
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(saved_network=other))
    train(checkpoint)
    assert ds.load_checkpoint(checkpoint.latest_ckpt_file_name)["w"][0] == -1


def test_only_rank_0_saves_replicas(tmp_path):
    for rank in (0, 1):
        checkpoint = ds.ModelCheckpoint("a", tmp_path / str(rank))
        train(checkpoint, topology=Topology(rank=rank, world_size=2))
        assert bool(checkpoint.latest_ckpt_file_name) == (rank == 0)
    assert {path.suffix for path in (tmp_path / "1").iterdir()} == {".training"}


def test_an_exception_saves_the_step_that_it_ended(tmp_path):
    config = ds.CheckpointConfig(4, exception_save=True)
    checkpoint = ds.ModelCheckpoint("a", tmp_path, config)
    with pytest.raises(RuntimeError, match="the end"):
        train([checkpoint, Failing(7)])
    assert names(tmp_path) == ["a-1_4.safetensors", "a-2_2_breakpoint.safetensors"]
    assert ds.load_checkpoint(checkpoint.latest_ckpt_file_name)["w"][0] == 7


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC"])
@pytest.mark.parametrize("format", ["safetensors", "ckpt"])
def test_encrypted_files_need_the_key(tmp_path, mode, format):
    checkpoint = ds.ModelCheckpoint(
        "a", tmp_path, ds.CheckpointConfig(enc_key=KEY, enc_mode=mode, format=format)
    )
    net = Net()
    net.parameters["secret_name"] = np.ones(4, np.float32)
    train(checkpoint, net=net)
    path = Path(checkpoint.latest_ckpt_file_name)
    assert b"secret_name" not in path.read_bytes()
    assert ds.load_checkpoint(path, dec_key=KEY, dec_mode=mode)["w"][0] == 10
    with pytest.raises(InvalidValueError, match="pass dec_key="):
        ds.load_checkpoint(path)
    with pytest.raises(DamagedFileError, match="cannot be"):
        ds.load_checkpoint(path, dec_key=KEY[::-1], dec_mode=mode)
    with pytest.raises(DamagedFileError, match="dec_mode"):
        ds.load_checkpoint(path, dec_key=KEY, dec_mode="AES-GCM" if mode == "AES-CBC" else "AES-CBC")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedFileError, match="cannot be used"):
        ds.load_checkpoint(path, dec_key=KEY, dec_mode=mode)


@pytest.mark.parametrize("async_save", [False, True])
def test_a_failed_save_is_said_and_counted_and_the_training_continues(tmp_path, caplog, async_save):
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(5, async_save=async_save))
    with room_for(0):
        run = train(checkpoint)
    assert run.step == 10
    assert (checkpoint.failures, checkpoint.latest_ckpt_file_name) == (2, "")
    assert caplog.text.count(FULL) == 2
    assert names(tmp_path) == []


def test_a_failed_save_keeps_the_older_checkpoints(tmp_path):
    checkpoint = ds.ModelCheckpoint("a", tmp_path, ds.CheckpointConfig(5, keep_checkpoint_max=1))
    disk = ExitStack()

    class Filling(ds.Callback):
        def on_train_epoch_end(self, run_context):
            disk.enter_context(room_for(0))

    with disk:
        train([checkpoint, Filling()])
    assert names(tmp_path) == ["a-1_5.safetensors"]
    assert ds.load_checkpoint(tmp_path)["w"][0] == 5


def test_while_a_file_is_written_the_training_continues(tmp_path, monkeypatch):
    release, write = threading.Event(), model_state.write_model

    def slow(path, *args, **kwargs):
        if path.name == "a-1_1.safetensors":
            assert release.wait(PATIENCE_S)
        write(path, *args, **kwargs)

    class Releasing(ds.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 6:
                release.set()

    monkeypatch.setattr(model_state, "write_model", slow)
    checkpoint = ds.ModelCheckpoint(
        "a", tmp_path, ds.CheckpointConfig(1, keep_checkpoint_max=20, async_save=True)
    )
    train([checkpoint, Releasing()])
    saved = {path: ds.load_checkpoint(tmp_path / path) for path in names(tmp_path)}
    assert {"a-1_1.safetensors", "a-2_5.safetensors"} <= saved.keys()
    assert not {f"a-1_{step}.safetensors" for step in (2, 3, 4, 5)} & saved.keys()
    for loaded in saved.values():  # each is a copy of its own step
        assert loaded["w"][0] == loaded["step_num"]


def test_without_a_network_nothing_can_be_saved(tmp_path):
    with (
        pytest.raises(InvalidValueError, match="needs a network"),
        ds.Run(callbacks=ds.ModelCheckpoint("a", tmp_path)) as run,
    ):
        next(iter(run.steps([1])))


def test_a_function_that_gives_a_bad_name_does_not_end_the_training(tmp_path, caplog):
    checkpoint = ds.ModelCheckpoint(lambda params: "a/b", tmp_path, ds.CheckpointConfig(5))
    assert train(checkpoint).step == 10
    assert checkpoint.failures == 2
    assert "the result of prefix" in caplog.text


def test_a_directory_that_cannot_be_written_is_refused_before_the_training(tmp_path):
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryPathError, match="file"):
            ds.ModelCheckpoint("x", directory)


def test_the_newest_of_a_directory_is_loaded(tmp_path):
    with pytest.raises(MissingFileError, match="no complete checkpoint"):
        ds.load_checkpoint(tmp_path)
    train(ds.ModelCheckpoint("a", tmp_path))
    newest = tmp_path / "a-2_2.safetensors"
    os.utime(newest, (2e9, 2e9))
    assert ds.load_checkpoint(tmp_path)["step_num"] == 7


def saved(tmp_path):
    checkpoint = ds.ModelCheckpoint("a", tmp_path)
    train(checkpoint)
    return checkpoint.latest_ckpt_file_name


def test_which_names_are_loaded(tmp_path):
    path = saved(tmp_path)
    assert set(ds.load_checkpoint(path, filter_prefix="w")) == {"half", "epoch_num", "step_num"}
    assert set(ds.load_checkpoint(path, specify_prefix=["w", "step"])) == {"w", "step_num"}
    assert set(ds.load_checkpoint(path, choice_func=lambda name: name == "w")) == {"w"}
    with pytest.raises(InvalidValueError, match="leave nothing"):
        ds.load_checkpoint(path, specify_prefix="unknown")


def test_values_go_into_a_network(tmp_path):
    net = Net()
    net.parameters["new"] = np.full(1, 3.0)
    parameters = ds.load_checkpoint(saved(tmp_path))
    assert ds.load_param_into_net(net, parameters) == (["new"], ["epoch_num", "step_num"])
    assert (net.parameters["w"][0], net.parameters["new"][0]) == (10, 3)
    other = Net()
    assert ds.load_checkpoint(saved(tmp_path), net=other).keys() == parameters.keys()
    assert other.parameters["w"][0] == 10


def test_names_may_differ_by_one_prefix():
    net = Net()
    given = {f"network.{name}": array + 5 for name, array in net.parameters.items()}
    assert ds.load_param_into_net(net, given, strict_load=True) == (["w", "half"], list(given))
    assert ds.load_param_into_net(net, given) == ([], [])
    assert net.parameters["w"][0] == 5


@pytest.mark.parametrize(
    ("given", "strict", "match"),
    [
        ({"w": np.ones(4, np.float32)}, False, "shape"),
        ({"w": np.ones(3, np.float64)}, True, "dtype"),
        ({"w": np.ones(3, np.complex64)}, False, "dtype"),
    ],
)
def test_values_that_do_not_fit_change_nothing(given, strict, match):
    net = Net()
    with pytest.raises(InvalidValueError, match=match):
        ds.load_param_into_net(net, {"half": np.ones((2, 2), np.float16)} | given, strict)
    assert not net.parameters["half"].any()


def test_bad_arguments_and_files_of_loading(tmp_path):
    path = saved(tmp_path)
    (tmp_path / "a.pt").touch()
    refused(
        InvalidTypeError,
        (lambda: ds.load_checkpoint(1), "ckpt_file_name"),
        (lambda: ds.load_checkpoint(path, net="net"), "net: model must be"),
        (lambda: ds.load_checkpoint(path, strict_load=1), "strict_load"),
        (lambda: ds.load_checkpoint(path, filter_prefix=1), "filter_prefix"),
        (lambda: ds.load_checkpoint(path, specify_prefix=[1]), "specify_prefix"),
        (lambda: ds.load_checkpoint(path, choice_func="w"), "choice_func"),
        (lambda: ds.load_param_into_net(Net(), [1]), "parameter_dict"),
    )
    refused(
        InvalidValueError,
        (lambda: ds.load_checkpoint(path, filter_prefix=""), "filter_prefix"),
        (lambda: ds.load_checkpoint(path, dec_key="text"), "dec_key"),
        (lambda: ds.load_checkpoint(path, dec_key=KEY), "not encrypted"),
        (lambda: ds.load_checkpoint(path, dec_mode="SM4-CBC"), "dec_mode"),
        (lambda: ds.load_checkpoint(tmp_path / "a.pt"), "must end with"),
    )
    with pytest.raises(MissingFileError, match="absent"):
        ds.load_checkpoint(tmp_path / "absent.safetensors")


def test_names_that_regular_expressions_would_misread(tmp_path):
    assert model_file.free_prefix(tmp_path, "a+(b") == "a+(b"
    train(ds.ModelCheckpoint("a+(b", tmp_path, ds.CheckpointConfig(keep_checkpoint_max=1)))
    assert names(tmp_path) == ["a+(b-2_5.safetensors"]
    assert model_file.free_prefix(tmp_path, "a+(b") == "a+(b_1"


def test_a_checkpoint_under_the_name_that_mindspore_gives_it_is_named_as_it_is_called_here(tmp_path):
    (tmp_path / "lenet-3_20.safetensors").write_bytes(b"")
    with pytest.raises(
        MissingFileError, match=r"lenet-3_20\.ckpt does not exist; next to it is lenet-3_20\.safetensors"
    ):
        ds.load_checkpoint(tmp_path / "lenet-3_20.ckpt")

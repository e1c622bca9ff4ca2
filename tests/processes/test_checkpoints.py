"""Checkpoints of processes that are killed, that a signal ends, and of models sharded over other ranks."""

import signal

import numpy as np
import pytest
import torch

import distsummary as ds
from distsummary.base.publish import TEMPORARY
from distsummary.checkpoints.model_file import saved_in
from tests.programs import run_python

KILLS = 50

# Forks a training again and again, and kills it while it saves: all it does is to save, at each step.
KILLED = """
import os, pathlib, random, signal, sys, time
import numpy as np
import distsummary as ds
from distsummary.training import model_checkpoint  # imported before the forks

class Net:
    def __init__(self):
        self.parameters = {f"w{i}": np.zeros(20_000, np.float32) for i in range(5)}

def train(directory, **how):
    net = Net()
    config = ds.CheckpointConfig(1, keep_checkpoint_max=1, **how)
    with ds.Run(callbacks=ds.ModelCheckpoint("a", directory, config), network=net) as run:
        for _ in run.steps():
            for array in net.parameters.values():
                array[:] = run.step

place, kills, random = pathlib.Path(sys.argv[1]), int(sys.argv[2]), random.Random(7)
for number in range(kills):
    directory = place / str(number)
    how = {"async_save": number % 2 == 0, "format": ("safetensors", "ckpt", "dcp")[number % 3]}
    child = os.fork()
    if not child:
        try:
            train(directory, **how)
        finally:
            os._exit(1)
    while not (directory.is_dir() and any(one.name[0] == "a" for one in directory.iterdir())):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_killed_while_it_saves_the_newest_complete_checkpoint_loads(tmp_path):
    run_python("-c", KILLED, tmp_path, KILLS)
    torn = 0
    for number in range(KILLS):
        directory = tmp_path / str(number)
        loaded = ds.load_checkpoint(directory)
        assert loaded["step_num"] == max(
            ds.load_checkpoint(one.path)["step_num"] for one in saved_in(directory)
        )
        for index in range(5):
            np.testing.assert_array_equal(loaded[f"w{index}"], np.full(20_000, loaded["step_num"]))
        torn += any(path.name.startswith(TEMPORARY) for path in directory.iterdir())
    assert torn  # otherwise no kill came while something was written


TERMINATED = """
import os, signal, sys, time
import numpy as np
import distsummary as ds

class Net:
    parameters = {"w": np.zeros(3, np.float32)}

class Later(ds.Callback):
    def on_train_step_end(self, run_context):
        if sys.argv[3:] and run.step == 4:
            signal.raise_signal(int(sys.argv[2]))
        time.sleep(0.2)
        print(run_context.original_args()["cur_step_num"], flush=True)

config = ds.CheckpointConfig(10**9, exception_save=True)
callbacks = [ds.ModelCheckpoint("a", sys.argv[1], config), Later()]
with ds.Run(callbacks=callbacks, network=Net()) as run:
    for _ in run.steps():
        Net.parameters["w"][:2] = run.step
        if run.step == 4 and not sys.argv[3:]:
            os.kill(os.getpid(), int(sys.argv[2]))
        time.sleep(0.01)
        Net.parameters["w"][2:] = run.step
"""


@pytest.mark.parametrize("when", [(), ("in a later callback",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_the_training_saves_a_whole_step_that_all_callbacks_have_seen(
    tmp_path, number, when
):
    done = run_python("-c", TERMINATED, tmp_path, str(int(number)), *when, code=-number)
    (saved,) = tmp_path.iterdir()
    assert saved.name == "a-1_4_breakpoint.safetensors", done.stderr
    loaded = ds.load_checkpoint(saved)
    assert loaded["step_num"] == 4
    np.testing.assert_array_equal(loaded["w"], np.full(3, 4))
    assert done.stdout.split() == ["1", "2", "3", "4"]
    assert ("Ctrl-C: the step that runs is ended first" in done.stderr) == (number == signal.SIGINT)


def test_a_second_ctrl_c_ends_a_step_that_hangs(tmp_path):
    hanging = TERMINATED.replace("time.sleep(0.01)", "").replace(
        "int(sys.argv[2]))", "2); time.sleep(1.1); os.kill(os.getpid(), 2)"
    )
    done = run_python("-c", hanging, tmp_path, code=-signal.SIGINT)
    assert [path.name for path in tmp_path.iterdir()] == ["a-1_3_breakpoint.safetensors"]
    assert done.stdout.split() == ["1", "2", "3"]


FORKING = """
            child = os.fork()
            if not child:
                try:
                    os.kill(os.getpid(), 2)
                    time.sleep(5)
                except KeyboardInterrupt:
                    os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            break
"""


def test_ctrl_c_interrupts_a_child_that_was_forked_in_a_step(tmp_path):
    forking = TERMINATED.replace("os.kill(os.getpid(), int(sys.argv[2]))", FORKING)
    run_python("-c", forking, tmp_path)


FULL = """
import resource, sys
import numpy as np
import distsummary as ds

class Net:
    parameters = {"w": np.zeros(30_000, np.float32)}

sys.dont_write_bytecode = True  # a module's would be cut off, for all processes after
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
checkpoint = ds.ModelCheckpoint("a", sys.argv[1], ds.CheckpointConfig(2, format=sys.argv[2]))
with ds.Run(callbacks=checkpoint, network=Net()) as run:
    for _ in run.steps(range(8)):
        if run.step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(run.step, checkpoint.failures)
"""


@pytest.mark.parametrize("format", ["safetensors", "ckpt", "dcp"])
def test_a_full_disk_is_said_and_the_training_continues(tmp_path, format):
    done = run_python("-c", FULL, tmp_path, format)
    assert done.stdout.split() == ["8", "2"]
    assert done.stderr.count("and the training continues") == 2
    assert done.stderr.count("raise the limit of the file size (ulimit -f)") == 2, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"a-1_6.{format}", f"a-1_8.{format}"]  # nothing is left of what failed


# All ranks see the same batches, so that the mean of their gradients is that of one process. The ranks are
# forked from one process that has imported torch, which takes longer than all the rest.
SHARDED = """
import os, sys
import numpy as np
import torch
import torch._dynamo  # the first step of an optimizer imports it
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
import distsummary as ds
from distsummary.frameworks.torch import TorchFramework

torch.set_num_threads(1)

class Failing(ds.Callback):
    "From here on in each step, rank 0 cannot copy a tensor, or can again."

    now, copy = False, TorchFramework.snapshot

    def __init__(self, now):
        self.next = now

    def on_train_step_end(self, run_context):
        Failing.now = self.next

def snapshot(framework, tensor):
    if Failing.now and os.environ["RANK"] == "0":
        raise MemoryError
    return Failing.copy(framework, tensor)

TorchFramework.snapshot = snapshot

def same_by_torch(model, optimizer, source):
    "torch reads what load_param_into_net has read."
    loaded, state = get_state_dict(model, optimizer)
    found = {**loaded, "optimizer": {"state": state["state"]}}
    found = torch.utils._pytree.tree_map(torch.zeros_like, found)
    expected = torch.utils._pytree.tree_leaves({**loaded, "optimizer": {"state": state["state"]}})
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(source))
    for value, other in zip(torch.utils._pytree.tree_leaves(found), expected, strict=True):
        assert torch.equal(*(getattr(one, "to_local", lambda: one)() for one in (value, other)))
    rate = {"optimizer.param_groups.0.lr": torch.zeros((), dtype=torch.float64)}
    dcp.load(rate, storage_reader=dcp.HuggingFaceStorageReader(source))
    assert rate.popitem()[1] == 0.05

def train(place, rank, ranks, source):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    inputs = torch.randn(32, 6)
    if ranks > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        store = f"file://{place}/store_{ranks}_{os.path.basename(source)[:5]}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    step, callbacks = 0, []
    if source:
        parameters = ds.load_checkpoint(source)
        assert ds.load_param_into_net(model, parameters)[0] == []
        ds.load_param_into_net(optimizer, parameters)
        step = int(parameters["step_num"])
        if source.endswith(".dcp"):
            same_by_torch(model, optimizer, source)
    else:
        for name in ("whole", "shards", "dcp", "failed"):
            config = ds.CheckpointConfig(
                2, 0, 2, integrated_save=name != "shards", async_save=True,
                format="dcp" if name == "dcp" else "safetensors",
            )
            callbacks.append(ds.ModelCheckpoint(name, place, config))
        callbacks[3:] = [Failing(True), callbacks[3], Failing(False)]
    losses = []
    with ds.Run(callbacks=callbacks, network=model, optimizer=optimizer, initial_step=step) as run:
        for _ in run.steps(range(3 if source else 6)):
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if callbacks:
        whole, shards, by_torch, _, failed, _ = callbacks
        assert (whole.failures, shards.failures, by_torch.failures) == (0, 0, 0)
        assert by_torch.latest_ckpt_file_name == f"{place}/dcp-1_6.dcp"
        assert failed.failures == (0 if rank else 3)  # and the other rank did not wait for ever
    np.save(f"{place}/losses_{rank}_of_{ranks}_{os.path.basename(source)[:5]}.npy", losses)
    if ranks > 1:
        torch.distributed.destroy_process_group()

def fork(place, ranks, source):
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            try:
                train(place, rank, ranks, source)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            os._exit(1)
        children.append(child)
    assert not any(os.waitpid(child, 0)[1] for child in children)

place = sys.argv[1]
fork(place, 2, "")
whole, shards = f"{place}/whole-1_6.safetensors", f"{place}/shards-1_6_rank_00001_of_00002.safetensors"
for source in (whole, shards, f"{place}/dcp-1_6.dcp"):
    fork(place, 1, source)
for source in (shards, f"{place}/dcp-1_6.dcp"):
    fork(place, 4, source)
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_a_checkpoint_of_two_ranks_continues_on_one_and_on_four(tmp_path):
    run_python("-c", SHARDED, tmp_path)
    found = {path.name for path in tmp_path.glob("*.safetensors")}
    shards = {
        step: {f"shards-1_{step}_rank_{rank:05d}_of_00002.safetensors" for rank in (0, 1)}
        for step in (2, 4, 6)
    }
    # If the other rank wrote its shard of step 6 after rank 0 had looked, rank 0 has kept those of step 2.
    kept = shards[4] | shards[6] | {"whole-1_4.safetensors", "whole-1_6.safetensors"}
    assert found in (kept, kept | shards[2])
    whole = ds.load_checkpoint(tmp_path / "whole-1_6.safetensors")
    shards = ds.load_checkpoint(tmp_path / "shards-1_6_rank_00000_of_00002.safetensors")
    assert whole.keys() == shards.keys()
    assert "optimizer/state/0/exp_avg" in whole
    by_torch = ds.load_checkpoint(tmp_path / "dcp-1_6.dcp")
    assert whole.keys() == by_torch.keys()
    for name in whole:
        np.testing.assert_array_equal(shards[name], whole[name], err_msg=name)
        np.testing.assert_array_equal(by_torch[name], whole[name], err_msg=name)
    assert sorted(path.name for path in tmp_path.glob("dcp-*")) == ["dcp-1_4.dcp", "dcp-1_6.dcp"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\x80"]

    before, expected = (
        np.load(tmp_path / name) for name in ("losses_0_of_2_.npy", "losses_0_of_1_whole.npy")
    )
    assert (expected < before[-1]).all()
    for kind in ("shard", "dcp-1"):
        np.testing.assert_array_equal(np.load(tmp_path / f"losses_0_of_1_{kind}.npy"), expected)
        for rank in range(4):
            losses = np.load(tmp_path / f"losses_{rank}_of_4_{kind}.npy")
            np.testing.assert_allclose(losses, expected, rtol=1e-6)

"""What is recorded, saved, resumed and drawn does not depend on the defaults and modes of a script."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.frameworks import torch as of_torch
from distsummary.frameworks.torch_step_hooks import listeners

PACKAGE = Path(ds.__file__).parent
# What torch makes on its default device; the first ones, of floats, in its default dtype, too.
OF_DTYPE = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
OF_DEVICE = (
    *OF_DTYPE, "as_tensor", "asarray", "empty_strided", "randint", "randperm", "scalar_tensor", "tensor",
)  # fmt: skip


def test_each_of_our_tensors_names_its_device_and_dtype():
    found = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in re.finditer(rf"(?<!\w)torch\.({'|'.join(OF_DEVICE)})\(", text):
            depth, stop = 1, call.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[stop], 0)
                stop += 1
            needed = ["device=", *["dtype="] * (call[1] in OF_DTYPE)]
            if not all(one in text[call.end() : stop] for one in needed):
                found.append(f"{path.relative_to(PACKAGE)}: {text[call.start() : stop]}")
    assert found == []


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default device": lambda: torch.device(
        "meta"
    ),  # for a GPU: what is made without a device is not on the host
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic": deterministic,
}
KINDS = ("histogram", "tensor", "image", "audio", "norms")


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def trained(
    place: Path, mode: Callable[[], AbstractContextManager[object]]
) -> tuple[dict[str, object], list[np.ndarray]]:
    """What a training with given gradients records, and the parameters of one that resumes it."""
    model, optimizer = made()
    gradients = [torch.rand_like(one) for one in model.parameters()]
    x, resumed = torch.rand(8, 4), made()
    keeper = ds.ModelCheckpoint(
        "m", place / "saved", ds.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=1)
    )
    options = {name: ".*" for name in ("histograms", "gradients", "tensors")}
    path = ds.Record(collect_landscape={"intervals": [[1, 2, 3]]})
    of_torch._array_dtype.cache_clear()
    with (
        mode(),
        ds.init(
            place / "run", watch=model, optimizer=optimizer, norms=True, collect_freq=1, callbacks=keeper,
            record=path, system_metrics=False, **options,
        ) as run,
    ):  # fmt: skip
        for _ in run.steps(range(4)):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            run.log(loss=x[0, 0], both=x.sum())
            run.tensor("t", x)
            run.histogram("h", x)
            run.image("i", x)
            run.audio("a", x[0], 8000)
        assert (run.health().errors, run.health().dropped) == ({}, {})
    with mode():
        ds.resume(place / "saved", *resumed)
    recorded = ds.open_run(place / "run")
    found: dict[str, object] = {}
    found["tags"] = {kind: sorted(recorded.tags[kind]) for kind in KINDS}
    found["path"] = sorted(one.name for one in (place / "run" / "ckpt_dir").iterdir())
    state = [*resumed[0].parameters(), *(one["exp_avg"] for one in resumed[1].state.values())]
    return found, [one.detach().numpy() for one in state]


@pytest.mark.parametrize("name", MODES)
def test_a_training_is_recorded_saved_and_resumed_as_without(tmp_path: Path, name: str) -> None:
    if name == "default device" and torch.__version__ < "2.13":
        pytest.skip("Adam itself fails there before torch 2.13: its step count is on the default device")
    without, parameters = trained(tmp_path / "without", torch.enable_grad)
    found, others = trained(tmp_path / "within", MODES[name])
    assert found["tags"] == without["tags"]
    assert found["path"] == without["path"]
    for one, other in zip(parameters, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [name for name in MODES if name != "autocast"])
def test_a_landscape_is_drawn_as_without(name: str) -> None:
    model, _ = made()
    model.eval()
    batches = [(torch.rand(16, 4), torch.rand(16, 1))]
    options = {"plane": ds.Plane(size=3), "progress": False}
    without = ds.landscape(model, nn.MSELoss(), batches, **options)
    with MODES[name]():
        found = ds.landscape(model, nn.MSELoss(), batches, **options)
    np.testing.assert_allclose(found.z, without.z, rtol=1e-6)


def test_a_model_made_in_inference_mode_is_drawn() -> None:
    with torch.inference_mode():
        model, _ = made()
        batches = [(torch.rand(16, 4), torch.rand(16, 1))]
        grid = ds.landscape(model.eval(), nn.MSELoss(), batches, plane=ds.Plane(size=3), progress=False)
    assert np.isfinite(grid.z).all()


@pytest.mark.parametrize("options", [{"norms": True}, {"gradients": ".*", "collect_freq": 1}, {}])
def test_trainings_in_threads_do_not_end_each_other(tmp_path: Path, options: dict[str, object]) -> None:
    ended: list[object] = []

    def trial(place: Path) -> None:
        for number in range(4):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with ds.init(
                place / str(number), watch=model, quiet=True, system_metrics=False, **options
            ) as run:
                for _ in run.steps(range(20)):
                    optimizer.zero_grad()
                    model(torch.ones(8, 4)).square().mean().backward()
                    optimizer.step()
                    run.log(loss=1.0)
            ended.append(run.health().errors)

    threads = [threading.Thread(target=trial, args=(tmp_path / str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [{}] * 16
    assert listeners() == []


@pytest.mark.parametrize("options", [{"graph": "modules"}, {"graph": "ops"}, {"rank": 0, "world_size": 2}])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_is_scripted_while_it_is_recorded(tmp_path: Path, options: dict[str, object]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), torch.ones(2, 4)
    with ds.init(tmp_path, watch=model, aggregate=False, **options) as run:
        for _ in run.steps(range(3)):
            scripted = torch.jit.script(model)
            model(x).mean().backward()
            assert torch.equal(scripted(x), model(x))
        assert run.health().errors == {}
    assert options.get("rank") == 0 or "graph" in ds.open_run(tmp_path).tags

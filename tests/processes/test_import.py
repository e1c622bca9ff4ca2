"""What importing distsummary loads, and what its names load."""

import pkgutil
from pathlib import Path

import pytest

import distsummary
from tests.programs import run_python

HEAVY = ("ray", "torch", "mindspore", "matplotlib", "sklearn", "tensorboard", "grpc")


def loaded_after(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after running `code`."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = run_python("-c", code)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import distsummary",
        "import distsummary.cli.main",
        "from distsummary import DistSummaryError",
        "import distsummary; distsummary.thor, distsummary.ConvertModelUtils",
    ],
)
def test_importing_loads_neither_ray_nor_a_framework_nor_an_extra(code: str) -> None:
    loaded = loaded_after(code)
    assert "distsummary" in loaded
    assert not loaded & set(HEAVY)


# What a run of one rank that logs a number does without: rooms, and modules of what several ranks need.
ROOMS = {
    "cli", "demo", "integrations", "landscapes", "launching", "mindspore", "model", "runs", "storage",
    "summary", "thor", "view",
}  # fmt: skip
OF_MANY = {
    "aggregate.aggregator", "aggregate.live", "aggregate.merge", "checkpoints.trajectory", "frameworks.torch",
}  # fmt: skip
FOREIGN = {"filelock", "google", "google_crc32c", "msgspec", "numpy", "psutil", "typing_extensions"}
LOGGED = """
import sys, time
started = {*sys.modules}  # with what an environment loads into each interpreter
import distsummary as ds
from distsummary.collect import heartbeat

heartbeat.FIRST_S = heartbeat.BEAT_S = 0.01

def loaded():
    return {name for name in sys.modules if name.partition(".")[0] == "distsummary"}

with ds.init(sys.argv[1], quiet=True) as run:
    for step in run.steps(range(int(sys.argv[2]))):
        run.log(loss=0.5)
        if step == 0:
            before = loaded()
        time.sleep(0.01)
    late = loaded() - before
foreign = {name.partition(".")[0] for name, module in sys.modules.items()
           if name not in started and "site-packages" in (getattr(module, "__file__", None) or "")}
for names in (loaded(), foreign, late):
    print(*names)
"""


def test_a_run_that_logs_a_number_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    ours, foreign, _ = run_python("-c", LOGGED, str(tmp_path / "run"), "3").stdout.split("\n")[:3]
    loaded = {name.partition(".")[2] for name in ours.split()}
    assert not {name.partition(".")[0] for name in loaded} & ROOMS
    assert not loaded & OF_MANY
    assert {*foreign.split()} <= FOREIGN
    every = [*Path(distsummary.__path__[0]).rglob("*.py")]
    assert len(loaded) < 0.4 * len(every)  # a third of the package, and room for what is added


def test_no_thread_of_a_run_loads_modules_while_it_trains(tmp_path: Path) -> None:
    late = run_python("-c", LOGGED, str(tmp_path / "run"), "50").stdout.split("\n")[2]
    assert late == ""


@pytest.mark.parametrize("verb", ["status", "watch", "runs"])
def test_what_shows_states_loads_neither_ray_nor_a_framework(verb: str, tmp_path: Path) -> None:
    import distsummary as ds

    with ds.init(tmp_path, quiet=True) as run:
        list(run.steps(range(1)))
    loaded = loaded_after(f"from distsummary.cli.main import main; main([{verb!r}, {str(tmp_path)!r}])")
    assert not loaded & set(HEAVY)


def test_no_public_name_hides_a_module() -> None:
    hidden = {module.name for module in pkgutil.iter_modules(distsummary.__path__)} & set(distsummary.__all__)
    assert hidden == set()


@pytest.mark.parametrize("name", distsummary.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    value = getattr(distsummary, name)
    assert callable(value)
    assert name in dir(distsummary)


@pytest.mark.parametrize(
    "code", ["import distsummary as ds; ds.summary.scalar", "from distsummary import ScalarSummary"]
)
def test_the_operators_of_a_network_load_torch_on_first_use(code: str) -> None:
    without_torch = f"import sys; sys.modules['torch'] = None\n{code}"
    done = run_python("-c", without_torch, code=1)
    assert "needs torch, which is not installed; run: pip install torch" in done.stderr

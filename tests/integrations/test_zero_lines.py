"""Scripts that do not know of distsummary, recorded by one environment variable."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import distsummary as ds
from tests import forked
from tests.conftest import ROOT
from tests.integrations import scripts
from tests.programs import run_program

SCRIPT = ROOT / "tests/integrations/scripts.py"
ELASTIC = ROOT / "tests/integrations/elastic.py"
PROCESSES = ROOT / "tests/integrations/processes.py"
OTHERS = ("compiled_step", "crashing", "failing_once", "together", "ddp", "fsdp2")
pytestmark = pytest.mark.usefixtures("fork_server")
SCRIPTS = [name for name in scripts.TRAININGS if name not in OTHERS]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def entered(directory: Path) -> Path:
    """A directory for PYTHONPATH with which torch finds the entry point, installed or not."""
    found = directory / "door" / "door-0.dist-info"
    found.mkdir(parents=True)
    if not any(point.name == "distsummary" for point in entry_points(group="torch.backends")):
        (found / "METADATA").write_text("Metadata-Version: 2.1\nName: distsummary-door\nVersion: 0\n")
        (found / "entry_points.txt").write_text(
            "[torch.backends]\ndistsummary = distsummary_autoload:start\n"
        )
    return found.parent


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entered(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def seen(fork_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scripts saw without distsummary."""
    out = tmp_path_factory.mktemp("seen")
    assert trained(out, *SCRIPTS, DISTSUMMARY="", CHECKPOINT=str(checkpoint(out))) == (0, "")
    return out


def checkpoint(directory: Path) -> Path:
    """The state of an Adam that has made 12 steps."""
    torch.manual_seed(1)
    model = scripts.net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in scripts.batches():
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), directory / "checkpoint.pt")
    return directory / "checkpoint.pt"


def start(
    door: Path, directory: Path, command: list[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(door), os.environ["PYTHONPATH"]))
    variables = {"DISTSUMMARY": str(directory / "run"), "PYTHONPATH": paths, **variables}
    return run_program(*command, code=None, cwd=directory, **variables)


def trained(directory: Path, *names: str, **variables: str) -> tuple[int, str]:
    """Train scripts in a process that has just imported torch; returns its exit code and its stderr."""
    variables = {"DISTSUMMARY": str(directory / "run"), **variables}
    done = forked.run_script(SCRIPT, directory, *names, cwd=directory, **variables)
    return done.returncode, done.stderr


def script(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def column(run: Any, tag: str, **chosen: Any) -> tuple[list[int], list[float]]:
    table = run.scalars(tag, **chosen)
    return table["step"].tolist(), table["value"].tolist()


def check(run: Any, rows: list[Any], *, first: int = 1, **chosen: Any) -> None:
    """Each step is recorded once, with the numbers of the script."""
    steps = list(range(first, first + len(rows)))
    for number, tag in enumerate(("loss", "lr", "grad_norm")):
        found, values = column(run, tag, **chosen)
        assert found == steps, tag
        assert values == pytest.approx([row[number] for row in rows], rel=1e-6), tag


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unmodified_script_is_recorded_and_trains_the_same_bits(name: str, seen: Path, tmp_path: Path):
    code, stderr = trained(tmp_path, name, CHECKPOINT=str(seen / "checkpoint.pt"))
    assert code == 0, stderr
    assert stderr.startswith("distsummary: recording run"), stderr
    assert stderr.count("\n") == 1, stderr
    with_us, without = (json.loads((place / f"{name}.0.json").read_text()) for place in (tmp_path, seen))
    assert with_us == without
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    check(run, without["rows"], first=scripts.STEPS + 1 if name == "resumed" else 1)


def test_a_step_that_is_compiled_as_a_whole_trains_the_same_and_is_not_recorded(tmp_path: Path) -> None:
    code, stderr = trained(tmp_path, "compiled_step")
    assert (code, "distsummary" in stderr) == (0, False)
    assert not (tmp_path / "run").exists()


def test_a_script_that_crashes_is_a_failed_run(tmp_path: Path) -> None:
    code, _ = trained(tmp_path, "crashing")
    assert code == 1
    run = ds.open_run(tmp_path / "run")
    assert run.state == "failed"
    assert "the data are gone" in run.attempts["error"][0]
    check(run, json.loads((tmp_path / "crashing.0.json").read_text())["rows"])


def test_the_ranks_of_torchrun_are_one_run_which_its_workers_and_agent_do_not_touch(door, tmp_path):
    done = start(door, tmp_path, [*TORCHRUN, str(SCRIPT), str(tmp_path), "ddp"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("distsummary:") == 1, done.stderr
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    for rank in range(2):
        rows = json.loads((tmp_path / f"ddp.{rank}.json").read_text())["rows"]
        check(run, rows, rank=rank)
        for tag in (
            "zz_perf/step_ms",
            "zz_perf/own_ms",
            "zz_perf/wait_ms",
        ):  # the first step began before the run
            assert column(run, tag, rank=rank)[0] == list(range(2, 1 + len(rows))), tag
    assert {
        "zz_perf/phase/data/cpu_ms",
        "zz_perf/phase/forward/cpu_ms",
        "zz_perf/phase/optimizer/cpu_ms",
    } <= {*run.scalars(rank=0).tags}


def test_the_tasks_of_srun_are_one_run(door: Path, tmp_path: Path) -> None:
    """By Slurm's variables: `srun` itself is replaced by a shell script."""
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/sh\n"
        "export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NODEID=0\n"
        'SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!\n'
        'SLURM_PROCID=1 SLURM_LOCALID=1 "$@" && wait $first\n'
    )
    srun.chmod(0o755)
    variables = {"DISTSUMMARY": "runs/{time}", "TRAINED": str(tmp_path / "begun")}
    done = start(door, tmp_path, [str(srun), *script(tmp_path, "together")], **variables)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "runs").glob("2*")
    run = ds.open_run(path)
    assert (run.state, run.world_size) == ("finished", 2)
    rows = json.loads((tmp_path / "together.0.json").read_text())["rows"]
    for rank in range(2):
        check(run, rows, rank=rank)


def launched(directory: Path, run: str, restarts: int, name: str, **variables: str) -> None:
    """Train a script on two ranks."""
    arguments = (run, restarts, SCRIPT, directory, name)
    done = forked.run_script(ELASTIC, *arguments, cwd=directory, **variables)
    assert done.returncode == 0, done.stderr


def test_sharded_parameters_are_followed(tmp_path: Path) -> None:
    launched(tmp_path, "run", 0, "fsdp2")
    run = ds.open_run(tmp_path / "run")
    for rank in range(2):
        check(run, json.loads((tmp_path / f"fsdp2.{rank}.json").read_text())["rows"], rank=rank)


def test_a_restart_keeps_the_name_and_the_next_launch_gets_its_own(tmp_path: Path) -> None:
    files = {"FAIL": str(tmp_path / "failed"), "TRAINED": str(tmp_path / "trained")}
    for restarts in (1, 0):
        launched(tmp_path, "runs/{time}", restarts, "failing_once", **files)
    first, second = (ds.open_run(path) for path in sorted((tmp_path / "runs").glob("2*")))
    assert [len(run.attempts["attempt"]) for run in (first, second)] == [2, 1]
    assert first.state == second.state == "finished"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader_are_in_no_run_and_say_nothing(context: str, door: Path, tmp_path: Path) -> None:
    done = start(door, tmp_path, [sys.executable, str(PROCESSES), str(tmp_path), context])
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run"]
    run = ds.open_run(tmp_path / "run")
    assert (run.state, run.world_size, len(run.attempts["attempt"])) == ("finished", 1, 1)
    check_losses(run, tmp_path)


def check_losses(run: Any, directory: Path) -> None:
    for rank in range(run.world_size):
        losses = json.loads((directory / f"losses.{rank}.json").read_text())
        steps, found = column(run, "loss", rank=rank)
        assert (steps, found) == (list(range(1, 1 + len(losses))), pytest.approx(losses, rel=1e-6))


@pytest.mark.parametrize("launcher", ["spawned_ranks", "launched"])
def test_ranks_that_the_script_starts_itself_are_one_run(launcher: str, door: Path, tmp_path: Path) -> None:
    """By torch.multiprocessing.spawn, and by `ds.launch` on a cluster of its own."""
    command = [sys.executable, str(PROCESSES), str(tmp_path), launcher]
    done = start(door, tmp_path, command, DISTSUMMARY="run", RAY_AUTH_MODE="disabled")
    assert done.returncode == 0, done.stderr
    assert f"{done.stdout}{done.stderr}".count("distsummary: recording") == 1
    run = ds.open_run(tmp_path / "run")
    assert (run.state, run.world_size, run.config) == ("finished", 2, {})
    check_losses(run, tmp_path)
    assert "differ" not in done.stderr


def test_the_training_of_a_further_thread_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(
        f"import sys, threading\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nimport scripts\n"
        "scripts.plain()\n"
        "for _ in range(2):\n"
        "    thread = threading.Thread(target=scripts.plain); thread.start(); thread.join()\n"
    )
    done = forked.run_script(tmp_path / "threads.py", cwd=tmp_path, DISTSUMMARY=str(tmp_path / "run"))
    assert (done.returncode, done.stderr.count("another thread trains, too")) == (0, 1), done.stderr
    assert len(ds.open_run(tmp_path / "run").scalars("loss")) == 12


def test_a_run_of_the_scripts_own_wins(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import distsummary as ds, sys\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import scripts\n"
        "with ds.init('own', quiet=True) as run:\n"
        "    for _ in run.steps(range(2)):\n"
        "        scripts.plain()\n"
        "        run.log(loss=0.5)\n"
    )
    done = forked.run_script(tmp_path / "own.py", cwd=tmp_path, DISTSUMMARY=str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "run").exists()
    assert column(ds.open_run(tmp_path / "own"), "loss") == ([1, 2], [0.5, 0.5])


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"DISTSUMMARY": "/proc/none/run"}, "/proc/none"),
        ({"DISTSUMMARY": "s3://bucket/run"}, "s3:"),
        ({"DISTSUMMARY_OPTIONS": "{"}, "DISTSUMMARY_OPTIONS is not JSON"),
        ({"DISTSUMMARY_OPTIONS": '{"norm": true}'}, "DISTSUMMARY_OPTIONS has the unknown key 'norm'"),
        ({"DISTSUMMARY_OPTIONS": '{"norms": 3}'}, "norms must"),
        ({"DISTSUMMARY_OPTIONS": '{"record": {"image": true}}'}, "record in DISTSUMMARY_OPTIONS"),
        ({"DISTSUMMARY_OPTIONS": '{"watch": 1}'}, "unknown key 'watch'"),
        ({"DISTSUMMARY_OPTIONS": '{"tee": 1}'}, "tee in DISTSUMMARY_OPTIONS"),
    ],
)
def test_a_wrong_variable_is_one_line_and_the_training_continues(variables, said, seen, tmp_path):
    code, stderr = trained(tmp_path, "plain", **variables)
    assert code == 0
    assert stderr.startswith("distsummary: nothing is recorded: ")
    assert said in stderr
    assert stderr.count("\n") == 1, stderr
    assert (tmp_path / "plain.0.json").read_text() == (seen / "plain.0.json").read_text()


def test_the_options_are_those_of_init(tmp_path: Path) -> None:
    options = {
        "norms": True,
        "record": {"formats": ["tensorboard"]},
        "diagnose": {"level": "error"},
        "config": {"a": 1},
    }
    code, stderr = trained(tmp_path, "plain", DISTSUMMARY_OPTIONS=json.dumps(options))
    assert code == 0, stderr
    assert "(files: tensorboard)" in stderr
    assert "zz_norms/gradient" in ds.open_run(tmp_path / "run").scalars().tags


def test_a_tee_records_what_the_script_gives_to_its_summary_writer(tmp_path: Path) -> None:
    code, stderr = trained(tmp_path, "written", DISTSUMMARY_OPTIONS='{"tee": true}')
    assert (code, stderr.count("\n")) == (0, 1), stderr
    rows = json.loads((tmp_path / "written.0.json").read_text())["rows"]
    run = ds.open_run(tmp_path / "run")
    check(run, rows)
    losses = [row[0] for row in rows]
    assert column(run, "script/train/loss")[1] == pytest.approx(losses, rel=1e-6)
    steps, halves = column(run, "script/both/half")
    assert steps == list(range(1, 1 + len(rows)))
    assert halves == pytest.approx([loss / 2 for loss in losses], rel=1e-6)


def test_without_the_variable_nothing_of_distsummary_is_imported(door: Path, tmp_path: Path) -> None:
    code = "import sys, torch; print([name for name in sys.modules if name.startswith('distsummary')])"
    done = start(door, tmp_path, [sys.executable, "-c", code], DISTSUMMARY="")
    assert (done.stdout, done.stderr) == ("['distsummary_autoload']\n", "")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_torch_can_be_imported_without_the_package(damage: str, tmp_path: Path) -> None:
    place = entered(tmp_path)
    (place / "distsummary_autoload.py").write_text((ROOT / "distsummary_autoload.py").read_text())
    missing = "sys.modules['distsummary'] = None; " if damage == "missing" else ""
    if damage == "damaged":
        (place / "distsummary").mkdir()
        (place / "distsummary" / "__init__.py").write_text("this is no Python")
    command = [sys.executable, "-c", f"import sys; {missing}import torch"]
    done = start(place, tmp_path, command, PYTHONPATH=str(place))
    assert done.returncode == 0
    assert done.stderr.startswith("distsummary: nothing is recorded: ")
    assert done.stderr.count("\n") == 1


def test_run_says_where_the_run_is(door: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "distsummary", "run", "--into", "runs/{time}", "--"]
    done = start(door, tmp_path, [*command, *script(tmp_path, "plain")])
    [path] = (tmp_path / "runs").glob("2*")
    assert done.returncode == 0
    assert f"distsummary: {path}: finished; distsummary status {path}" in done.stderr


def test_run_passes_the_exit_code_on_and_says_that_nothing_was_recorded(door: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "distsummary", "run", "--", sys.executable, "-c", "raise SystemExit(3)"]
    done = start(door, tmp_path, command)
    assert done.returncode == 3
    assert done.stderr.startswith("distsummary: nothing was recorded")


def test_run_reports_a_closed_door(door: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "distsummary", "run", "--", "true"]
    done = start(door, tmp_path, command, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 2
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 closes the door" in done.stderr
    without = "import importlib.metadata as metadata, sys; metadata.entry_points = lambda **group: (); "
    run = "from distsummary.cli.main import main; sys.exit(main(['run', '--', 'true']))"
    done = start(door, tmp_path, [sys.executable, "-c", without + run])
    assert done.returncode == 2
    assert "no entry point torch.backends" in done.stderr

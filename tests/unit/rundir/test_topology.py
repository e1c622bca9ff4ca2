"""A rank finds its place from every source, in order, and refuses contradictions."""

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from distsummary.base.processes import in_ray, is_alive
from distsummary.errors import InvalidTypeError, InvalidValueError, WorldMismatchError
from distsummary.rundir.topology import LAUNCH_ID, Topology, detect, in_notebook, job_name, launch_token
from tests.refusals import refused

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
MSRUN = {
    "RANK_ID": "1", "RANK_SIZE": "2", "DEVICE_ID": "1", "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
}  # fmt: skip

REPORT = """
import dataclasses, json, sys
from distsummary.rundir.topology import Topology
print(json.dumps(dataclasses.asdict(Topology())), flush=True)
sys.stdin.read()
"""


def find(
    environ: dict[str, str] | None = None, modules: dict[str, Any] | None = None, **arguments: Any
) -> Topology:
    return detect(environ=environ or {}, modules=modules or {}, **arguments)


def place(topology: Topology) -> tuple[str, int, int, int, int, int]:
    t = topology
    return (t.source, t.rank, t.world_size, t.local_rank, t.local_world_size, t.node_rank)


def torch(rank: int, world_size: int, *, initialized: bool = True, available: bool = True) -> dict[str, Any]:
    """`sys.modules` with the part of torch that is asked."""
    distributed = SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )
    return {"torch": SimpleNamespace(distributed=distributed)}


def ray_train(rank: int | None, world_size: int | None, experiment: str | None = "train-1") -> dict[str, Any]:
    """`sys.modules` with the part of Ray Train that is asked."""
    context = SimpleNamespace(
        get_world_rank=lambda: rank, get_world_size=lambda: world_size, get_local_rank=lambda: 0,
        get_local_world_size=lambda: 2, get_node_rank=lambda: 3, get_experiment_name=lambda: experiment,
    )  # fmt: skip
    return {"ray.train": SimpleNamespace(get_context=lambda: context)}


def test_without_any_source_it_is_rank_0_of_1() -> None:
    topology = find()
    assert (topology.role, topology.mesh) == ("train", {})
    assert (topology.host, topology.pid) == (platform.node(), os.getpid())


def mindspore(rank: int, size: int, *, initialized: bool = True) -> dict[str, Any]:
    management = SimpleNamespace(
        GlobalComm=SimpleNamespace(INITED=initialized), get_rank=lambda: rank, get_group_size=lambda: size
    )
    return {"mindspore.communication.management": management}


def outside_of_a_train_function() -> object:
    raise RuntimeError("not in a train function")


ALONE = ("single process", 0, 1, 0, 1, 0)
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("environ", "modules", "expected"),
    [
        (TORCHRUN, {}, ("environment", 5, 8, 1, 4, 1)),
        (TORCHRUN | SLURM, {}, ("environment", 5, 8, 1, 4, 1)),  # srun started the agents of the nodes
        (OPENMPI, {}, ("openmpi", 2, 4, 0, 2, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {}, ("pmi", 1, 2, 0, 1, 0)),
        ({"RANK_ID": "7", "RANK_SIZE": "8"}, {}, ("mindspore", 7, 8, 0, 1, 0)),
        (MSRUN, {}, ("mindspore", 1, 2, 1, 1, 0)),
        (SLURM, {}, ("slurm", 3, 4, 1, 1, 1)),
        ({"RANK": "3"}, {}, ALONE),  # of how many ranks?
        (TORCHRUN, torch(5, 8), ("torch.distributed", 5, 8, 1, 4, 1)),  # the environment reports the node
        ({}, torch(1, 2), ("torch.distributed", 1, 2, 0, 1, 0)),
        ({}, torch(1, 2, initialized=False), ALONE),
        ({}, torch(1, 2, available=False), ALONE),
        ({}, {"torch": SimpleNamespace()}, ALONE),
        (MSRUN, mindspore(1, 2), ("mindspore.communication", 1, 2, 1, 1, 0)),
        ({}, mindspore(1, 2), ("mindspore.communication", 1, 2, 0, 1, 0)),
        ({}, mindspore(1, 2, initialized=False), ALONE),
        ({}, ray_train(1, 4) | torch(1, 4), ("ray.train", 1, 4, 0, 2, 3)),
        ({}, ray_train(None, None), ALONE),
        ({}, ray_train(0, 1, experiment=None), ALONE),
        ({}, {"ray.train": SimpleNamespace(get_context=outside_of_a_train_function)}, ALONE),
    ],
)
def test_each_source_is_understood_in_its_order(environ, modules, expected):
    assert place(find(environ, modules)) == expected


def test_arguments_win_over_the_rank_that_was_found() -> None:
    topology = find(TORCHRUN, rank=2, world_size=8, role="eval", mesh={"dp": (2, 8)})
    assert (topology.source, topology.rank, topology.world_size) == ("arguments", 2, 8)
    assert (topology.role, topology.mesh) == ("eval", {"dp": (2, 8)})
    assert place(find({}, rank=3, world_size=4))[:3] == ("arguments", 3, 4)


def test_sources_that_contradict_each_other_are_all_named() -> None:
    refused(
        WorldMismatchError,
        (lambda: find(TORCHRUN, torch(1, 4)), "4 by torch.distributed, 8 by environment"),
        (lambda: find(TORCHRUN, world_size=4), "8 by environment, 4 by the argument world_size"),
        (lambda: find({}, ray_train(0, 2) | torch(0, 4)), "2 by ray.train, 4 by torch.distributed"),
    )
    refused(
        InvalidValueError,
        (lambda: find(TORCHRUN | {"RANK": "8"}), r"\[0, 8\), got 8 from environment"),
        (lambda: find(rank=3), "pass both rank= and world_size="),
    )


@pytest.mark.parametrize(
    ("name", "value", "low"),
    [("RANK", "five", 0), ("RANK", "-1", 0), ("WORLD_SIZE", "0", 1), ("LOCAL_RANK", "-1", 0),
     ("LOCAL_WORLD_SIZE", "0", 1), ("NODE_RANK", "x", 0)],
)  # fmt: skip
def test_a_bad_number_names_its_variable(name: str, value: str, low: int) -> None:
    message = f"the environment variable {name} must be an integer >= {low}, got {value!r}"
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        find(TORCHRUN | {name: value})


def test_bad_arguments_are_refused_by_name() -> None:
    refused(
        InvalidValueError,
        (lambda: find(role="training"), "role must be"),
        (lambda: find(rank=-1), "rank must be"),
        *(
            (lambda place=place: find(mesh={"dp": place}), r"mesh\['dp'\] must be \(coordinate")
            for place in (3, (3, 2), (0, 0), (0.0, 2))
        ),
    )
    refused(
        InvalidTypeError,
        (lambda: find(world_size=True), "world_size must be"),
        (lambda: find(mesh=[("dp", 0, 4)]), "mesh must be"),
    )


def test_the_ranks_of_one_start_share_an_incarnation_and_a_restart_has_another() -> None:
    first, second = (find(TORCHRUN | {"RANK": rank}) for rank in "01")
    restarted = find(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert first.incarnation == second.incarnation == "10.0.0.1:29500+0"
    assert restarted.incarnation == "10.0.0.1:29500+1"


def test_the_launch_id_is_the_incarnation_before_the_master_address() -> None:
    assert find(TORCHRUN | {LAUNCH_ID: "abc"}).incarnation == "abc+0"


OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "incarnation", "is_unique"),
    [
        (OPENMPI | {"OMPI_MCA_ess_base_jobid": "35"} | MASTER, "openmpi 35+0+0", True),
        (OPENMPI | {"PMIX_NAMESPACE": "prterun-a-9@1"}, "openmpi prterun-a-9@1+0+0", True),
        (OPENMPI, "", False),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "7.0"}, "pmi 7.0+0+0", True),
        (SLURM | {"SLURM_STEP_ID": "3"}, "slurm 7.3+0+0", True),
        (SLURM | {"SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "2"}, "slurm 7.3+2+0", True),
        (SLURM, "", False),  # a batch script may start many trainings
        (SLURM | MASTER, "10.0.0.1:29500+0", False),
        (TORCHRUN, "10.0.0.1:29500+0", False),
        (MSRUN, "127.0.0.1:8118+0", False),
        (
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "digits", "TORCHELASTIC_RESTART_COUNT": "3"},
            "10.0.0.1:29500:digits+3",
            False,
        ),
        # Slurm started the nodes of a cluster here, and something else the ranks on it
        (TORCHRUN | SLURM | {"SLURM_STEP_ID": "3"}, "10.0.0.1:29500+0", False),
        (TORCHRUN | SLURM | {"SLURM_STEP_ID": "3", LAUNCH_ID: "abc"}, "abc+0", True),
    ],
)
def test_a_start_has_the_name_that_its_launcher_gave_to_all_its_ranks(environ, incarnation, is_unique):
    found = find(environ)
    assert (found.incarnation, found.is_incarnation_unique) == (incarnation, is_unique)


def test_without_a_launcher_a_single_rank_is_an_incarnation_of_its_own_and_several_have_none() -> None:
    assert find().incarnation != find().incarnation
    assert find(rank=1, world_size=2).incarnation == ""


def test_every_topology_is_a_session_of_its_own() -> None:
    assert find(TORCHRUN).session != find(TORCHRUN).session


def test_a_process_lives_from_its_start_to_its_end_and_elsewhere_no_one_knows() -> None:
    process = subprocess.Popen([sys.executable, "-c", REPORT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    reported = json.loads(process.stdout.readline())
    assert is_alive(reported) is True
    assert is_alive(reported | {"pid_start": "1"}) is False  # another process has the number now
    process.communicate()
    assert is_alive(reported) is False
    assert is_alive(reported | {"pid_space": "another container"}) is None
    assert is_alive({"pid": reported["pid"]}) is None
    assert is_alive(dataclasses.asdict(find())) is True


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert place(detect(modules={}))[:3] == ("environment", 1, 2)


def test_ray_that_is_not_loaded_or_not_connected_is_no_cluster() -> None:
    assert not in_ray({})
    assert not in_ray({"ray": SimpleNamespace(is_initialized=lambda: False)})  # type: ignore[dict-item]  # stands for a module
    assert in_ray({"ray": SimpleNamespace(is_initialized=lambda: True)})  # type: ignore[dict-item]  # stands for a module


def test_a_notebooks_kernel_is_known_without_importing_ipython() -> None:
    kernel = type("ZMQInteractiveShell", (), {})
    shells = {
        "kernel": kernel(), "of Colab": type("Shell", (kernel,), {})(), "terminal": object(), "none": None,
    }  # fmt: skip
    found = {
        where: in_notebook({"IPython": SimpleNamespace(get_ipython=lambda shell=shell: shell)})  # type: ignore[dict-item]  # stands for a module
        for where, shell in shells.items()
    }
    assert found == {"kernel": True, "of Colab": True, "terminal": False, "none": False}
    assert not in_notebook({})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "j1", "SLURM_JOB_ID": "7"}, "torchrun j1"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm 7.0"),
        ({"TORCHELASTIC_RUN_ID": "j1", LAUNCH_ID: "launch abc"}, "launch abc"),
    ],
)
def test_the_job_is_named_by_its_launcher(environ: dict[str, str], expected: str) -> None:
    assert job_name(environ) == job_name(environ | {"TORCHELASTIC_RESTART_COUNT": "1"}) == expected


ADDRESS = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("", True)),
        (ADDRESS, ("a:29500", False)),
        (ADDRESS | ELASTIC, ("a:29500:none", False)),
        (ADDRESS | ELASTIC | {"TORCHELASTIC_RESTART_COUNT": "1"}, ("a:29500:none", True)),
        (ADDRESS | ELASTIC | {"TORCHELASTIC_RUN_ID": "j1"}, ("torchrun j1", True)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "n1"},
            ("openmpi n1", True),
        ),
    ],
)
def test_a_launch_has_a_name_that_all_its_ranks_find(environ: dict[str, str], expected: tuple[str, bool]):
    assert launch_token(detect(environ=environ, modules={}), environ, {}) == expected


def test_the_ranks_of_one_agent_are_named_by_it() -> None:
    environ = ADDRESS | ELASTIC | {"LOCAL_WORLD_SIZE": "4"}
    found, is_unique = launch_token(detect(environ=environ, modules={}), environ, {})
    again = environ | {"TORCHELASTIC_RESTART_COUNT": "1"}
    assert (found, is_unique) == launch_token(detect(environ=again, modules={}), again, {})
    assert str(os.getppid()) in found
    assert is_unique

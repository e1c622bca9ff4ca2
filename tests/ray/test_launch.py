"""Ranks started on Ray."""

import functools
import os
import signal
import time

import pytest
import ray

from distsummary import launch, launcher, topology
from distsummary.errors import InvalidTypeError, InvalidValueError, RanksFailedError
from distsummary.launcher import plan_environments
from tests.interrupts import Dropping, sigint

MODULE = launcher


@pytest.fixture(autouse=True)
def _connected(ray_cluster):
    """Every test here needs the cluster."""


def test_results_come_in_rank_order_and_every_rank_knows_its_place():
    def train():
        found = topology.detect()
        return found.rank, found.world_size, found.local_rank, found.incarnation, os.environ["MASTER_PORT"]

    places = launch(train, ranks=3, backend=None)
    assert [place[:3] for place in places] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]
    assert len({place[3:] for place in places}) == 1


def test_gloo_is_initialised_and_sums_over_the_ranks():
    def train():
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        return total.item()

    assert launch(train, ranks=2) == [3.0, 3.0]


def test_equal_errors_of_ranks_are_one_line_that_names_them():
    def train():
        rank = int(os.environ["RANK"])
        if rank != 1:
            raise ValueError(f"no data in shard {rank}")
        return rank

    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=3, backend=None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("[ranks 0,2] ValueError: no data in shard 0")


def test_an_interrupt_that_python_drops_ends_the_ranks_too(monkeypatch):
    def drop(*arguments):
        Dropping()
        return plan_environments(*arguments)

    monkeypatch.setattr(MODULE, "plan_environments", drop)
    begun = time.monotonic()
    with sigint(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        launch(lambda: time.sleep(60), ranks=1, backend=None)
    assert time.monotonic() - begun < 60


def test_ranks_that_hang_after_a_failure_are_stopped(monkeypatch):
    monkeypatch.setattr(MODULE, "GRACE_S", 0.5)

    def train():
        if os.environ["RANK"] == "0":
            raise RuntimeError("the first to fall")
        time.sleep(600)

    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=2, backend=None)
    assert "[rank 0] RuntimeError: the first to fall" in str(caught.value)
    assert "[rank 1] stopped" in str(caught.value)


def test_a_rank_that_dies_is_named():
    def train():
        if os.environ["RANK"] == "1":
            os._exit(7)

    with pytest.raises(RanksFailedError, match=r"\[rank 1\] "):
        launch(train, ranks=2, backend=None)


def test_the_exit_handlers_of_ranks_run_while_actors_can_be_reached(tmp_path):
    def train():
        import atexit

        rank = int(os.environ["RANK"])
        atexit.register(lambda: (tmp_path / str(rank)).write_text(ray.get(ray.put("reached"))))
        if rank == 1:
            raise ValueError("no data")

    with pytest.raises(RanksFailedError, match="no data"):
        launch(train, ranks=2, backend=None)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["reached", "reached"]


def test_a_rank_whose_exit_handlers_hang_is_killed(monkeypatch, caplog):
    monkeypatch.setattr(MODULE, "LEAVE_S", 0.5)

    def train():
        import atexit

        atexit.register(time.sleep, 600)
        return 1

    assert launch(train, ranks=1, backend=None) == [1]
    assert "1 rank(s) did not end within 0.5 s" in caplog.text


def test_a_request_beyond_the_cluster_says_what_there_is(monkeypatch):
    monkeypatch.setattr(MODULE, "PLACEMENT_TIMEOUT_S", 1.0)
    with pytest.raises(RanksFailedError, match=r"did not fit.*the cluster has"):
        launch(lambda: None, ranks=64, backend=None)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(InvalidValueError, match="ranks must be >= 1, got 0"):
        launch(print, ranks=0)
    with pytest.raises(InvalidValueError, match="backend must be one of"):
        launch(print, ranks=1, backend="mpi")
    with pytest.raises(InvalidTypeError, match="train_fn"):
        launch("train", ranks=1)


def test_the_callers_cluster_stays_connected():
    assert launch(lambda: 1, ranks=1, backend=None) == [1]
    assert ray.is_initialized()


def test_local_ranks_count_within_each_node():
    places = [("n1", "10.0.0.1", 5001), ("n2", "10.0.0.2", 5002), ("n1", "10.0.0.1", 5003)]
    environments = plan_environments(places, "id")
    keys = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    assert [tuple(e[k] for k in keys) for e in environments] == [
        ("0", "0", "2", "0"),
        ("1", "0", "1", "1"),
        ("2", "1", "2", "0"),
    ]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"], e["WORLD_SIZE"]) for e in environments} == {
        ("10.0.0.1", "5001", "3")
    }


def test_sys_exit_is_told_and_zero_is_success():
    def leave(code):
        raise SystemExit(code)

    assert launch(functools.partial(leave, 0), ranks=1, backend=None) == [None]
    with pytest.raises(RanksFailedError, match=r"sys.exit\('no data'\)"):
        launch(functools.partial(leave, "no data"), ranks=1, backend=None)


@pytest.mark.parametrize("resources", [{"CPU": "x"}, {"CPU": -1}, {"CPU": 0}, {}])
def test_resources_that_ray_cannot_reserve_are_refused_by_name(resources):
    with pytest.raises((InvalidTypeError, InvalidValueError), match="resources_per_rank"):
        launch(print, ranks=1, resources_per_rank=resources)

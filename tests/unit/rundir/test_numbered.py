"""Directories PREFIX0, PREFIX1 of ranks are told from one of all ranks whose name ends with a number."""

import logging

import pytest

from distsummary import Topology
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.numbered import NOTE, is_numbered, read_note
from distsummary.rundir.run_dir import RunDir


def place(rank, world_size=2, incarnation="host:1+0"):
    return Topology(rank=rank, world_size=world_size, incarnation=incarnation)


def never(seconds):
    raise AssertionError("there is nothing to wait for")


@pytest.mark.parametrize("prefix", ["summary_dir", "runs/", "exp20"])
def test_ranks_that_find_each_other_next_to_them_have_their_own(nasty_tmp_path, prefix):
    first, second = (RunDir(f"{nasty_tmp_path}/{prefix}{rank}") for rank in range(2))
    found = []
    assert is_numbered(
        first, place(0), sleep=lambda _: found.append(is_numbered(second, place(1), sleep=never))
    )
    assert found == [True]
    assert [read_note(one.base)["rank"] for one in (first, second)] == [0, 1]


def test_a_rank_whose_job_has_made_a_run_in_the_directory_shares_it(nasty_tmp_path):
    shared = RunDir(nasty_tmp_path / "exp1")
    join = LocalCoordinator(shared).register
    assert not is_numbered(shared, place(0), sleep=never)  # whose number the name does not have
    assert not is_numbered(shared, place(1), sleep=lambda _: join(place(0)))
    assert not (shared.base / NOTE).exists()


def test_the_directories_of_an_earlier_job_are_no_sign(nasty_tmp_path, caplog):
    """Neither with another name, nor with the name that a port has again for another launcher."""
    first, second = (RunDir(nasty_tmp_path / f"run{rank}") for rank in range(2))
    is_numbered(first, place(0), sleep=lambda _: is_numbered(second, place(1), sleep=never))
    with caplog.at_level(logging.WARNING):
        assert not is_numbered(second, place(1, incarnation="host:2+0"), sleep=lambda _: None)
    assert "rank=1 waited 20 s for another rank to write to" in caplog.text
    assert not (second.base / NOTE).exists()


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("run0", place(0, world_size=1)),
        ("run", place(0)),
        ("run0", place(0, incarnation="")),
        ("run2", place(1)),
    ],
)
def test_no_rank_waits_where_there_is_no_doubt(nasty_tmp_path, name, topology):
    assert not is_numbered(RunDir(nasty_tmp_path / name), topology, sleep=never)
    assert not (nasty_tmp_path / name).exists()

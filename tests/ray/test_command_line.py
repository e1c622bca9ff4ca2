"""The recorded command line is the one that the user typed, also where Ray started the process."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

import distsummary as ds
from distsummary.collect.provenance import command_line
from distsummary.collect.remote.actor import split_command


def train(path: Path) -> None:
    with ds.init(path) as run:
        for _ in run.steps(range(1)):
            run.log(loss=1.0)


def test_ranks_record_the_command_of_the_driver_without_its_secrets(nasty_tmp_path: Path) -> None:
    ray.get(ray.remote(num_cpus=1)(train).remote(nasty_tmp_path))
    argv = ds.open_run(nasty_tmp_path).provenance["argv"]
    assert argv[1:] == psutil.Process().cmdline()[1:]


@pytest.mark.parametrize(
    "arguments", [["python", "a.py", "it's", "two words", 'say "hi"', "#1", "--lr=3"], ["x", ""]]
)
def test_the_arguments_are_found_in_what_ray_keeps(arguments: list[str]) -> None:
    assert split_command(subprocess.list2cmdline(arguments)) == arguments


def test_in_the_driver_it_is_its_own() -> None:
    assert command_line() == sys.argv

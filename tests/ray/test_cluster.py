"""The session's cluster is the tests' own, and an actor left in it is noticed."""

import os
from pathlib import Path

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from tests.inner_pytest import run_inner_pytest
from tests.patience import PATIENCE_S
from tests.ray.conftest import busy_workers

LEAKY_TESTS = """
import ray

class Leaked:
    def ready(self):
        return True

actors = []

def test_leaves_an_actor():
    actors.append(ray.remote(Leaked).remote())
    assert ray.get(actors[0].ready.remote())

def test_ends_its_actor():
    ray.kill(actors.pop())
    actor = ray.remote(Leaked).remote()
    assert ray.get(actor.ready.remote())
    ray.kill(actor)
"""


class Recorder:
    def namespace(self) -> str:
        return str(ray.get_runtime_context().namespace)

    def auth_mode(self) -> str:
        return os.environ["RAY_AUTH_MODE"]

    def pid(self) -> int:
        return os.getpid()


def test_the_cluster_has_the_namespace_and_no_token_for_its_actors() -> None:
    actor = ray.remote(Recorder).remote()
    assert ray.get(actor.namespace.remote()) == "test"
    assert ray.get(actor.auth_mode.remote()) == "disabled"


def test_an_actor_that_lives_is_seen_and_one_that_was_killed_is_not() -> None:
    actor = ray.remote(Recorder).remote()
    pid = ray.get(actor.pid.remote())
    assert any(worker.endswith(f"(pid {pid})") for worker in busy_workers())
    process = psutil.Process(pid)
    ray.kill(actor)  # does not wait for the end
    process.wait(timeout=PATIENCE_S)
    assert not any(worker.endswith(f"(pid {pid})") for worker in busy_workers())
    with pytest.raises(RayActorError):
        ray.get(actor.pid.remote())


@pytest.mark.long
def test_a_test_that_leaves_an_actor_fails_and_the_actor_is_named(tmp_path: Path) -> None:
    outcomes = run_inner_pytest(LEAKY_TESTS, tmp_path, ["tests.conftest", "tests.ray.conftest"], grace_s=3)
    assert "actors or tasks left behind by this test: ['ray::Leaked" in outcomes["test_leaves_an_actor"]
    assert outcomes["test_ends_its_actor"] == ""

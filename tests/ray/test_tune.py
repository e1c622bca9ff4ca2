"""A trial that Ray Tune stops while its collector is not up: Ray kills its process, its values are kept."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ray import tune

import distsummary as ds

REPORTS, STEPS = 2, 5


def trial(config: dict[str, str]) -> None:
    from distsummary.collect.remote import actor

    class Held(actor.CollectorActor):
        def ready(self, *_: object) -> None:
            threading.Event().wait()

    actor.CollectorActor = Held
    run = ds.init(config["run"], quiet=True)
    while True:
        for _ in range(STEPS):
            run.next_step()
            run.log(loss=float(run.step))
        tune.report({"step": run.step})


@pytest.mark.usefixtures("ray_cluster")
def test_what_a_stopped_trial_has_recorded_is_written(tmp_path: Path) -> None:
    config = tune.RunConfig(
        storage_path=str(tmp_path / "tune"), stop={"training_iteration": REPORTS}, verbose=0
    )
    tuner = tune.Tuner(trial, param_space={"run": str(tmp_path / "run")}, run_config=config)
    with ThreadPoolExecutor(1) as thread:  # in the main thread, Ray Tune would keep handlers of signals
        thread.submit(tuner.fit).result()
    losses = ds.open_run(tmp_path / "run").scalars("loss")["value"].tolist()
    assert losses == [float(step) for step in range(1, REPORTS * STEPS + 1)]

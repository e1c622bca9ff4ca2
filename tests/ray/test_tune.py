"""A trial that Ray Tune stops while its collector is not up: Ray kills its process, its values are kept."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from ray import tune

import distsummary as ds
from distsummary.rundir.states import read_run

REPORTS, STEPS = 2, 5


def trial(config: dict[str, str]) -> None:
    from distsummary.collect.remote import actor

    class Held(actor.CollectorActor):
        def ready(self, *_: object) -> None:
            threading.Event().wait()

    actor.CollectorActor = Held
    run = ds.init(config["run"], quiet=True)
    with run if config["form"] == "with" else nullcontext():
        while True:
            for _ in range(STEPS):
                run.next_step()
                run.log(loss=float(run.step))
            tune.report({"step": run.step})


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("form", ["open", "with"])
def test_what_a_stopped_trial_has_recorded_is_written(tmp_path: Path, form: str) -> None:
    config = tune.RunConfig(
        storage_path=str(tmp_path / "tune"), stop={"training_iteration": REPORTS}, verbose=0
    )
    space = {"run": str(tmp_path / "run"), "form": form}
    tuner = tune.Tuner(trial, param_space=space, run_config=config)
    with ThreadPoolExecutor(1) as thread:  # in the main thread, Ray Tune would keep handlers of signals
        thread.submit(tuner.fit).result()
    losses = ds.open_run(tmp_path / "run").scalars("loss")["value"].tolist()
    assert losses == [float(step) for step in range(1, REPORTS * STEPS + 1)]
    # Ray leaves the function by `sys.exit(0)`, which is no failure.
    assert read_run(tmp_path / "run").state == "finished"

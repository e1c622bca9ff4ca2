"""A rank whose work is dealt.

It trains from when the file RUN.begin<rank> exists until RUN.<rank> or RUN.all does. Its heartbeats come
quickly, as an aggregator expects that has BEAT_S of its own; a rank that joins late hurries.
"""

import os
import time
from pathlib import Path

import distsummary as ds
from distsummary.collect import heartbeat
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from tests.patience import wait_for
from tests.unit.collect.doubles import Model, Momentum

RANKS, BEAT_S, PACE_S, HURRIED = 4, 0.2, 0.01, 150
FREQ, TENSOR_FREQ = 5, 7


def main(run_dir: str, deal: str) -> None:
    rank = int(os.environ["RANK"])
    wait_for(Path(f"{run_dir}.begin{rank}").exists)
    heartbeat.FIRST_S = heartbeat.BEAT_S = BEAT_S
    collector = ds.SummaryCollector(
        run_dir,
        FREQ,
        collect_specified_data={"histogram_regular": ".*", "tensor_regular": ".*"},
        keep_default_action=False,
        collect_tensor_freq=TENSOR_FREQ,
        deal=deal,
        topology=ds.Topology(rank=rank, world_size=RANKS, incarnation="launch-1"),
        coordinator=LocalCoordinator(RunDir(run_dir)),
    )
    ends = [Path(f"{run_dir}.{who}") for who in (rank, "all")]
    with ds.Run(callbacks=collector, network=Model(), optimizer=Momentum()) as run:
        for step, _ in enumerate(run.steps(iter(int, 1)), 1):
            run.log(loss=1.0)
            time.sleep(PACE_S if rank != 2 or step > HURRIED else 0.001)
            if any(end.exists() for end in ends):
                break

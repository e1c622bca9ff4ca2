"""The CPU of a step where the run dir is shared, and where it is not: `python -m benchmarks.ranks shared`."""

import statistics
import tempfile
from pathlib import Path

from tests.cluster.hosts import SHARED, Hosts

BEGIN = 100  # steps that do not count
TRAIN = f"""
import sys, time, ray
import distsummary as ds

def train(run_dir, steps):
    with ds.init(run_dir) as run:
        for step in run.steps(range(steps)):
            if step == {BEGIN}:
                began_s = time.process_time()
            run.log(**{{f"metric_{{number}}": step / (number + 1) for number in range(20)}})
            time.sleep(0.005)
        return (time.process_time() - began_s) / (steps - {BEGIN})

run_dir, steps, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ray.init(address="auto")
needs = {{"CPU": 1, f"node:{{address}}": 0.01}}
print(*ds.launch(train, run_dir, steps, ranks=2, backend=None, resources_per_rank=needs))
"""


def shared(rounds: int, steps: int) -> dict[str, float]:
    """Two ranks on a host that is not the home train by turns; the median of them. Needs root."""
    places = {"shared": f"{SHARED}/", "not shared": "/home/user/runs/"}
    found: dict[str, list[float]] = {name: [] for name in places}
    with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory), 2, is_shared=True) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        for number in range(rounds):
            for name, place in places.items():
                done = hosts.run(0, "python", "-c", TRAIN, f"{place}{number}", str(steps), hosts.address(1))
                done.check_returncode()
                found[name] += map(float, done.stdout.splitlines()[-1].split())
    medians = {name: 1e6 * statistics.median(one) for name, one in found.items()}
    ratio = medians["not shared"] / medians["shared"]
    return {**{f"CPU us of a step, {name}": one for name, one in medians.items()}, "ratio": ratio}

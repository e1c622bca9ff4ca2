"""The recipes for Slurm, as they are, end with a merged run of four ranks on a real Slurm of two nodes."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import SHARED, Hosts, can_make_hosts
from tests.cluster.slurm import missing_programs, sbatch, start_slurm
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.skipif(bool(missing_programs()), reason=f"needs Slurm: {missing_programs()}"),
    pytest.mark.timeout(1200),
]

RECIPES = ROOT / "cluster"
TRAIN = RECIPES / "train.py"

THEN_LANDSCAPE = f"""
set -e
python {TRAIN} {SHARED}/ray 4
cd {RECIPES}
distsummary landscape {SHARED}/ray train:parts --size 11
"""

# It finds its rank by Slurm's own variables.
PLAIN = """
import sys
import distsummary as ds
with ds.init(sys.argv[1]) as run:
    for step in run.steps(range(100)):
        run.log(loss=1.0 / (step + 1))
"""

READ = """
import sys
import distsummary as ds
print(ds.open_run(sys.argv[1]).scalars("loss", rank="merged")["step"].tolist())
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two nodes with a directory that they share."""
    with Hosts(tmp_path_factory.mktemp("hosts"), 2, is_shared=True) as hosts:
        start_slurm(hosts, 2)
        hosts.write(f"{SHARED}/plain.py", PLAIN)
        yield hosts


@pytest.mark.parametrize(
    ("name", "options", "command"),
    [
        ("srun", [], [RECIPES / "slurm/srun.sbatch", "python", TRAIN, f"{SHARED}/srun"]),
        ("plain", ["-N2", "--ntasks-per-node=2"], [f"--wrap=srun python {SHARED}/plain.py {SHARED}/plain"]),
        (
            "torchrun",
            ["--export=ALL,RANKS_PER_NODE=2"],
            [RECIPES / "slurm/torchrun.sbatch", TRAIN, f"{SHARED}/torchrun"],
        ),
        ("ray", [], [RECIPES / "slurm/ray.sbatch", "bash", "-c", THEN_LANDSCAPE]),
    ],
)
def test_a_recipe_ends_with_a_merged_run_of_four_ranks(slurm, name, options, command):
    log = sbatch(slurm, *options, *map(str, command))
    done = slurm.run(0, "python", "-m", "distsummary", "status", "--json", f"{SHARED}/{name}")
    found = json.loads(done.stdout)
    assert (found["state"], done.returncode) == ("finished", 0), log
    assert len(found["attempts"][-1]["ranks"]) == 4
    assert {rank["host"] for rank in found["attempts"][-1]["ranks"]} == {"h0", "h1"}
    steps = slurm.run(0, "python", "-c", READ, f"{SHARED}/{name}")
    assert json.loads(steps.stdout) == [*range(1, 101)], steps.stderr

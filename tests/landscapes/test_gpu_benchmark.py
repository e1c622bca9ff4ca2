"""The benchmark for GPUs, tried out on the host: each engine's losses are held against the float64 loop."""

import json

import pytest

from tests.programs import run_python

# The peak of the device is measured with a product that a host needs 2 s for.
QUICK = "import benchmarks.landscape_gpu as benchmark; benchmark.PROBED = 256; benchmark.main()"


@pytest.mark.long
def test_engines_and_a_whole_map() -> None:
    options = [
        "--device",
        "cpu",
        "--parts",
        "engines,map",
        "--tasks",
        "mlp32",
        "--maps",
        "mlp32",
        "--rounds",
        "1",
    ]
    done = run_python(
        "-c",
        QUICK,
        *options,
        "--engines",
        "row,graph+x51,graph+x0",
        OMP_NUM_THREADS="1",
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    absent, engines, whole = rows[0], rows[1:-1], rows[-1]
    assert "chunk must be >= 1" in absent["absent"]
    assert [row["engine"].partition(":")[0] for row in engines] == ["row", "graph+x51"]
    assert all(row["max_rel_err"] < 5e-6 and row["ms_per_point"] > 0 for row in engines)
    assert whole["points"] == 51 * 51

"""Records the runs that the browser is shown: `python -m tests.ui.recorded DIR`; the pages are made too."""

import json
import sys
from pathlib import Path

import numpy as np

import distsummary as ds
from distsummary.format.graph import Edge, Graph, Node
from distsummary.format.mindspore_graph import encode
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.records import Value
from distsummary.rundir.run_dir import RunDir
from distsummary.view.report import report
from tests.unit.landscapes.test_grid import make_grid
from tests.unit.runs.recording import record

NASTY = "</script><img src=x onerror='window.hacked=1'>\"'&\u2028\u202eé" + "<b>x</b>" * 120


PARAMETERS = (*(f"layers.{n}.{part}" for n in range(150) for part in ("weight", "bias")), NASTY)
TABLE = ParameterTable(PARAMETERS, ((4,),) * 301, (4,) * 301, (0,) * 301)


GRAPH = encode(
    Graph(
        (
            Node("x", "Input"),
            Node("encoder/linear", "Linear", (Edge("x"),), parameters=12),
            Node("encoder/norm", "LayerNorm", (Edge("encoder/linear"),)),
            Node("output", "Output", (Edge("encoder/norm"),)),
        )
    )
)


def norms(step: int) -> Value:
    """Norms of 301 parameters; the gradients of the last hundred are NaN at step 15."""
    place = np.arange(301)
    gradients = 2.0 + np.sin(step / 9 + place / 20)
    bad = ((step == 15) & (place > 200)).astype(np.int64)
    gradients[bad > 0] = np.nan
    updates = np.where(place % 4 == step % 4, 1e-3 * gradients, np.nan)
    return Value(
        "norms",
        "norms",
        ParameterNorms(
            TABLE, 1.0 + place, gradients**2, np.ones(301, np.bool_), 0 * bad, bad, updates**2,
            updates.astype(np.float32),
        ),
    )  # fmt: skip


def spread(step: int) -> np.ndarray:
    """100 values that spread as steps continue; the first is NaN from step 10 on."""
    values = np.linspace(-step, step, 100, dtype=np.float32)
    values[:1] = np.nan if step >= 10 else -step
    return values


def media(step: int, rank: int) -> list[Value]:
    """A picture of 40 x 8 pixels, which no compression makes small, and a text that tries to be HTML."""
    noise = np.random.default_rng([step, rank]).integers(0, 256, (8, 40, 3), np.uint8)
    return [Value("image", "input", noise), Value("text", NASTY, f"step {step} {NASTY}")]


HOSTILE = "<svg onload='window.hacked=1'>[x](javascript:window.hacked=1)\x1b[31mred\x1b[0m\x07\x9b$x_1$"
HOSTILE_GRAPH = Graph(
    (Node(HOSTILE, NASTY), Node(f"{NASTY}/{HOSTILE}", HOSTILE, (Edge(HOSTILE),)), Node("a" * 900, "Output"))
)


def hostile(step: int, rank: int) -> list[Value]:
    """5,000 tags, a histogram of NaN alone, texts that try to be code; first, such a graph."""
    if step == 1:
        return [Value("graph", "graph", encode(HOSTILE_GRAPH))]
    return [
        *(Value("scalar", f"layer{number}", number) for number in range(5000)),
        Value("scalar", HOSTILE, float("nan")),
        Value("histogram", HOSTILE, np.full(50, np.nan, np.float32)),
        Value("text", HOSTILE, f"# {HOSTILE}\n\n| a |\n|---|\n| {NASTY} |\n\n![x](http://localhost/x.png)"),
    ]


def slow(step: int, rank: int) -> list[Value]:
    """Rank 2 is slow from step 300 on; rank 1 has NaN at step 500; one tag tries to be HTML."""
    is_slow = rank == 2 and step >= 300
    return [
        Value("scalar", "loss", float("nan") if (rank, step) == (1, 500) else 1 / max(1, step) + rank / 100),
        Value("scalar", "zz_perf/step_ms", 30 + step % 7 + 8 * (step >= 300)),
        Value("scalar", "zz_perf/own_ms", 20 + (step * 31 + rank * 17) % 5 + 8 * is_slow),
        Value("scalar", "zz_perf/wait_ms", 10.0 - 8 * is_slow + 8 * (step >= 300)),
        Value("scalar", NASTY, -1.0),
        *([norms(step)] if rank == 0 else []),
        *(media(step, rank) if step % 5 == 0 and rank < 3 else []),
        *([Value("histogram", tag, spread(step)) for tag in ("weight", NASTY)] if rank == 1 else []),
    ]


def alone(step: int, rank: int) -> list[Value]:
    """What a single rank records: the histogram, too."""
    return [*slow(step, rank), Value("histogram", "weight", spread(step))]


def main(directory: Path) -> None:
    """Runs of 1, 4 and 64 ranks, and their pages next to them."""
    few = [*range(1, 20), *range(20, 801, 4)]
    for ranks, steps in ((1, range(1, 51)), (4, range(1, 801)), (64, few)):
        path = directory / f"run{ranks}"
        for rank in range(ranks):
            values = alone if ranks == 1 else slow
            record(path, rank=rank, ranks=ranks, steps=steps, values=values)
        reported = {"rank": 2, "cause": "data", "since_step": 300, "until_step": None, "evidence": NASTY}
        if ranks > 2:
            (path / "alerts.jsonl").write_text(json.dumps(reported | {"reported_step": 310}) + "\n")
        RunDir(path).landscape_dir.mkdir()
        for name in ("<b>x<b>'é", "other"):
            make_grid().save(RunDir(path).landscape_dir / f"{name}.npz")
        report(path, out=directory / f"{ranks}.html")
    settings = {"seed": 20260131, "lr": 1.5e-7, "single": float(np.float32(0.05))}
    with ds.init(directory / "real", config=settings, aggregate=False, system_metrics=False) as run:
        for step in run.steps(range(3)):
            run.log(loss=1 / (1 + step))
    report(directory / "real", out=directory / "real.html")
    with ds.init(directory / "bounded", record=ds.Record(keep_bytes=16 << 20), system_metrics=False) as run:
        for step in run.steps(range(1, 31)):
            run.image("noise", np.random.default_rng(step).integers(0, 256, (600, 600, 3), np.uint8))
    report(directory / "bounded", out=directory / "bounded.html")
    record(
        directory / "graph", values=lambda step, rank: [Value("graph", "graph", GRAPH)] if step == 1 else []
    )
    report(directory / "graph", out=directory / "graph.html")
    record(directory / "hostile", steps=range(1, 4), values=hostile)
    (directory / "empty").mkdir()
    # Clocks that are apart and go back, and a run.json that is none.
    for rank in range(2):
        apart = {"values": slow, "clock": lambda step, rank: 1.8e9 - 8e8 * rank - step}
        record(directory / "apart", rank=rank, ranks=2, steps=range(20), **apart)
    (directory / "apart" / "run.json").write_text("{")
    begun = {"format": 2, "run_id": "00000000000000ef", "created": 1.8e9, "state": "running", "attempts": []}
    (directory / "empty" / "run.json").write_text(json.dumps(begun))
    for name in ("hostile", "empty", "apart"):
        report(directory / name, out=directory / f"{name}.html")
    record(directory / "<i>other", steps=range(1, 401), values=slow)
    report(
        directory / "run4",
        out=directory / "compared.html",
        others=[directory / "<i>other", directory / "run64"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

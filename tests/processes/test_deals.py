"""What was dealt is what was recorded: a rank joins late, one leaves first, one dies."""

import threading
import time
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.aggregate.aggregator import Aggregator
from distsummary.rundir import deal as deal_module
from distsummary.rundir.run_dir import RunDir
from tests import forked
from tests.patience import PATIENCE_S, wait_for
from tests.processes import dealt_ranks
from tests.processes.dealt_ranks import BEAT_S, RANKS

PARAMETERS = {f"layer{number}.weight" for number in range(1, 7)}


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("deal", ["parameters", pytest.param("steps", marks=pytest.mark.long)])
def test_what_was_dealt_is_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deal: str):
    monkeypatch.setattr(deal_module, "BEAT_S", BEAT_S)
    run_dir = tmp_path / "run"

    def begin(*numbers: int) -> None:
        for rank in numbers:
            Path(f"{run_dir}.begin{rank}").touch()

    def deals() -> list[dict]:
        attempts = RunDir(run_dir).read_manifest()["attempts"]
        return attempts[0].get("deals", []) if attempts else []

    def await_deal(*members: int) -> None:
        """Wait until the newest deal is among these ranks, and all of them follow it."""

        def is_in_force() -> bool:
            newest = deals()[-1] if deals() else {"groups": [], "ranks": {}}
            return newest["groups"] == [[*members]] and {*newest["ranks"]} == {*map(str, members)}

        wait_for(is_in_force)

    with forked.ranks(RANKS, dealt_ranks.main, str(run_dir), deal) as ranks:
        begin(0, 1, 3)
        wait_for(lambda: bool(RunDir(run_dir).read_manifest()["attempts"]))
        ended = threading.Event()
        Aggregator(str(run_dir), on_end=ended.set, round_s=0.05, clock=lambda: 20 * time.monotonic())
        await_deal(0, 1, 3)
        begin(2)
        await_deal(0, 1, 2, 3)
        Path(f"{run_dir}.3").touch()
        await_deal(0, 1, 2)
        ranks[1].kill()
        await_deal(0, 2)
        Path(f"{run_dir}.all").touch()
        forked.wait([ranks[rank] for rank in (0, 2, 3)])
        assert ended.wait(PATIENCE_S)

    stored = deals()
    assert stored[0]["groups"] == [[0, 1, 2, 3]]
    assert stored[-1]["groups"] in ([[0, 2]], [[0]], [[2]])
    for one in stored:
        assert all(part["since"] >= one["since"] for parts in one["ranks"].values() for part in parts)
    run = ds.open_run(run_dir)
    dealt, by_deal = {rank: set() for rank in range(RANKS)}, {}
    for row in run.deals:
        dealt[row.rank] |= {
            (row.values, f"{name}/auto", step) for name in row.parameters for step in row.steps
        }
        by_deal.setdefault((row.deal, row.values), []).append((row.rank, {*row.parameters}))
    for rank in range(RANKS):
        tables = {"histogram": run.histograms(rank=rank), "tensor": run.tensors(rank=rank)}
        recorded = [(kind, row.tag, row.step) for kind, table in tables.items() for row in table]
        assert len(recorded) == len({*recorded}) > 0
        missing = dealt[rank] - {*recorded}
        assert {*recorded} <= dealt[rank], rank
        # A kill can cut a step in two: its loss is in the files, what was collected after it is not.
        last = max(step for _, _, step in dealt[rank])
        assert not missing or (rank == 1 and {step for _, _, step in missing} == {last}), missing
    whole = next(one["version"] for one in stored if one["version"] > 1 and one["groups"] == [[0, 1, 2, 3]])
    for kind in ("histogram", "tensor"):
        shares = [names for _, names in by_deal[whole, kind]]
        assert set().union(*shares) == PARAMETERS
        assert sum(map(len, shares)) == len(PARAMETERS) * (1 if deal == "parameters" else RANKS)

"""What the manifest says, as a table: complete, bounded, and never taken for formatting."""

from pathlib import Path
from typing import Any

from distsummary.rundir.run_text import run_text
from distsummary.rundir.states import AttemptState, Failure, RankState, RunState


def attempt(number: int, hosts: list[str], state: str, failure: Failure | None = None) -> AttemptState:
    ranks = [
        RankState(role="train", rank=rank, attempt=number, state=state, host=host)
        for rank, host in enumerate(hosts)
    ]
    return AttemptState(
        role="train", attempt=number, state=state, world_size=len(hosts), started=0.0, ranks=tuple(ranks),
        missing=(), failure=failure,
    )  # fmt: skip


def text_of(*attempts: AttemptState, provenance: dict[str, Any] | None = None) -> str:
    """The text about a run with these attempts; the provenance is that of all of them."""
    entries = [
        {"role": "train", "attempt": one.attempt, "world_size": one.world_size, "provenance": provenance}
        for one in attempts
    ]
    state = RunState(path=Path(), run_id="00ff", state="", attempts=attempts, newest=attempts[-1])
    return run_text({"run_id": "00ff", "attempts": entries}, state)


def rows(text: str) -> dict[str, str]:
    header, rule, *lines = text.splitlines()
    assert (header, rule) == ("| | |", "|---|---|")
    return dict(line[2:-2].split(" | ") for line in lines)


def test_the_newest_attempt_is_described_and_all_are_listed() -> None:
    provenance = {
        "git": {"commit": "abc", "dirty": True},
        "python": "3.11.7", "platform": "Linux", "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    failure = Failure(0, "ValueError: no", 1.0)
    newest = attempt(1, ["n0", "n0", "n1", "n0"], "running")
    text = text_of(attempt(0, ["n0"], "failed", failure=failure), newest, provenance=provenance)
    assert rows(text) == {
        "run": "00ff",
        "ranks": "4, on 2 hosts (n0: 0-1, 3; n1: 2)",
        "python": "3.11.7 on Linux",
        "commit": "abc with changes",
        "torch": "2.13.0",
        "attempt 0": "began 1970-01-01 00:00:00 UTC; ranks: 1 failed; first: rank 0, ValueError: no",
        "attempt 1": "began 1970-01-01 00:00:00 UTC",
    }


def test_a_run_that_was_rebuilt_without_provenance_is_described_as_far_as_it_is_known() -> None:
    assert rows(text_of(attempt(0, [""], "unknown")))["ranks"] == "1, on 1 host (unknown: 0)"


def test_nothing_in_it_is_taken_for_formatting() -> None:
    provenance = {"versions": {"torch": "--a|b *** <script> [x](y)\nz"}}
    text = text_of(attempt(0, ["a_b"], "finished"), provenance=provenance)
    assert not set(rows(text)["torch"]) & set("*<>|[]\n_`")


def test_of_many_hosts_some_are_named() -> None:
    text = rows(text_of(attempt(0, [f"n{i}" for i in range(1000)], "running")))["ranks"]
    assert text.startswith("1000, on 1000 hosts (n0: 0; n1: 1;")
    assert text.endswith("; 984 more)")

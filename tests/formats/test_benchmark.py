"""The benchmarks of reading; they fail by themselves unless every peer reads the same values."""

import json

from tests.programs import run_python

PEERS = ("ours", "ours_columns", "tensorboard", "accumulator")


def test_ours_and_tensorboards_readers_read_the_same_values():
    options = [
        "--files", "ours,ours_several", "--peers", ",".join(PEERS), "--megabytes", "0.1", "--reps", "2",
    ]  # fmt: skip
    done = run_python("-m", "benchmarks.read", *options, "--table")
    lines = done.stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(row["file"], row["peer"]) for row in rows] == [
        (file, peer) for file in ("ours", "ours_several") for peer in PEERS
    ]
    assert {row["reps"] for row in rows} == {2}
    assert all(row["events"] > 1000 and row["mb_per_s"] > 0 for row in rows)
    assert lines[len(rows)].startswith("| CPU of reading | ours |")


def test_a_tag_of_all_ranks_is_the_same_in_all_ways():
    options = ["--ranks", "2", "--steps", "1200", "--tags", "2", "--reps", "1"]
    done = run_python("-m", "benchmarks.read.runs", *options, "--table")
    lines = done.stdout.splitlines()
    reported = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["way"] for row in reported] == ["index", "files", "pandas", "accumulator"]
    assert {row["rows"] for row in reported} == {2400}
    assert lines[-1].startswith("| 2,400 rows of one tag of 2 ranks |")

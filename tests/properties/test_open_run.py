"""Tables of `open_run`, from files and from indexes, compared with a plain loop and the merged run."""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings

import distsummary as ds
from distsummary.events import recorded
from distsummary.rundir.run_dir import RunDir
from tests.properties.test_ended_ranks import attempts, by_loop, written


@given(attempts)
@settings(max_examples=40)
def test_tables_hold_what_a_plain_loop_finds_and_the_merge_averages(reported_by_ranks):
    with tempfile.TemporaryDirectory() as name, mock.patch.object(recorded, "LEAST_BYTES", 1):
        base = Path(name)
        directories, reported = written(base / "plain", reported_by_ranks)
        run_dir = RunDir(base / "run")
        for rank, directory in directories.items():
            directory.mkdir(parents=True, exist_ok=True)
            (base / "run").mkdir(exist_ok=True)
            directory.rename(run_dir.writer_dir("train", rank, 3))
        expected = by_loop(reported)[0]
        scalars = {
            (tag, rank, step): v
            for step, (_, found, _) in expected.items()
            for (tag, rank), v in found.items()
        }
        texts = {(tag, step): text for step, (_, _, found) in expected.items() for tag, text in found.items()}
        for run in (
            ds.open_run(run_dir.base, index=False),
            ds.open_run(run_dir.base),
            ds.open_run(run_dir.base),
        ):
            table = run.scalars()
            assert {(row.tag, row.rank, row.step): row.value for row in table} == scalars
            assert len(table) == len(scalars)
            read = {}
            for row in run.text():
                read.setdefault((row.tag, row.step), row.value)  # that of the lowest rank
            assert read == texts
        if not expected:
            return
        ds.merge_run(run_dir.base)
        merged = {(row.tag, row.step): row.value for row in run.scalars(rank="merged")}
        for tag, step in {(tag, step) for tag, _, step in scalars}:
            values = [v for (of, _, at), v in scalars.items() if (of, at) == (tag, step)]
            assert np.float32(merged[tag, step]) == np.float32(sum(values) / len(values))

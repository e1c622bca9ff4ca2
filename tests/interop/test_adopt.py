"""The run adopted from ranks in directories `PREFIX0`, `PREFIX1`, ours and MindSpore's, in both viewers."""

import shutil
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.cli.adopt import adopt
from tests.conftest import ROOT
from tests.interop.views import differences, own_view, python_view, server_view
from tests.tools.mindinsight_check import check

pytestmark = pytest.mark.interop

GOLDEN = ROOT / "tests" / "golden" / "ms" / "mlp_train_eval" / "summary"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("adopted")
    for rank in range(2):
        shutil.copytree(GOLDEN, base / f"mindspore{rank}")
        with ds.SummaryRecord(f"{base}/ours{rank}") as record:
            for step in range(1, 4):
                record.add_value("scalar", "loss", float(rank + step))
                record.record(step)
    for name in ("mindspore", "ours"):
        ds.merge_run(adopt(base / name).path)
    return base


def test_tensorboard_reads_the_merged_runs(base: Path) -> None:
    recorded = own_view(base)
    assert {"mindspore", "ours"} <= {run for run, _ in recorded.scalars}
    assert differences(python_view(base), recorded) == []
    assert differences(server_view(base), recorded) == []


def test_mindinsight_reads_the_merged_runs(base: Path, mindinsight: Path) -> None:
    verdict = check(base, mindinsight)
    assert verdict.complaints == []
    assert "loss/scalar" in verdict.jobs["./ours"]["scalar"]
    assert "loss/auto/scalar" in verdict.jobs["./mindspore"]["scalar"]
    assert verdict.jobs["./mindspore"]["lineage"]["device_num"] == 2

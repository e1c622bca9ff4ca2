"""The real MindInsight reads all of a run: at the run dir, the ranks; at its parent, the merged run."""

import shutil
from pathlib import Path

import pytest

from distsummary.demo import DigitsNet
from tests.conftest import ROOT
from tests.interop.conftest import RANKS, Demo
from tests.tools.mindinsight_check import Verdict, check

pytestmark = [pytest.mark.interop, pytest.mark.smoke]

GOLDEN = ROOT / "tests" / "golden" / "ms"


@pytest.fixture(scope="module")
def at_run_dir(demo: Demo, mindinsight: Path) -> Verdict:
    return check(demo.run_dir, mindinsight)


@pytest.fixture(scope="module")
def at_parent(demo: Demo, mindinsight: Path) -> Verdict:
    return check(demo.run_dir.parent, mindinsight)


def test_pointed_at_the_run_dir_everything_is_read(at_run_dir: Verdict) -> None:
    assert at_run_dir.complaints == []


def test_pointed_at_the_run_dir_the_jobs_are_the_merged_run_and_the_ranks(at_run_dir: Verdict) -> None:
    ranks = {f"./rank_{rank:05d}" for rank in range(RANKS)}
    assert at_run_dir.jobs.keys() == {"./", *ranks}


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_rank_shows_scalars_and_images(at_run_dir: Verdict, rank: int) -> None:
    read = at_run_dir.jobs[f"./rank_{rank:05d}"]
    assert "loss/scalar" in read["scalar"]
    assert read["image"]


def test_several_ranks_are_one_training_in_the_table_of_lineage(at_run_dir: Verdict) -> None:
    assert at_run_dir.rows == 1
    lineage = at_run_dir.jobs["./"]["lineage"]
    assert (lineage["network"], lineage["device_num"]) == ("DigitsNet", RANKS)
    assert lineage["model_size"] == 4 * sum(value.numel() for value in DigitsNet().parameters())


def test_histograms_and_tensors_are_dealt_and_every_parameter_is_shown_by_some_rank(at_run_dir: Verdict):
    shown = {tag for rank in range(RANKS) for tag in at_run_dir.jobs[f"./rank_{rank:05d}"]["histogram"]}
    layers = [name for name in ("conv1", "conv2", "fc") if not any(name in tag for tag in shown)]
    assert layers == []
    assert any(at_run_dir.jobs[f"./rank_{rank:05d}"]["tensor"] for rank in range(RANKS))


def test_the_merged_run_shows_the_statistics_and_the_lineage_of_all_ranks(at_run_dir: Verdict) -> None:
    read = at_run_dir.jobs["./"]
    assert {"loss/scalar", "zz_ranks/loss/min/scalar", "zz_ranks/loss/max/scalar"} <= read["scalar"].keys()
    assert read["lineage"]["device_num"] == RANKS
    assert read["lineage"]["metric"]
    assert read["dataset_graph"]


def test_the_landscapes_are_shown_with_the_curves_and_the_lineage_of_the_run(at_run_dir, at_parent):
    for read in (at_run_dir.jobs["./"], at_parent.jobs["./digits"]):
        assert read["landscape"]["intervals"]
        assert read["landscape"]["final"]
        assert "loss/auto/scalar" in read["scalar"]  # MindInsight's page asks for this tag and no other
        assert "zz_ranks/loss/max/scalar" in read["scalar"]
        assert read["lineage"]["network"] == "DigitsNet"


def test_pointed_at_the_parent_the_run_is_one_job(at_parent: Verdict) -> None:
    # MindInsight looks one level deep: at the parent it shows runs, and their ranks only at the run dir.
    assert at_parent.complaints == []
    assert list(at_parent.jobs) == ["./digits"]
    assert at_parent.rows == 1


# --- the client itself, on files that MindSpore wrote


@pytest.fixture
def golden(nasty_tmp_path: Path) -> Path:
    """A training of MindSpore, as a base directory with one job."""
    shutil.copytree(GOLDEN / "mlp_train_eval" / "summary", nasty_tmp_path / "mlp")
    return nasty_tmp_path


def test_the_files_of_mindspore_pass(golden: Path, mindinsight: Path) -> None:
    verdict = check(golden, mindinsight)
    assert verdict.complaints == []


def test_a_damaged_file_does_not_pass(golden: Path, mindinsight: Path) -> None:
    path = next(golden.rglob("*_MS"))
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:300] + bytes([whole[300] ^ 0xFF]) + whole[301:])
    verdict = check(golden, mindinsight)
    assert any("checksum" in complaint for complaint in verdict.complaints)

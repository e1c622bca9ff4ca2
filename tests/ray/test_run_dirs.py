"""A run dir that is not the same directory for all processes of a job is refused, with the remedy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

import distsummary as ds
from distsummary.errors import InvalidValueError


def by_init(path: str) -> None:
    ds.init(path).close()


def by_collector(path: str) -> None:
    ds.SummaryCollector(path).close()


@pytest.mark.parametrize(("record", "field"), [(by_init, "run_dir"), (by_collector, "summary_dir")])
def test_a_relative_run_dir_in_rays_copy_of_the_working_directory_is_refused(
    tmp_path: Path, record: Callable[[str], None], field: str
) -> None:
    """Ray removes that copy with all that was recorded there."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "data.txt").write_text("1")
    package = shutil.make_archive(str(tmp_path / "package"), "zip", own)
    in_copy = ray.remote(num_cpus=0, runtime_env={"working_dir": f"file://{package}"})(record)
    with pytest.raises(
        InvalidValueError, match=rf"{field} must be absolute here, got \'runs/a\': .* /shared/runs/a"
    ):
        ray.get(in_copy.remote("runs/a"))
    ray.get(in_copy.remote(str(tmp_path / "runs/a")))

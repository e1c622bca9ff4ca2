"""What is recorded inside MindSpore's own Model is shown whole by MindInsight and by TensorBoard."""

from pathlib import Path

import pytest

from distsummary.cli.fsck import fsck
from tests.interop.conftest import run_mindspore
from tests.interop.views import differences, own_view, python_view, server_view
from tests.tools.mindinsight_check import Verdict, check

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of the run dirs `lenet` and `evaluated`."""
    place = tmp_path_factory.mktemp("inside")
    run_mindspore("inside_mindspore.py", place)
    return place


@pytest.fixture(scope="module")
def shown(recorded: Path, mindinsight: Path) -> Verdict:
    return check(recorded, mindinsight)


def test_mindinsight_complains_of_nothing(shown: Verdict) -> None:
    assert shown.complaints == []


def test_mindinsight_shows_every_page(shown: Verdict) -> None:
    read = shown.jobs["./lenet"]
    assert {"loss/auto/scalar", "Mean/scalar"} <= set(read["scalar"])
    assert {"Image/image", "input_data/auto/image"} <= set(read["image"])
    assert {"Histogram/histogram", "conv.weight/auto/histogram"} <= set(read["histogram"])
    assert "Tensor/tensor" in read["tensor"]
    assert read["graph"]
    assert read["lineage"]["network"] == "Lenet"
    assert read["landscape"]


def test_mindinsight_lists_an_evaluation_alone(shown: Verdict) -> None:
    assert shown.jobs["./evaluated"]["lineage"]["metric"]["accuracy"] >= 0


def test_tensorboard_shows_what_the_files_hold(recorded: Path) -> None:
    own = own_view(recorded / "lenet")
    assert differences(python_view(recorded / "lenet"), own) == []
    assert differences(server_view(recorded / "lenet"), own) == []


def test_fsck_finds_no_problem(recorded: Path) -> None:
    assert [one.as_line() for one in fsck(recorded / "lenet").findings if one.is_problem] == []

"""What is recorded of MindSpore's data sets: no secrets."""

import mindspore
import pytest

from distsummary.mindspore.theirs import facts_of

pytestmark = pytest.mark.interop

SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture
def data(tmp_path):
    """A data set of a file below a directory with a secret in its name."""
    place = tmp_path / SECRET
    place.mkdir()
    (place / "lines.txt").write_text("one\ntwo\n")
    return mindspore.dataset.TextFileDataset(str(place / "lines.txt"), shuffle=False).batch(1)


def test_secrets_are_replaced(data):
    facts = facts_of(data)
    graph = facts.graph()
    assert graph.children[0].parameter.mapStr["op_type"] == "TextFileDataset"
    assert SECRET not in str(graph)
    assert facts.path
    assert SECRET not in facts.path


def test_what_is_no_data_set_says_nothing():
    facts = facts_of([1, 2])
    assert (facts.batch_size, facts.path, facts.graph()) == (None, None, None)

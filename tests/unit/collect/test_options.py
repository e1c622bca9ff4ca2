import pytest

from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC
from distsummary.collect.options import Collected, check_file_affix, check_specified
from distsummary.collect.selection import BY_DEFAULT, MINDSPORES, Selection
from distsummary.errors import InvalidTypeError, InvalidValueError

EVERYTHING = {
    "metric": True, "graph": "modules", "train_lineage": True, "eval_lineage": True, "input_data": True,
    "dataset_graph": True,
}  # fmt: skip


def test_by_default_everything_is_collected_but_trajectory_and_whole_parameters():
    assert check_specified(None, True) == Collected(**EVERYTHING, histogram=MINDSPORES)


def test_mindspore_keeps_a_trajectory_by_default():
    assert check_specified(None, True, mindspore_compat=True).landscape == DEFAULT_SPEC
    assert check_specified(None, False, mindspore_compat=True).landscape is None


def test_without_the_default_action_nothing_is_collected_but_what_is_named():
    assert check_specified(None, False) == Collected()
    assert check_specified({"collect_metric": True}, False) == Collected(metric=True)
    assert check_specified({"histogram_regular": None}, False) == Collected(histogram=MINDSPORES)


@pytest.mark.parametrize(("images", "key", "expected"), [
    (None, None, True), (None, False, False), (False, None, False), (True, None, True), (True, True, True),
])  # fmt: skip
def test_pictures_of_the_data_are_chosen_by_record_or_by_mindspores_key(images, key, expected):
    given = None if key is None else {"collect_input_data": key}
    assert check_specified(given, True, images=images).input_data is expected
    if images:
        assert check_specified(given, False, images=images).input_data is True


def test_record_and_the_key_must_not_contradict_each_other():
    with pytest.raises(InvalidValueError, match=r"images=True\) and .*collect_input_data'\]=False"):
        check_specified({"collect_input_data": False}, True, images=True)


def test_a_given_key_replaces_its_default():
    got = check_specified({"collect_graph": False, "histogram_regular": "fc", "tensor_regular": "b"}, True)
    assert got.histogram is not None
    assert got.tensor is not None
    assert (got.graph, got.metric, got.histogram.pattern, got.tensor.pattern) == (None, True, "fc", "b")


@pytest.mark.parametrize(
    ("histograms", "more", "expected"),
    [
        (True, {}, BY_DEFAULT),
        (True, {"keep_default_action": False}, None),
        (True, {"mindspore_compat": True}, MINDSPORES),
        (False, {}, None),
        (3, {"keep_default_action": False}, Selection(first=3, argument="histograms=3")),
        ("fc", {}, Selection(pattern="fc", argument="histograms='fc'")),
        (None, {}, MINDSPORES),
    ],
)
def test_histograms_are_chosen_by_rule_number_or_pattern(histograms, more, expected):
    options = {"keep_default_action": True} | more
    assert check_specified(None, histograms=histograms, **options).histogram == expected


@pytest.mark.parametrize("histograms", [False, 3, "fc"])
def test_two_choices_of_histograms_are_refused_naming_both(histograms):
    with pytest.raises(InvalidValueError, match=r"histograms=.*\['histogram_regular'\]='b' both choose"):
        check_specified({"histogram_regular": "b"}, True, histograms=histograms)
    named = check_specified({"histogram_regular": "b"}, True, histograms=True).histogram
    assert named is not None
    assert named.pattern == "b"


@pytest.mark.parametrize(
    ("histograms", "error"),
    [(0, "histograms must be >= 1, got 0"), ("(", "histograms must be a regular expression, got '\\('")],
)
def test_histograms_that_choose_nothing_are_refused(histograms, error):
    with pytest.raises(InvalidValueError, match=error):
        check_specified(None, True, histograms=histograms)
    with pytest.raises(InvalidTypeError, match="histograms must be bool or int or str"):
        check_specified(None, True, histograms=1.5)


def test_an_empty_landscape_switches_it_off():
    assert check_specified({"collect_landscape": {}}, True, mindspore_compat=True).landscape is None
    spec = check_specified({"collect_landscape": {"intervals": [[1, 2, 3]]}}, True).landscape
    assert spec is not None
    assert spec.numbers == (1, 2, 3)


def test_the_users_dict_is_neither_kept_nor_changed():
    given = {"collect_metric": True}
    check_specified(given, False)
    assert given == {"collect_metric": True}


@pytest.mark.parametrize("affix", ["", "-a", "a b", ".x", "a/b", "x\n", "é", "my_tfevents", "a_lineage"])
def test_affixes_that_would_mislead_viewers_are_refused(affix):
    with pytest.raises(InvalidValueError, match="file_prefix"):
        check_file_affix("file_prefix", affix)


@pytest.mark.parametrize("affix", ["events", "_MS", "a.b.c", "9"])
def test_plain_affixes_are_taken(affix):
    assert check_file_affix("file_suffix", affix) == affix


def test_an_affix_must_be_text():
    with pytest.raises(InvalidTypeError):
        check_file_affix("file_suffix", 3)

import pytest

from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC
from distsummary.collect.options import (
    Collected,
    check_checksums,
    check_file_affix,
    check_specified,
    selection,
)
from distsummary.collect.selection import MINDSPORES, Selection
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.compatibility import AS_MINDSPORE
from tests.refusals import refused

EVERYTHING = {
    "metric": True, "graph": "modules", "train_lineage": True, "eval_lineage": True, "input_data": True,
    "dataset_graph": True,
}  # fmt: skip


def test_by_default_everything_is_collected_but_trajectory_and_whole_parameters():
    assert check_specified(None, True) == Collected(**EVERYTHING, histogram=MINDSPORES)


def test_mindspore_keeps_a_trajectory_by_default():
    assert check_specified(None, True, compatibility=AS_MINDSPORE).landscape == DEFAULT_SPEC
    assert check_specified(None, False, compatibility=AS_MINDSPORE).landscape is None


def test_without_the_default_action_nothing_is_collected_but_what_is_named():
    assert check_specified(None, False) == Collected()
    assert check_specified({"collect_metric": True}, False) == Collected(metric=True)
    assert check_specified({"histogram_regular": None}, False) == Collected(histogram=MINDSPORES)


def test_a_given_key_replaces_its_default():
    got = check_specified({"collect_graph": False, "histogram_regular": "fc", "tensor_regular": "b"}, True)
    assert (got.graph, got.metric, got.histogram.pattern, got.tensor.pattern) == (None, True, "fc", "b")


@pytest.mark.parametrize(
    ("histograms", "more", "expected"),
    [
        (None, {}, MINDSPORES),
        (None, {"keep_default_action": False}, None),
        (None, {"compatibility": AS_MINDSPORE}, MINDSPORES),
        (False, {}, None),
        ("fc", {"keep_default_action": False}, Selection(pattern="fc", argument="histograms='fc'")),
    ],
)
def test_histograms_are_chosen_by_a_pattern_or_as_in_mindspore(histograms, more, expected):
    options = {"keep_default_action": True} | more
    assert check_specified(None, histograms=histograms, **options).histogram == expected


def test_a_choice_of_parameters_is_a_pattern_or_false():
    assert selection("tensors", False) is None
    assert selection("tensors", "fc", 3) == Selection(pattern="fc", most=3, argument="tensors='fc'")


def test_an_empty_landscape_switches_it_off():
    assert check_specified({"collect_landscape": {}}, True, compatibility=AS_MINDSPORE).landscape is None
    spec = check_specified({"collect_landscape": {"intervals": [[1, 2, 3]]}}, True).landscape
    assert spec.numbers == (1, 2, 3)


def test_the_users_dict_is_neither_kept_nor_changed():
    given = {"collect_metric": True}
    check_specified(given, False)
    assert given == {"collect_metric": True}


def test_what_cannot_be_an_option_is_refused_by_its_name():
    both, pattern = {"histogram_regular": "b"}, r'tensors must be a pattern .* "\.\*" chooses all'
    twice = r"histograms=.*\['histogram_regular'\]='b' both choose"
    refused(
        InvalidValueError,
        (lambda: selection("tensors", "("), r"tensors must be a regular expression, got '\('"),
        (lambda: check_specified(both, True, histograms=False), twice),
        (lambda: check_specified(both, True, histograms="fc"), twice),
        *(
            (lambda affix=affix: check_file_affix("file_prefix", affix), "file_prefix")
            for affix in ("", "-a", "a b", ".x", "a/b", "x\n", "é", "my_tfevents", "a_lineage")
        ),
        (lambda: check_checksums(0), "checksums must be"),
    )
    refused(
        InvalidTypeError,
        (lambda: selection("tensors", True), pattern),
        (lambda: selection("tensors", 0), pattern),
        (lambda: selection("tensors", None), pattern),
        (lambda: check_file_affix("file_suffix", 3), "file_suffix"),
        (lambda: check_checksums("a"), "checksums must be True, False or a number of steps, got 'a'"),
    )

"""The collect_landscape argument, as MindSpore checks it."""

import pytest

from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC, LandscapeSpec, check_collect_landscape

GROUPS = [[1, 2, 3]]


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_asks_for_nothing(nothing):
    assert check_collect_landscape(nothing) is None


def test_missing_keys_mean_the_defaults():
    assert check_collect_landscape({"intervals": GROUPS}) == LandscapeSpec(
        intervals=((1, 2, 3),), unit="step", num_samples=2048, landscape_size=40, create_train=True,
        create_result=True,
    )  # fmt: skip
    assert DEFAULT_SPEC.numbers == tuple(range(1, 20))


def test_all_keys_are_taken():
    spec = check_collect_landscape(
        {
            "intervals": [[5, 3, 4], [1, 3, 5]], "unit": "epoch", "num_samples": 16, "landscape_size": 7,
            "create_landscape": {"train": False},
        }
    )  # fmt: skip
    assert spec == LandscapeSpec(
        intervals=((5, 3, 4), (1, 3, 5)), unit="epoch", num_samples=16, landscape_size=7,
        create_train=False, create_result=True,
    )  # fmt: skip
    assert spec.numbers == (1, 3, 4, 5)


@pytest.mark.parametrize(
    "accepted",
    [
        {"landscape_size": 3}, {"landscape_size": 256}, {"num_samples": 0}, {"num_samples": -1},
        {"create_landscape": {}}, {"intervals": []}, {"intervals": [[True, 2, 3]]},
    ],
)  # fmt: skip
def test_what_mindspore_accepts_is_accepted(accepted):
    assert check_collect_landscape({"intervals": GROUPS, **accepted}) is not None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (True, TypeError),
        ({"intervals": GROUPS, "other": 1}, ValueError),
        ({"unit": "step"}, TypeError),
        ({"intervals": (GROUPS,)}, TypeError),
        ({"intervals": [(1, 2, 3)]}, TypeError),
        ({"intervals": [[1, 2]]}, ValueError),
        ({"intervals": [[1, 2, 3.0]]}, TypeError),
        ({"intervals": GROUPS, "landscape_size": 40.0}, TypeError),
        ({"intervals": GROUPS, "landscape_size": 2}, ValueError),
        ({"intervals": GROUPS, "landscape_size": 257}, ValueError),
        ({"intervals": GROUPS, "unit": "batch"}, ValueError),
        ({"intervals": GROUPS, "unit": 1}, TypeError),
        ({"intervals": GROUPS, "num_samples": True}, TypeError),
        ({"intervals": GROUPS, "create_landscape": True}, TypeError),
        ({"intervals": GROUPS, "create_landscape": {"train": 1}}, TypeError),
        ({"intervals": GROUPS, "create_landscape": {"both": True}}, ValueError),
    ],
)
def test_what_mindspore_refuses_is_refused_with_its_exception(wrong, error):
    with pytest.raises(error, match="collect_landscape"):
        check_collect_landscape(wrong)

import math

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.numpy import FRAMEWORK
from distsummary.training.values import check_tag, mean_later, mean_of, resolve, scalar, scalars


@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), np.array([[2]], dtype=np.int8), np.float64(2)],
)
def test_numbers_and_arrays_of_one_element_are_floats(value):
    got = scalar("x", value)
    assert type(got) is float
    assert got == 2.0


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *((value, InvalidTypeError) for value in ("2", None, 2j, np.array(["2"]), {})),
        *((value, InvalidValueError) for value in (np.zeros(2), np.zeros(0), 10**400)),
    ],
)
def test_what_is_not_one_number_is_refused_by_name(value, error):
    with pytest.raises(error, match="accuracy"):
        scalar("accuracy", value)


def test_nan_and_infinity_are_numbers():
    assert math.isnan(scalar("x", float("nan")))
    assert scalar("x", np.float32("inf")) == math.inf


@pytest.mark.parametrize("tag", ["", "  ", "x" * 1025, "雪" * 400])
def test_tags_that_no_viewer_takes_are_refused(tag):
    with pytest.raises(InvalidValueError):
        check_tag(tag)


def test_names_must_be_text_and_values_a_mapping():
    with pytest.raises(InvalidTypeError, match="3"):
        scalars({3: 1.0})
    with pytest.raises(InvalidTypeError, match="values"):
        scalars([1.0])


@pytest.mark.parametrize(
    ("outputs", "mean"),
    [(3, 3.0), (np.array([1, 2], dtype=np.int32), 1.5), ((np.float32(4), "x"), 4.0), ([0.5], 0.5)],
)
def test_the_loss_is_the_mean_of_the_first_output(outputs, mean):
    assert resolve(mean_of(outputs)) == mean


@pytest.mark.parametrize("outputs", [None, (), [], "loss", {"loss": 1.0}, np.array(["a"]), np.zeros(2) * 1j])
def test_other_outputs_have_no_loss(outputs):
    assert mean_of(outputs) is None


def test_a_mean_reports_the_bytes_that_it_holds_until_it_is_asked_for():
    mean = mean_later(FRAMEWORK.snapshot(np.arange(4.0)))
    assert (mean.nbytes, mean.result()) == (32, 1.5)


@pytest.mark.parametrize("method", ["compute", "result"])
def test_an_object_that_computes_its_number_is_refused_with_how_to_get_it(method):
    metric = type("Accuracy", (), {method: lambda self: 0.5})()
    with pytest.raises(InvalidTypeError, match=rf"got Accuracy; log what its method {method}\(\) returns"):
        scalar("accuracy", metric)

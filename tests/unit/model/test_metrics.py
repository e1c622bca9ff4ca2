"""Metrics: MindSpore's numbers (as its docs and its code give them), and what is refused."""

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, NoSamplesError
from distsummary.model.metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metrics,
    names,
)

PREDICTED = np.array([[0.2, 0.5], [0.3, 0.1], [0.9, 0.6]])
TRUE = np.array([1, 0, 1])
SIX = np.array([[0.2, 0.5, 0.3, 0.6, 0.2], [0.1, 0.35, 0.5, 0.2, 0.0], [0.9, 0.6, 0.2, 0.01, 0.3]])


@pytest.mark.parametrize(
    ("metric", "inputs", "expected"),
    [  # the examples of MindSpore's pages
        (Accuracy(), (PREDICTED, TRUE), 2 / 3),
        (Accuracy(), (PREDICTED.tolist(), [[0, 1], [1, 0], [0, 1]]), 2 / 3),
        (Precision(), (PREDICTED, TRUE), [0.5, 1.0]),
        (Recall(), (PREDICTED, TRUE), [1.0, 0.5]),
        (F1(), (PREDICTED, TRUE), [2 / 3, 2 / 3]),
        (Fbeta(2), (PREDICTED, TRUE), [5 / 6, 5 / 9]),
        (Loss(), (np.array([0.2]),), 0.2),
        (Loss(), (np.array([1.0, 3.0]),), 2.0),
        (Loss(), (0.5,), 0.5),
        (MAE(), ([0.1, 0.2, 0.6, 0.9], [0.1, 0.25, 0.7, 0.9]), 0.0375),
        (MSE(), ([0.1, 0.2, 0.6, 0.9], [0.1, 0.25, 0.5, 0.9]), 0.003125),
        (MSE(), ([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]), 15.0),  # by samples, not by elements
        (TopKCategoricalAccuracy(3), (SIX, np.array([2, 0, 1])), 2 / 3),
        (Top1CategoricalAccuracy(), (SIX, np.array([2, 0, 1])), 0.0),
        (Top5CategoricalAccuracy(), (SIX, np.array([2, 0, 1])), 1.0),
        (Accuracy("multilabel"), ([[0, 1], [1, 1]], [[0, 1], [0, 1]]), 0.5),
        (Precision("multilabel"), ([[0, 1], [1, 1]], [[0, 1], [0, 1]]), [1.0, 0.5]),
        (Recall("multilabel"), ([[0, 1], [0, 1]], [[0, 1], [1, 1]]), [1.0, 0.5]),
    ],
)
def test_one_batch_has_the_number_of_mindspore(metric, inputs, expected):
    for _ in range(2):  # calling a metric clears it first
        np.testing.assert_allclose(metric(*inputs), expected, rtol=1e-12)


@pytest.mark.parametrize("make", [Accuracy, Precision, Recall, F1, Top1CategoricalAccuracy, MAE, MSE])
def test_batches_add_up(make):
    generator = np.random.default_rng(0)
    predicted, true = generator.random((12, 4)), generator.integers(0, 4, 12)
    if make in (MAE, MSE):
        true = generator.random((12, 4))
    whole = make()(predicted, true)
    metric = make()
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        metric.update(predicted[begin:end], true[begin:end])
    np.testing.assert_allclose(metric.eval(), whole, rtol=1e-12)
    metric.clear()
    with pytest.raises(NoSamplesError, match="call update before eval"):
        metric.eval()


def test_a_class_that_no_one_met_gets_zero_and_the_average_is_over_classes():
    metric = Precision()
    metric.update(np.eye(3)[[0, 0]], [0, 1])
    assert metric.eval().tolist() == [0.5, 0.0, 0.0]
    assert metric.eval(average=True) == pytest.approx(1 / 6)
    with pytest.raises(InvalidTypeError, match="average"):
        metric.eval(average=1)


def test_images_are_classified_by_pixel():
    predicted = np.zeros((2, 3, 4, 4))
    predicted[:, 1] = 1
    assert Accuracy()(predicted, np.ones((2, 4, 4), int)) == 1.0
    assert Recall()(predicted, np.ones((2, 4, 4), int)).tolist() == [0.0, 1.0, 0.0]


def test_half_precision_is_counted_in_float64():
    ones = np.ones(5000, np.float16)
    assert MSE()(ones * 200, ones) == 199.0**2  # float16 ends at 65504
    assert Loss()(ones) == 1.0


def test_indexes_choose_the_inputs():
    metric = MAE().set_indexes([2, 0])
    assert metric.indexes == [2, 0]
    assert metric([1.0, 2.0], [9.0, 9.0], [2.0, 2.0]) == 0.5
    with pytest.raises(InvalidValueError, match="do not have all of the indexes"):
        metric([1.0], [2.0])
    for bad in ((0, 1), [0.5], [True], None):
        with pytest.raises(InvalidValueError, match="indexes must be a list of int"):
            metric.set_indexes(bad)


@pytest.mark.parametrize(
    ("metric", "inputs", "kind", "message"),
    [
        (Accuracy(), (PREDICTED,), InvalidValueError, "takes two inputs, predictions and labels, got 1"),
        (Accuracy(), (PREDICTED, TRUE[:2]), InvalidValueError, r"shapes \(3, 2\) and \(2,\)"),
        (Accuracy(), (TRUE, TRUE), InvalidValueError, "shapes"),
        (Accuracy("multilabel"), (PREDICTED, PREDICTED), InvalidValueError, "only 0 and 1"),
        (Accuracy("multilabel"), (PREDICTED, TRUE), InvalidValueError, "same shape"),
        (Precision(), (PREDICTED, np.array([0, 1, 2])), InvalidValueError, r"labels must be in \[0, 1\]"),
        (Recall(), (PREDICTED, np.array([0, 1, -1])), InvalidValueError, r"labels must be in \[0, 1\]"),
        (Loss(), (PREDICTED,), InvalidValueError, r"got shape \(3, 2\); reduce it"),
        (Loss(), (np.zeros(0),), InvalidValueError, "the loss must be one number"),
        (Loss(), (0.1, 0.2), InvalidValueError, "takes one input, the loss, got 2"),
        (Loss(), ("0.1",), InvalidTypeError, "takes tensors, arrays or lists, got str"),
        (Loss(), ({},), InvalidTypeError, "got dict"),
        (MAE(), ([1.0], [1.0, 2.0]), InvalidValueError, "same shape"),
        (Top1CategoricalAccuracy(), (TRUE, TRUE), InvalidValueError, "shapes"),
    ],
)
def test_what_does_not_fit_is_refused(metric, inputs, kind, message):
    with pytest.raises(kind, match=message):
        metric.update(*inputs)


def test_the_classes_must_stay_the_same():
    metric = Accuracy()
    metric.update(PREDICTED, TRUE)
    with pytest.raises(InvalidValueError, match="predictions of 5 classes after 2; call clear"):
        metric.update(SIX, TRUE)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Accuracy("regression"), InvalidTypeError),
        (lambda: Accuracy(1), InvalidTypeError),
        (lambda: Fbeta(0), InvalidValueError),
        (lambda: Fbeta("1"), InvalidTypeError),
        (lambda: TopKCategoricalAccuracy(0), InvalidValueError),
        (lambda: TopKCategoricalAccuracy(1.0), InvalidTypeError),
    ],
)
def test_bad_arguments_are_refused(make, kind):
    with pytest.raises(kind):
        make()


class Own:
    """A metric that derives from nothing."""

    def clear(self):
        pass

    def update(self, *inputs):
        pass

    def eval(self):
        return 1.0


def test_metrics_are_named_or_given():
    assert get_metrics(None) == {}
    named = get_metrics(set(names()))
    assert list(named) == sorted(named) == names()
    assert all(isinstance(metric, Metric) for metric in named.values())
    own, loss = Own(), Loss()
    assert get_metrics({"own": own, "Loss": loss}) == {"own": own, "Loss": loss}


@pytest.mark.parametrize(
    ("metrics", "kind", "message"),
    [
        (["acc"], InvalidTypeError, 'metrics must be a set or dict.*write metrics={"acc"}'),
        ("acc", InvalidTypeError, 'metrics must be a set or dict.*write metrics={"acc"}'),
        (3, InvalidTypeError, "metrics must be dict or set"),
        ({"a": "acc"}, InvalidTypeError, r"the name 'acc'; write distsummary\.Accuracy\(\)"),
        ({"a": "mae"}, InvalidTypeError, r"the name 'mae'; write distsummary\.model\.metrics\.MAE\(\)"),
        ({"auc"}, InvalidValueError, "there is no metric 'auc'; known names are F1, acc"),
        ({1}, InvalidTypeError, "a metric in a set must be str"),
        ({1: Loss()}, InvalidTypeError, "the name of a metric must be str"),
        ({"a": 1}, InvalidTypeError, r"metrics\['a'\] must have the methods clear, update and eval"),
        ({"a": Accuracy}, InvalidTypeError, "got the class Accuracy; call it"),
    ],
)
def test_what_is_no_metric_is_refused(metrics, kind, message):
    with pytest.raises(kind, match=message):
        get_metrics(metrics)

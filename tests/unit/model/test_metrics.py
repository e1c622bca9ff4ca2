"""Metrics: MindSpore's numbers (as its docs and its code give them), and what is refused."""

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, MissingExtraError, NoSamplesError
from distsummary.model.metrics import (
    F1,
    MAE,
    MSE,
    ROC,
    Accuracy,
    BleuScore,
    ConfusionMatrix,
    ConfusionMatrixMetric,
    CosineSimilarity,
    Dice,
    Fbeta,
    HausdorffDistance,
    Loss,
    MeanSurfaceDistance,
    Metric,
    OcclusionSensitivity,
    Perplexity,
    Precision,
    Recall,
    RootMeanSquareDistance,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    auc,
    get_metrics,
    names,
)

PREDICTED = np.array([[0.2, 0.5], [0.3, 0.1], [0.9, 0.6]])
TRUE = np.array([1, 0, 1])
SURFACES = [[3, 0, 1], [1, 3, 0], [1, 0, 2]], [[0, 2, 1], [1, 2, 1], [0, 0, 1]], 0
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
        (Dice(), (PREDICTED, [[0, 1], [1, 0], [0, 1]]), 0.20467791371802546),
        (Perplexity(), (PREDICTED, TRUE), 2.231443166940565),
        (ConfusionMatrix(2), ([1, 0, 1, 0], [1, 0, 0, 1]), [[1, 1], [1, 1]]),
        (
            ConfusionMatrixMetric(metric_name="tpr"),
            ([[[0], [1]], [[1], [0]]], [[[0], [1]], [[0], [1]]]),
            [0.5],
        ),
        (HausdorffDistance(), SURFACES, 2**0.5),
        (MeanSurfaceDistance(), SURFACES, 0.8047378541243649),
        (RootMeanSquareDistance(), SURFACES, 1.0),
        (
            CosineSimilarity(),
            (np.array([[1, 3, 4, 7], [2, 4, 2, 5], [3, 1, 5, 8]]),),
            [[0, 0.94025615, 0.95162452], [0.94025615, 0, 0.86146098], [0.95162452, 0.86146098, 0]],
        ),
        (
            OcclusionSensitivity(),
            (lambda x: x @ [[0.1, 1], [0.8, 1], [0.1, 1], [0.1, 1]], [[0.1, 0.2, 0.3, 0.4]], 1),
            [0.3, 0.6, 1.0, 0.9],
        ),
        (Accuracy("multilabel"), ([[0, 1], [1, 1]], [[0, 1], [0, 1]]), 0.5),
        (Precision("multilabel"), ([[0, 1], [1, 1]], [[0, 1], [0, 1]]), [1.0, 0.5]),
        (Recall("multilabel"), ([[0, 1], [0, 1]], [[0, 1], [1, 1]]), [1.0, 0.5]),
    ],
)
def test_one_batch_has_the_number_of_mindspore(metric, inputs, expected):
    for _ in range(2):  # calling a metric clears it first
        np.testing.assert_allclose(metric(*inputs), expected, rtol=1e-8)


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


def test_the_area_under_a_curve_is_that_of_mindspores_page():
    metric = ROC(pos_label=2)
    metric.update([[3, 0, 1], [1, 3, 0], [1, 0, 2]], [[0, 2, 1], [1, 2, 1], [0, 0, 1]])
    false, true, thresholds = metric.eval()
    assert auc(false, true) == pytest.approx(0.5357142857142857, abs=1e-15)
    assert thresholds.tolist() == [4, 3, 2, 1, 0]
    metric.clear()
    with pytest.raises(NoSamplesError, match="ROC has no samples"):
        metric.eval()


def test_a_translation_has_the_score_of_mindspores_page():
    words = ["i", "have", "a", "pen", "on", "my", "desk"]
    others = [["i", "have", "a", "pen", "in", "my", "desk"], ["there", "is", "a", "pen", "on", "the", "desk"]]
    assert BleuScore()([words], [others]) == pytest.approx(0.5946035575013605, abs=1e-15)
    assert BleuScore(2)([words], [[words]]) == 1.0
    assert BleuScore()([words[:5]], [[words]]) == pytest.approx(np.exp(1 - 7 / 5))  # too short


@pytest.mark.parametrize("shape", [(2, 3, 4), (6, 4)])
def test_the_perplexity_takes_sequences(shape):
    likely = np.full(shape, 0.25)
    assert Perplexity(ignore_label=-100)(likely, np.full(shape[:-1], 1)) == pytest.approx(4.0)
    assert Perplexity()(likely, np.full(shape[:-1], 1)) == pytest.approx(4.0)


def test_surfaces_need_scipy(hide_package):
    hide_package("scipy")
    for kind in (HausdorffDistance, MeanSurfaceDistance, RootMeanSquareDistance):
        with pytest.raises(MissingExtraError, match=f"{kind.__name__} needs scipy.*pip install scipy"):
            kind()


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
        (
            Accuracy(),
            (PREDICTED, np.array([0, 1, -100])),
            InvalidValueError,
            r"in \[0, 1\]: leave out samples",
        ),
        (Precision(), (PREDICTED, np.array([0, 1, 2])), InvalidValueError, r"labels must be in \[0, 1\]"),
        (Recall(), (PREDICTED, np.array([0, 1, -1])), InvalidValueError, r"labels must be in \[0, 1\]"),
        (Loss(), (PREDICTED,), InvalidValueError, r"got shape \(3, 2\); reduce it"),
        (Loss(), (np.zeros(0),), InvalidValueError, "the loss must be one number"),
        (Loss(), (0.1, 0.2), InvalidValueError, "takes one input, the loss, got 2"),
        (Loss(), ("0.1",), InvalidTypeError, "takes tensors, arrays or lists, got str"),
        (Loss(), ({},), InvalidTypeError, "got dict"),
        (MAE(), ([1.0], [1.0, 2.0]), InvalidValueError, "same shape"),
        (Top1CategoricalAccuracy(), (TRUE, TRUE), InvalidValueError, "shapes"),
        (Dice(), (PREDICTED, TRUE), InvalidValueError, r"got \(3, 2\) and \(3,\)"),
        (Perplexity(), (PREDICTED, TRUE[:2]), InvalidValueError, r"shapes \(3, 2\) and \(2,\)"),
        (Perplexity(), (PREDICTED, TRUE - 1), InvalidValueError, r"must be in \[0, 1\], or be ignore_label"),
        (BleuScore(), ([["a"]], [[["a"]], [["b"]]]), InvalidValueError, "got 1 translations and 2 lists"),
        (BleuScore(), ([["a"]], [[]]), InvalidValueError, "none may be empty"),
        (CosineSimilarity(), (TRUE,), InvalidValueError, r"takes a matrix \(N, M\), got the shape \(3,\)"),
        (ConfusionMatrix(2), (PREDICTED, TRUE[:2]), InvalidValueError, r"shapes \(3,\) and \(2,\)"),
        (ConfusionMatrix(2), (TRUE, TRUE + 1), InvalidValueError, "from 0 to 2; with num_classes=2"),
        (ConfusionMatrixMetric(), (TRUE, TRUE), InvalidValueError, "takes one-hot predictions and labels"),
        (ConfusionMatrixMetric(), (np.eye(2), 2 * np.eye(2)), InvalidValueError, "takes one-hot pred"),
        (ConfusionMatrixMetric(), (0.7 * np.eye(2), np.eye(2)), InvalidValueError, "takes one-hot pred"),
        (
            ConfusionMatrixMetric(calculation_method=True),
            (np.eye(2), np.eye(2)),
            InvalidValueError,
            "is for segmentations",
        ),
        (
            ConfusionMatrixMetric(calculation_method=True, decrease="mean_batch"),
            (np.ones((2, 3, 4, 4)), np.ones((2, 3, 4, 4))),
            InvalidValueError,
            "decrease='mean_batch' gives 3 numbers for 2 samples of 3 classes",
        ),
        (ROC(), (PREDICTED, TRUE), InvalidValueError, r"\(3, 2\) and \(3,\), class_num=None"),
        (ROC(3), (PREDICTED, TRUE), InvalidValueError, "class_num=3"),
        (ROC(2, 1), (PREDICTED, TRUE), InvalidValueError, "pos_label must be None for scores of 2 classes"),
        (HausdorffDistance(), (TRUE, TRUE, 7), InvalidValueError, "the label 7 is in neither image"),
        (HausdorffDistance(), (TRUE, TRUE), InvalidValueError, "three inputs, the predicted image"),
        (MeanSurfaceDistance(), (TRUE, TRUE, "1"), InvalidTypeError, "must be int or float, got '1'"),
        (MeanSurfaceDistance(), (TRUE, TRUE[:2], 1), InvalidValueError, "two images of the same shape"),
        (OcclusionSensitivity(), (np.abs, PREDICTED, 1), InvalidValueError, "one image .* got the shapes"),
        (
            OcclusionSensitivity(b_box=[0, 1]),
            (np.abs, np.ones((1, 2, 2)), 1),
            InvalidValueError,
            "hold 4 numb",
        ),
        (OcclusionSensitivity(b_box=[0, 2]), (np.abs, np.ones((1, 2)), 1), InvalidValueError, "minima first"),
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
        (lambda: ConfusionMatrix(0), InvalidValueError),
        (lambda: ConfusionMatrixMetric(metric_name="rand index"), InvalidValueError),
        (lambda: HausdorffDistance(percentile=101), InvalidValueError),
        (lambda: OcclusionSensitivity(n_batch=0), InvalidValueError),
        (lambda: auc([1.0], [1.0]), InvalidValueError),
        (lambda: auc(PREDICTED, PREDICTED), InvalidValueError),
        (lambda: auc([0.0, 2.0, 1.0], [0.0, 1.0, 1.0]), InvalidValueError),
        (lambda: auc("0", [1.0]), InvalidTypeError),
        (lambda: ROC()([0.5, 0.1], [1, 1]), InvalidValueError),
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
    named = get_metrics(set(names()) - {"auc", "confusion_matrix", "topk"})
    assert list(named) == sorted(named)
    assert len(named) == len(names()) - 3 == 20
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
        ({"iou"}, InvalidValueError, f"there is no metric 'iou'; known names are {', '.join(names())}; pass"),
        ({"auc"}, InvalidTypeError, r"'auc' takes arguments; write metrics={'roc'}, and .*auc\(fpr, tpr\)"),
        ({"topk"}, InvalidTypeError, r"'topk' takes arguments; write metrics={'topk': .*Accuracy\(k\)}"),
        ({"a": "topk"}, InvalidTypeError, r"the name 'topk'; write metrics={'topk': .*Accuracy\(k\)}"),
        ({1}, InvalidTypeError, "a metric in a set must be str"),
        ({1: Loss()}, InvalidTypeError, "the name of a metric must be str"),
        ({"a": 1}, InvalidTypeError, r"metrics\['a'\] must have the methods clear, update and eval"),
        ({"a": Accuracy}, InvalidTypeError, "got the class Accuracy; call it"),
    ],
)
def test_what_is_no_metric_is_refused(metrics, kind, message):
    with pytest.raises(kind, match=message):
        get_metrics(metrics)

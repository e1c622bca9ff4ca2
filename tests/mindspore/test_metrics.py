"""Each metric, beside MindSpore's own: the same inputs give the same numbers."""

import mindspore
import numpy as np
import pytest
from mindspore import nn, train

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.model import metrics

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of SciPy's and NumPy's names, in MindSpore
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning"),  # in MindSpore
]

RANDOM = np.random.default_rng(5)
PREDICTED, LABELS = RANDOM.random((7, 4)), RANDOM.integers(0, 4, 7)
IMAGES = [
    RANDOM.integers(0, 3, shape) * (RANDOM.random(shape) > 0.4) for shape in [(9, 11)] * 2 + [(5, 6, 7)] * 2
]
ONE_HOT = [np.moveaxis(np.eye(3)[RANDOM.integers(0, 3, (2, 5, 6))], -1, 1) for _ in range(4)]
ROWS = [np.eye(4)[RANDOM.integers(0, 4, 6)] for _ in range(4)]
WORDS = [["a", "cat", "sat", "on", "the", "mat", "and", "slept"], ["it", "was", "on", "the", "mat"]]
REFERENCES = [
    [["a", "cat", "sat", "on", "the", "mat", "all", "day"], ["the", "cat", "sat", "on", "a", "mat"]],
    [["it", "was", "on", "the", "mat", "too"]],
]
MEASURES = (
    "sensitivity", "specificity", "precision", "negative predictive value", "miss rate", "fall out",
    "false discovery rate", "false omission rate", "prevalence threshold", "threat score", "accuracy",
    "balanced accuracy", "f1 score", "matthews correlation coefficient", "fowlkes mallows index",
    "informedness", "markedness",
)  # fmt: skip


def equal(name, arguments, *updates):
    """Compare both metrics of a name after these updates, each a tuple of inputs."""
    found = []
    for module in (train, metrics):
        metric = getattr(module, name)(**arguments)
        metric.clear()
        for inputs in updates:
            metric.update(*inputs)
        found.append(metric.eval())
    theirs, ours = found
    for one, other in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (ours, theirs)), strict=True
    ):
        if isinstance(other, list):
            for curve, expected in zip(one, other, strict=True):
                np.testing.assert_allclose(curve, expected, atol=1e-6)
        else:
            assert np.shape(one) == np.shape(other)
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return ours


def test_the_names_are_mindspores():
    assert metrics.names() == train.names()
    for name in set(train.names()) - {"auc", "topk", "confusion_matrix"}:
        assert type(metrics.get_metrics({name})[name]).__name__ == type(train.get_metric_fn(name)).__name__
    for name in ("auc", "topk", "confusion_matrix"):
        with pytest.raises(TypeError):
            train.get_metric_fn(name)
        with pytest.raises(InvalidTypeError, match=f"{name}.*takes arguments; write metrics="):
            metrics.get_metrics({name})


@pytest.mark.parametrize(
    "name", ["Accuracy", "Precision", "Recall", "F1", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy"]
)
def test_what_adds_up_over_classes_is_mindspores(name):
    predicted, labels = RANDOM.random((8, 6)), RANDOM.integers(0, 6, 8)
    equal(name, {}, (predicted, labels), (predicted[::-1], labels))


@pytest.mark.parametrize("name", ["Accuracy", "Precision", "Recall"])
def test_what_adds_up_over_several_labels_is_mindspores(name):
    predicted, labels = RANDOM.integers(0, 2, (2, 8, 6))
    equal(name, {"eval_type": "multilabel"}, (predicted, labels), (labels, labels))


@pytest.mark.parametrize("name", ["MAE", "MSE"])
def test_errors_of_numbers_are_mindspores(name):
    equal(name, {}, (PREDICTED, PREDICTED[::-1]), (PREDICTED[:3], PREDICTED[4:]))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_dice_is_mindspores(kind):
    true = np.eye(4)[LABELS]
    equal("Dice", {}, (PREDICTED.astype(kind), true), (PREDICTED[:2].astype(kind), true[1:3]))
    equal("Dice", {"smooth": 0.5}, (PREDICTED.tolist(), true.tolist()))


def test_a_tensor_of_mindspore_is_an_input():
    equal("Dice", {}, (mindspore.Tensor(PREDICTED), mindspore.Tensor(np.eye(4)[LABELS])))


@pytest.mark.parametrize("ignored", [None, 2, -1])
def test_perplexity_is_mindspores(ignored):
    labels = np.where(LABELS == 3, -1, LABELS) if ignored == -1 else LABELS
    equal("Perplexity", {"ignore_label": ignored}, (PREDICTED, labels), (PREDICTED[:3] * 0, labels[:3]))


@pytest.mark.parametrize("arguments", [{}, {"n_gram": 2}, {"n_gram": 3, "smooth": True}, {"smooth": True}])
def test_bleu_is_mindspores(arguments):
    assert 0 < equal("BleuScore", arguments, (WORDS, REFERENCES), (WORDS[1:], REFERENCES[1:])) < 1
    assert equal("BleuScore", arguments, ([["no"]], [[["yes"]]])) == 0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_cosine_similarity_is_mindspores(similarity, reduction):
    for zero in (True, False):
        arguments = {"similarity": similarity, "reduction": reduction, "zero_diagonal": zero}
        equal("CosineSimilarity", arguments, (PREDICTED,), (PREDICTED[1:5],))


@pytest.mark.parametrize("normalize", ["no_norm", "target", "prediction", "all"])
def test_the_confusion_matrix_is_mindspores(normalize):
    several = {"num_classes": 5, "normalize": normalize}
    equal("ConfusionMatrix", several, (PREDICTED, LABELS), (LABELS[::-1], LABELS))
    equal("ConfusionMatrix", {"num_classes": 2, "threshold": 0.3}, (PREDICTED[:, 0], LABELS % 2))
    images = RANDOM.random((2, 5, 3, 3)), RANDOM.integers(0, 5, (2, 3, 3))
    equal("ConfusionMatrix", several, images)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_of_the_confusion_matrix_is_mindspores(measure):
    batches = [(ONE_HOT[0], ONE_HOT[1]), (ONE_HOT[2], ONE_HOT[3])]
    nothing = np.zeros_like(ONE_HOT[0])
    for skip in (True, False):
        of_all = {"metric_name": measure, "skip_channel": skip}
        equal("ConfusionMatrixMetric", of_all, (ROWS[0], ROWS[1]), (ROWS[2], ROWS[3]))
        equal("ConfusionMatrixMetric", of_all, *batches)
        for decrease in ("mean", "sum"):
            each = of_all | {"calculation_method": True, "decrease": decrease}
            equal("ConfusionMatrixMetric", each, *batches)
            equal(
                "ConfusionMatrixMetric", each, (ONE_HOT[0], nothing), *batches
            )  # some classes have no samples


def test_roc_curves_and_their_areas_are_mindspores():
    scores, positive = np.round(RANDOM.random(20), 1), RANDOM.integers(0, 3, 20)
    for arguments in ({"pos_label": 2}, {}, {"class_num": 1, "pos_label": 0}):
        false, true, _ = equal("ROC", arguments, (scores, positive))
        assert metrics.auc(false, true) == pytest.approx(train.auc(false, true), abs=1e-12)
        assert metrics.auc(1 - false, true) == pytest.approx(train.auc(1 - false, true), abs=1e-12)
    shuffled = RANDOM.permutation(len(false))
    area = metrics.auc(false[shuffled], true[shuffled], reorder=True)
    assert area == pytest.approx(train.auc(false[shuffled], true[shuffled], reorder=True), abs=1e-12)
    square = RANDOM.random((4, 4)), RANDOM.permutation(4)
    equal("ROC", {"class_num": 4}, square)
    equal("ROC", {}, (IMAGES[0], IMAGES[1]))


def test_of_more_samples_than_classes_mindspores_roc_mixes_them_up_and_ours_does_not():
    metric = metrics.ROC(class_num=4)
    metric.update(PREDICTED, np.array([0, 1, 2, 3, 0, 1, 2]))
    for number, curves in enumerate(zip(*metric.eval(), strict=True)):
        alone = metrics.ROC()
        alone.update(PREDICTED[:, number], np.array([0, 1, 2, 3, 0, 1, 2]) == number)
        for one, expected in zip(curves, alone.eval(), strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("distance", ["euclidean", "chessboard", "taxicab"])
@pytest.mark.parametrize("pair", [0, 2])
def test_distances_of_surfaces_are_mindspores(distance, pair):
    one, other = IMAGES[pair : pair + 2]
    for label in (0, 1, 2.0):
        for symmetric in (True, False):
            arguments = {"symmetric": symmetric, "distance_metric": distance}
            for name in ("MeanSurfaceDistance", "RootMeanSquareDistance"):
                equal(name, arguments, (one, other, label))
                equal(name, arguments, (one * 0, other, 1))
                equal(name, arguments, (one, other * 0, 1))
                equal(name, arguments, (one == 1, other == 1, 0))
        for arguments in ({}, {"percentile": 60.0}, {"percentile": 0.0}, {"directed": True}, {"crop": False}):
            arguments = arguments | {"distance_metric": distance}
            equal("HausdorffDistance", arguments, (one, other, label))
            equal("HausdorffDistance", arguments, (one * 0, other, 1))
            equal("HausdorffDistance", arguments, (one == 1, other == 1, 0))
    row = np.array([[0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    equal("HausdorffDistance", {}, (row, np.roll(row, 1) * (row > 0), 1))  # the box is one pixel high


@pytest.mark.parametrize("box", [None, [0, 0, 1, 3, 0, -1], [-1, 0, 0, -1, 2, 3]])
def test_the_occlusion_sensitivity_is_mindspores(box):
    weights = RANDOM.normal(size=(3, 20)).astype(np.float32)
    cell = nn.SequentialCell(
        nn.Flatten(), nn.Dense(20, 3, weight_init=mindspore.Tensor(weights), bias_init="zeros")
    )
    image, label = RANDOM.normal(size=(1, 1, 4, 5)).astype(np.float32), np.array(2)
    theirs, ours = train.OcclusionSensitivity(0.5, 1, 3, box), metrics.OcclusionSensitivity(0.5, 1, 3, box)
    theirs.update(cell, image, label)
    ours.update(lambda images: cell(mindspore.Tensor(images)), image, label)
    assert ours.eval().shape == theirs.eval().shape
    np.testing.assert_allclose(ours.eval(), theirs.eval(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("Dice", {"smooth": 0.0}, InvalidValueError),
        ("Dice", {"smooth": "1"}, InvalidTypeError),
        ("BleuScore", {"n_gram": 5}, InvalidValueError),
        ("BleuScore", {"n_gram": 2.0}, InvalidTypeError),
        ("BleuScore", {"smooth": 1}, InvalidTypeError),
        ("Perplexity", {"ignore_label": 1.5}, InvalidTypeError),
        ("CosineSimilarity", {"similarity": "euclid"}, InvalidValueError),
        ("CosineSimilarity", {"reduction": 1}, InvalidTypeError),
        ("CosineSimilarity", {"zero_diagonal": 1}, InvalidTypeError),
        ("ConfusionMatrix", {"num_classes": 2.0}, InvalidTypeError),
        ("ConfusionMatrix", {"num_classes": 2, "normalize": "row"}, InvalidValueError),
        ("ConfusionMatrixMetric", {"decrease": "max"}, InvalidValueError),
        ("ConfusionMatrixMetric", {"skip_channel": 1}, InvalidTypeError),
        ("ROC", {"class_num": "2"}, InvalidTypeError),
        ("ROC", {"pos_label": 1.0}, InvalidTypeError),
        ("HausdorffDistance", {"distance_metric": "manhattan"}, InvalidValueError),
        ("HausdorffDistance", {"percentile": "9"}, InvalidTypeError),
        ("MeanSurfaceDistance", {"symmetric": 1}, InvalidTypeError),
        ("RootMeanSquareDistance", {"distance_metric": 2}, InvalidTypeError),
        ("OcclusionSensitivity", {"margin": "2"}, InvalidTypeError),
        ("OcclusionSensitivity", {"b_box": 3}, InvalidTypeError),
    ],
)
def test_what_mindspore_refuses_is_refused(name, arguments, error):
    kind = TypeError if error is InvalidTypeError else ValueError
    with pytest.raises(kind):
        getattr(train, name)(**arguments)
    with pytest.raises(error):
        getattr(metrics, name)(**arguments)

"""Metrics of images: Dice, distances between surfaces and the occlusion sensitivity, MindSpore's numbers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from distsummary.base.checks import check_choice, check_int, check_number, check_type
from distsummary.base.extras import extra, require
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.model.metric import Array, LastUpdate, Mean, array_of

DISTANCES = ("euclidean", "chessboard", "taxicab")


class Dice(Mean):
    """Dice coefficients of the updates, added up and divided by the number of samples, as in MindSpore.

    With updates of one sample each, that is the mean of the coefficients of the literature.

    Args:
        smooth: > 0, added to the denominator.

    Raises InvalidTypeError or InvalidValueError for another number.
    """

    def __init__(self, smooth: float = 1e-5) -> None:
        smooth = check_number("smooth", smooth)
        if not 0 < smooth < math.inf:
            raise InvalidValueError(f"smooth must be finite and > 0, got {smooth}")
        self._smooth = smooth
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Add predictions and true values, both (N, ...); raises InvalidValueError for other shapes."""
        predicted, true = self._arrays(inputs, 2, "two inputs, predictions and true values")
        if not predicted.ndim or predicted.shape != true.shape:
            raise InvalidValueError(
                f"Dice takes predictions and true values of the same shape (N, ...), got "
                f"{predicted.shape} and {true.shape}"
            )
        flat, of_true = (each.reshape(-1).astype(np.float64) for each in (predicted, true))
        self._add(
            2 * float(flat @ of_true) / float(flat @ flat + of_true @ of_true + self._smooth), len(true)
        )


class _Surfaces(LastUpdate):
    """A distance between the surfaces of a label's region in two images; needs SciPy."""

    def __init__(self, distance_metric: str) -> None:
        check_type("distance_metric", distance_metric, str)
        check_choice("distance_metric", distance_metric, DISTANCES)
        require(self._name, "scipy")
        self._kind = distance_metric
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take a predicted and a true image of the same shape, and a label that is in one of them.

        They take the place of earlier ones. Raises InvalidValueError for other inputs.
        """
        images = self._chosen(inputs, 3, "three inputs, the predicted image, the true image and the label")
        predicted, true = (array_of(self._name, each) for each in images[:2])
        label = images[2]
        if isinstance(label, bool) or not isinstance(label, (int, float)):
            raise InvalidTypeError(f"the label of {self._name} must be int or float, got {label!r}")
        if not predicted.size or predicted.shape != true.shape:
            raise InvalidValueError(
                f"{self._name} takes two images of the same shape, got {predicted.shape} and {true.shape}"
            )
        if not ((predicted == label).any() or (true == label).any()):
            raise InvalidValueError(f"the label {label} is in neither image of {self._name}")
        self._held = tuple(_edges(each) for each in self._regions(predicted, true, label))

    def _regions(self, predicted: Array, true: Array, label: float) -> tuple[Array, Array]:
        """Where each image has the label; an image of bools is such a region itself, as in MindSpore."""
        return (
            predicted if predicted.dtype == bool else predicted == label,
            true if true.dtype == bool else true == label,
        )

    def _distances(self, begin: int) -> Array:
        """From each point of one surface (0: the predicted one) to the other, (K,) float64."""
        surfaces = self._last()
        here, there = surfaces[begin], surfaces[1 - begin]
        # To an empty surface there is no distance.
        if not there.any():
            return np.full(np.count_nonzero(here), np.inf)
        ndimage = extra(self._name, "scipy.ndimage")
        # The transform gives each pixel its distance to the nearest zero: the other surface becomes zeros.
        if self._kind == "euclidean":
            found: Array = ndimage.distance_transform_edt(~there)
        else:
            found = ndimage.distance_transform_cdt(~there, metric=self._kind).astype(np.float64)
        chosen: Array = found[here]
        return chosen


def _edges(region: Array) -> Array:
    # Erosion takes away the outermost pixels of a region, which are its edge.
    eroded: Array = extra("the edges of a region", "scipy.ndimage").binary_erosion(region)
    return eroded ^ region


class HausdorffDistance(_Surfaces):
    """The largest distance from a point of one surface to the other surface.

    Args:
        distance_metric: "euclidean", "chessboard" or "taxicab".
        percentile: in [0, 100]: this percentile of the distances in the place of the largest; None or 0: the
            largest.
        directed: only from the prediction to the true image; otherwise the larger of both ways.
        crop: whether the images are first cut to the box that holds both regions.

    Raises InvalidTypeError or InvalidValueError for other arguments, MissingExtraError without SciPy.
    """

    def __init__(
        self,
        distance_metric: str = "euclidean",
        percentile: float | None = None,
        directed: bool = False,
        crop: bool = True,
    ) -> None:
        percentile = check_number("percentile", percentile, optional=True)
        if percentile is not None and not 0 <= percentile <= 100:
            raise InvalidValueError(f"percentile must be in [0, 100], got {percentile}")
        check_type("directed", directed, bool, optional=True)
        check_type("crop", crop, bool, optional=True)
        self._percentile, self._is_directed, self._crop = percentile, directed, crop
        super().__init__(distance_metric)

    def eval(self) -> float:
        """The distance in pixels; inf if a region is empty. Raises NoSamplesError."""
        ways = [self._largest(begin) for begin in (0, 1)]
        return ways[0] if self._is_directed else max(ways)

    def _largest(self, begin: int) -> float:
        distances = self._distances(begin)
        if not distances.size:
            return math.inf
        return float(np.percentile(distances, self._percentile) if self._percentile else distances.max())

    def _regions(self, predicted: Array, true: Array, label: float) -> tuple[Array, Array]:
        regions = predicted == label, true == label
        if not self._crop:
            return regions
        # Distances are only measured within the box that holds both regions.
        places = np.nonzero(regions[0] | regions[1])
        box = tuple(slice(each.min(), each.max() + 1) for each in places)
        return np.squeeze(regions[0][box]), np.squeeze(regions[1][box])


class _MeanOfSurfaces(_Surfaces):
    """A mean over the distances from the predicted surface to the true one."""

    def __init__(self, symmetric: bool = False, distance_metric: str = "euclidean") -> None:
        check_type("symmetric", symmetric, bool)
        self._is_symmetric = symmetric
        super().__init__(distance_metric)

    def _mean(self, power: int) -> float:
        ways = [self._distances(begin) ** power for begin in range(1 + self._is_symmetric)]
        return float(np.mean([way.mean() for way in ways])) if all(way.size for way in ways) else math.inf


class MeanSurfaceDistance(_MeanOfSurfaces):
    """The mean distance from the points of the predicted surface to the true one.

    Args:
        symmetric: the mean of both ways.
        distance_metric: "euclidean", "chessboard" or "taxicab".

    Raises InvalidTypeError or InvalidValueError for other arguments, MissingExtraError without SciPy.
    """

    def eval(self) -> float:
        """The distance in pixels; inf if a region is empty. Raises NoSamplesError."""
        return self._mean(1)


class RootMeanSquareDistance(_MeanOfSurfaces):
    """The mean square distance from the points of the predicted surface to the true one.

    Args:
        symmetric: the root of the mean of both ways; without it no root is taken, as in MindSpore.
        distance_metric: "euclidean", "chessboard" or "taxicab".

    Raises InvalidTypeError or InvalidValueError for other arguments, MissingExtraError without SciPy.
    """

    def eval(self) -> float:
        """In square pixels, with `symmetric` in pixels; inf if a region is empty. Raises NoSamplesError."""
        mean = self._mean(2)
        return math.sqrt(mean) if self._is_symmetric else mean


class OcclusionSensitivity(LastUpdate):
    """How much the score of a class falls when a part of the image is covered, for each place in it.

    Args:
        pad_val: the value of covered pixels.
        margin: pixels that are covered on each side of a place, the place itself on the left one; a list has
            one for each axis of the image.
        n_batch: covered images in a forward pass.
        b_box: [min1, max1, min2, max2, ...], the places, both ends included; a negative maximum is the last
            place; None: the whole image.

    Raises InvalidTypeError or InvalidValueError for other arguments.
    """

    def __init__(
        self,
        pad_val: float = 0.0,
        margin: int | Sequence[int] = 2,
        n_batch: int = 128,
        b_box: Sequence[int] | None = None,
    ) -> None:
        pad_val = check_number("pad_val", pad_val)
        margin = margin if isinstance(margin, (list, tuple)) else check_int("margin", margin)
        n_batch = check_int("n_batch", n_batch, low=1)
        check_type("b_box", b_box, (list, tuple), optional=True)
        self._pad, self._margin, self._batch, self._box = pad_val, margin, n_batch, b_box
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take a model, an image (1, ...) and a label in the place of earlier ones.

        The model gives scores (N, C) for images (N, ...); a torch module is called in its present mode.
        Raises InvalidValueError if the shapes do not fit, whatever the model raises.
        """
        model, *given = self._chosen(inputs, 3, "three inputs, the model, the image and the label")
        image, label = (array_of(self._name, each) for each in given)
        if image.ndim < 2 or len(image) != 1 or label.size != 1:
            raise InvalidValueError(
                f"{self._name} takes one image (1, ...) and one label, got the shapes {image.shape} "
                f"and {label.shape}"
            )
        first, last = self._places(np.array(image.shape[1:]))
        margin = np.broadcast_to(self._margin, first.shape)
        shape = tuple(last - first + 1)
        where = [np.array(index) + first for index in np.ndindex(*shape)]
        scores: list[float] = []
        # Each place is covered in its own copy of the image; at most n_batch copies exist at a time.
        for begin in range(0, len(where), self._batch):
            covered = np.repeat(image, len(where[begin : begin + self._batch]), axis=0)
            for one, place in zip(covered, where[begin:], strict=False):
                low = np.maximum(place - margin, 0)
                one[tuple(slice(*ends) for ends in zip(low, place + margin, strict=True))] = self._pad
            scores.extend(_scores(model, covered)[:, int(label.item())])
        whole = float(_scores(model, image)[0, int(label.item())])
        self._held = whole - np.squeeze(np.reshape(scores, shape))

    def eval(self) -> Array:
        """The fall of the score at each place: an array of the box's shape without its axes of length 1."""
        found: Array = self._last()
        return found

    def _places(self, shape: Array) -> tuple[Array, Array]:
        """The first and the last place of each axis."""
        if self._box is None:
            return np.zeros_like(shape), shape - 1
        box = np.array(self._box)
        if box.shape != (2 * len(shape),):
            raise InvalidValueError(
                f"b_box must hold {2 * len(shape)} numbers, two for each axis, got {self._box}"
            )
        first = np.maximum(box[::2], 0)
        last = np.where(box[1::2] < 0, shape - 1, box[1::2])
        if (last >= shape).any() or (first > last).any():
            raise InvalidValueError(
                f"b_box must be minima and maxima within the image {tuple(shape)}, minima first, got "
                f"{self._box}"
            )
        return first, last


def _scores(model: Any, images: Array) -> Array:
    if framework_of(model).name == "torch":
        # Imported here, as models of other frameworks need no torch.
        from distsummary.model.torch_steps import outputs_of

        return array_of("OcclusionSensitivity", outputs_of(model, images))
    return array_of("OcclusionSensitivity", model(images))

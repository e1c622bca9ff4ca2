"""Makes the planes that a user requests from checkpoints, with labels that make the planes' tags unique."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeAlias

from distsummary.base.guard import guarded_log
from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import CurvatureSource
from distsummary.landscapes.directions import CORNERS
from distsummary.landscapes.directions.checkpoint_sources import CheckpointSource
from distsummary.landscapes.directions.finite_weights import refuse_not_finite
from distsummary.landscapes.directions.hessian import (
    Eigenpairs,
    Hessian,
    angles,
    curvature_pairs,
    flat_size,
    lanczos,
    mean_product,
)
from distsummary.landscapes.directions.parameters import Moving
from distsummary.landscapes.directions.planes import (
    Prepared,
    Settings,
    prepare_eigenvectors,
    prepare_given,
    prepare_joint,
    prepare_line,
    prepare_pca,
    prepare_random,
    prepare_triangle,
)
from distsummary.landscapes.directions.recipe import Array, Directions, Weights

Direction: TypeAlias = str | Directions  # one of DIRECTIONS, or the user's own directions
OpenHessian: TypeAlias = Callable[..., AbstractContextManager[Hessian]]  # called with names= and centre=
# (state, names of the varied parameters, seed) -> the two largest eigenpairs of the Hessian at the state.
FindEigenpairs: TypeAlias = Callable[[Weights, Sequence[str], int], Eigenpairs]

LONGEST = 40  # characters of the names in a label; limited, since tags become file names
AND = "-and-"
_DIGEST = 3  # bytes
_log = guarded_log(__name__)


class Checkpoints:
    """The states of a source, each loaded once; raises for a state that does not fit the model."""

    def __init__(self, source: CheckpointSource, moving: Moving) -> None:
        self._source, self._moving = source, moving
        self._loaded: dict[int | None, Weights] = {}

    def __getitem__(self, number: int | None) -> Weights:
        if number not in self._loaded:
            self._loaded[number] = self._moving.check(self._label(number), self._source.load(number))
        return self._loaded[number]

    def centre(self, number: int | None, *, reads_statistics: bool) -> Weights:
        """The state at the centre of a plane; raises LandscapeError for values that are not finite."""
        state, moving = self[number], self._moving
        refuse_not_finite(
            self._label(number), state, moving.own, moving.names, reads_statistics=reads_statistics
        )
        return state

    def _label(self, number: int | None) -> str:
        label = self._source.label
        return label if number is None else f"checkpoint {number} of {label}"


def prepare(
    source: CheckpointSource,
    moving: Moving,
    request: Sequence[Direction],
    settings: Settings,
    find_eigenpairs: FindEigenpairs,
    curvature: CurvatureSource | None = None,
) -> dict[str, Prepared]:
    """The planes of one run, as a dict with the same keys as the result of `landscape`.

    `curvature`: the optimizer for the direction of this name.
    """
    states = Checkpoints(source, moving)
    for corners_of, count in CORNERS.items():
        if corners_of in request:
            # Too few checkpoints raise an error here, before other planes take time.
            _of_path(source, count)
    # The Hessian is computed in eval mode, which uses running statistics.
    reads_statistics = settings.reads_statistics or "hessian" in request
    found: list[tuple[str, Prepared]] = []
    eigenvectors: dict[str, Array] = {}  # of the Hessian and of curvature
    for direction in request:
        if direction == "pca":
            for interval in source.intervals:
                states.centre(interval[-1], reads_statistics=reads_statistics)
            intervals = list(dict.fromkeys(source.intervals))
            for numbers in intervals:
                key = "pca" if len(intervals) == 1 else f"pca[{numbers[0]}, {numbers[-1]}]"
                path = [states[number] for number in numbers]
                found.append((key, prepare_pca(path, numbers, moving.names, settings)))
            continue
        # In MindSpore's mode, a random plane is centred on the end of the last path. So are given directions,
        # since they replay a random plane of MindSpore.
        is_random = direction == "random" or isinstance(direction, Directions)
        last = source.end_of_paths if settings.mode == "mindspore" and is_random else source.last
        centre = states.centre(last, reads_statistics=reads_statistics)
        if isinstance(direction, Directions):
            given = Directions(
                x=moving.named("the x direction", direction.x), y=moving.named("the y direction", direction.y)
            )
            plane = prepare_given(centre, last, moving.names, settings, given)
        elif direction == "line":
            ends = _of_path(source, 2)
            plane = prepare_line(states[ends[0]], states[ends[1]], ends, moving.names, settings)
        elif direction == "triangle":
            corners = _of_path(source, 3)
            labelled = {f"{source.unit} {number}": states[number] for number in corners}
            plane = prepare_triangle(labelled, corners, moving.names, settings)
        elif direction in ("hessian", "curvature"):
            if direction == "hessian":
                pairs = find_eigenpairs(centre, moving.names, settings.seed)
            else:
                # This direction without an optimizer has been refused, see `request`.
                assert curvature is not None
                pairs = curvature_pairs(curvature, centre, moving.names)
            eigenvectors[direction] = pairs.vectors
            plane = prepare_eigenvectors(direction, centre, last, moving.names, settings, pairs)
        else:
            plane = prepare_random(centre, last, moving.names, settings)
        found.append(("given" if isinstance(direction, Directions) else direction, plane))
    if len(eigenvectors) == 2:
        between = angles(*eigenvectors.values())
        found = [
            (key, replace(one, known={**one.known, "hessian_angles": between}) if key == "curvature" else one)
            for key, one in found
        ]
    return _named(found, moving, settings)


def _named(found: Sequence[tuple[str, Prepared]], moving: Moving, settings: Settings) -> dict[str, Prepared]:
    """The planes under unique keys (the second "given" gets "given[2]"), with labels for unique tags."""
    named: dict[str, Prepared] = {}
    counts = Counter[str]()
    # No seed reproduces MindSpore's random planes. To replay one, users give its directions; the plane then
    # has the tag of a random one.
    is_replay = settings.mode == "mindspore" and all(key != "random" for key, _ in found)
    for key, prepared in found:
        counts[key] += 1
        kind = prepared.known["kind"]
        words = label(
            is_given=kind == "given" and not is_replay,
            twin=counts[key],
            parameters=settings.parameters,
            seed=settings.seed if kind == "random" else 0,
        )
        axes = moving.filter_axes if prepared.known["normalization"] == "filter" else {}
        known = {**prepared.known, "filter_axis": axes, "label": words}
        unique = key if counts[key] == 1 else f"{key}[{counts[key]}]"
        named[unique] = replace(prepared, known=known, precisions=moving.precisions)
    return named


def prepare_runs(
    sources: Sequence[CheckpointSource], moving: Moving, request: Sequence[Direction], settings: Settings
) -> dict[str, Prepared]:
    """The planes through several runs, as a dict with the same keys as the result of `landscape`.

    "pca" uses all checkpoints of all runs; "line" and "triangle" use the last checkpoint of each run.
    """
    states = {source.label: Checkpoints(source, moving) for source in sources}
    ends = {source.label: states[source.label][source.last] for source in sources}
    states[sources[-1].label].centre(sources[-1].last, reads_statistics=settings.reads_statistics)
    # A single checkpoint has no number; 0 stands for it.
    last = [0 if source.last is None else source.last for source in sources]
    found: list[tuple[str, Prepared]] = []
    for direction in request:
        if direction == "pca":
            runs = {s.label: [states[s.label][number] for number in s.points] for s in sources}
            numbers = [0 if number is None else number for s in sources for number in s.points]
            found.append(("pca", prepare_joint(runs, numbers, moving.names, settings)))
            continue
        if direction == "line":
            start, end = ends.values()
            plane = prepare_line(start, end, last, moving.names, settings, list(ends))
            found.append(("line", plane))
        else:
            found.append(("triangle", prepare_triangle(ends, last, moving.names, settings)))
    return _named(found, moving, settings)


def _of_path(source: CheckpointSource, count: int) -> list[int]:
    """The first and the last checkpoint of a run; with a `count` of three also the middle one."""
    numbers = source.numbers
    if len(numbers) < count:
        raise InvalidValueError(
            f"a {'line' if count == 2 else 'triangle'} needs {count} checkpoints, got {len(numbers)}; "
            "save more, or give several runs= or checkpoint files"
        )
    middle = [numbers[len(numbers) // 2]] if count == 3 else []
    return [numbers[0], *middle, numbers[-1]]


def find_eigenpairs(open_hessian: OpenHessian, state: Weights, names: Sequence[str], seed: int) -> Eigenpairs:
    """The two algebraically largest eigenpairs of the Hessian of the mean loss at `state`.

    Raises LandscapeError if the Hessian cannot be computed.
    """
    size = flat_size(state, names)
    if size < 2:
        raise InvalidValueError(
            f"directions='hessian' needs varied parameters with at least two elements, got {size}; use "
            "'line' between two checkpoints"
        )
    with open_hessian(names=names, centre=state) as hessian:
        pairs = lanczos(mean_product(hessian), size, seed=seed)
    if not pairs.has_converged:
        _log.warning(
            "the Hessian's eigenvectors have not converged after %d products: the eigenvalues %s may be off "
            "by %s",
            pairs.products, pairs.values.tolist(), pairs.residuals.tolist(),
        )  # fmt: skip
    if not any(pairs.values.tolist()):
        _log.warning("the loss has no curvature at the centre (eigenvalues 0), so its plane is arbitrary")
    return pairs


def label(*, is_given: bool = False, twin: int = 1, parameters: Sequence[str] = (), seed: int = 0) -> str:
    """The label of a landscape: empty for the first of its kind if all parameters vary and the seed is 0.

    `is_given`: whether the directions are the user's own and do not replay a random plane. `twin` counts,
    from 1, the landscapes of one call that have the same kind and the same first and last checkpoint.
    """
    words = [
        "given" if is_given else "",
        f"no{twin}" if twin > 1 else "",
        f"only_{readable(parameters)}" if parameters else "",
        f"seed{seed}" if seed else "",
    ]
    return "_".join(word for word in words if word)


def readable(texts: Sequence[str]) -> str:
    """The texts, joined, with only characters that suit file names; a hash is added if the texts changed."""
    plain = AND.join(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") for text in texts)[:LONGEST]
    if plain.split(AND) == list(texts):
        return plain
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=_DIGEST).hexdigest()
    return f"{plain}-{digest}" if plain else digest

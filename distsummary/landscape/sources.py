"""Where a landscape's checkpoints come from, and the planes through them."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from distsummary.checkpoints.landscape_spec import MIN_INTERVAL
from distsummary.checkpoints.metadata import METADATA
from distsummary.checkpoints.trajectory import Trajectory, read
from distsummary.checks import check_type
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions import Directions, Weights, check_fit, mindspore_moves
from distsummary.landscape.engines import batch_rows
from distsummary.landscape.planes import Prepared, Settings, prepare_pca, prepare_random
from distsummary.run_dir import RunDir

Around: TypeAlias = RunDir | str | os.PathLike[str] | Trajectory | None
Direction: TypeAlias = str | Directions  # "pca" or "random"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The checkpoints to draw around: `load(number)` gives parameters and buffers by name.

    `intervals` are the paths, `last` is the number to draw random planes around, None for the model as it is.
    """

    intervals: tuple[tuple[int, ...], ...]
    last: int | None
    load: Callable[[int | None], Weights]
    unit: str
    step_per_epoch: int
    num_samples: int | None


def open_source(model: Any, around: Around, unit: str | None, step_per_epoch: int | None) -> Source:
    """The checkpoints `around` names; None: the model's values as the only one.

    Raises MissingFileError and DamagedFileError for a trajectory that cannot be read.
    """
    if around is None:
        state = framework_of(model).state(model)
        return Source(
            intervals=(),
            last=None,
            load=lambda _: state,
            unit=unit or "step",
            step_per_epoch=step_per_epoch or 1,
            num_samples=None,
        )
    trajectory = around if isinstance(around, Trajectory) else read(_ckpt_dir(around))
    intervals = saved_intervals(trajectory.intervals, trajectory.numbers)
    return Source(
        intervals=intervals,
        last=intervals[-1][-1],
        load=lambda number: trajectory.load(trajectory.numbers[-1] if number is None else number),
        unit=unit or trajectory.unit,
        step_per_epoch=trajectory.step_per_epoch if step_per_epoch is None else step_per_epoch,
        num_samples=trajectory.spec.num_samples,
    )


def _ckpt_dir(around: RunDir | str | os.PathLike[str]) -> Path:
    if isinstance(around, RunDir):
        return around.ckpt_dir
    check_type("around", around, (str, os.PathLike))
    return Path(around) if (Path(around) / METADATA).is_file() else RunDir(around).ckpt_dir


def saved_intervals(planned: Sequence[Sequence[int]], numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The planned paths with the checkpoints that exist; all that exist if no path has three.

    Raises LandscapeError when there is no checkpoint at all.
    """
    if not numbers:
        raise LandscapeError(
            "the trajectory has no checkpoints yet; train to the first number of its intervals"
        )
    found = []
    for interval in planned:
        saved = tuple(number for number in interval if number in numbers)
        if len(saved) < len(interval):
            _log.warning("of the interval %s only %s were saved", list(interval), list(saved))
        if len(saved) >= MIN_INTERVAL:
            found.append(saved)
    return tuple(found) or (tuple(numbers),)


def prepare(
    model: Any, source: Source, request: Sequence[Direction], settings: Settings
) -> dict[str, Prepared]:
    """The planes asked for, by the keys of `landscape`'s result."""
    loaded: dict[int | None, Weights] = {}

    def state(number: int | None) -> Weights:
        if number not in loaded:
            loaded[number] = source.load(number)
        return loaded[number]

    names = moved_names(model, settings.mode)
    own = framework_of(model).state(model)
    found: dict[str, Prepared] = {}
    for direction in request:
        if direction == "pca":
            for numbers in source.intervals:
                states = [state(number) for number in numbers]
                for number, values in zip(numbers, states, strict=True):
                    check_fit(f"checkpoint {number}", values, own, names)
                key = "pca" if len(source.intervals) == 1 else f"pca[{numbers[0]}, {numbers[-1]}]"
                found[key] = prepare_pca(states, numbers, names, settings)
            continue
        check_fit(f"checkpoint {source.last}", state(source.last), own, names)
        given = direction if isinstance(direction, Directions) else None
        key = "random" if given is None else "given"
        found[key] = prepare_random(state(source.last), source.last, names, settings, given)
    return found


def moved_names(model: Any, mode: str) -> list[str]:
    """The parameters that move: the trainable ones; in mode "mindspore" those it moves, frozen ones too."""
    framework = framework_of(model)
    trainable = [name for name, _ in framework.named_parameters(model)]
    if mode == "standard":
        if not trainable:
            raise LandscapeError("the model has no trainable parameters, so there is no landscape around it")
        return trainable
    names = [name for name in framework.state(model) if mindspore_moves(name)]
    frozen = sorted(set(names) - set(trainable))
    if frozen:
        _log.warning("mode='mindspore' moves frozen parameters as MindSpore does: %s", ", ".join(frozen[:5]))
    if not names:
        raise LandscapeError("no parameter's name has 'weight' or 'bias'; use mode='standard'")
    return names


def mindspore_batches(batches: Sequence[Any], num_samples: int) -> list[Any]:
    """The first num_samples // batch size batches, as MindSpore takes them."""
    count = num_samples // max(1, batch_rows(batches[0]))
    if count < 1:
        raise InvalidValueError(
            f"num_samples must be at least the batch size {batch_rows(batches[0])}, got {num_samples}; "
            "give smaller batches"
        )
    return list(batches[:count])

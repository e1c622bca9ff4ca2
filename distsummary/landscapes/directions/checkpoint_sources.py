"""The checkpoints of a landscape: from runs, trajectories, files, or the model itself."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.checks import check_int
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.landscape_spec import MIN_INTERVAL
from distsummary.checkpoints.metadata import MAX_INT, METADATA
from distsummary.checkpoints.trajectory import SUFFIXES, Trajectory, map_checkpoint, read
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import own_state
from distsummary.landscapes.directions.recipe import SHOWN, Weights
from distsummary.rundir.run_dir import RunDir

# Checkpoints that another library saved, by step or epoch. Each is a file, or a dict of values by name.
Saved: TypeAlias = Mapping[int, str | os.PathLike[str] | Weights]
Around: TypeAlias = str | os.PathLike[str] | Weights | Saved | None
AnyAround: TypeAlias = Around | Trajectory  # only SummaryLandscape passes a Trajectory

PICKLES = (".pt", ".pth", ".bin", ".pkl")
ZIP = b"PK\3\4"  # files of torch.save begin with this, as do Lightning's .ckpt files

_log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """The checkpoints around which a landscape is drawn.

    `label` names the source among several. The number of a checkpoint is its step or epoch, see `unit`.
    `intervals` holds the checkpoint numbers of each path; `numbers`, those of all saved checkpoints,
    ascending; both are empty for a single state. `load(number)` returns parameters and buffers by name;
    files are memory-mapped.
    """

    label: str
    intervals: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    load: Callable[[int | None], Weights]
    unit: str = "step"
    step_per_epoch: int = 1
    num_samples: int | None = None

    @property
    def last(self) -> int | None:
        """The highest checkpoint number, in whatever order the paths are; None if there are no numbers."""
        return self.numbers[-1] if self.numbers else None

    @property
    def end_of_paths(self) -> int | None:
        """The last checkpoint number of the last path: MindSpore centres its random plane there."""
        return self.intervals[-1][-1] if self.intervals else self.last

    @property
    def points(self) -> tuple[int | None, ...]:
        """What to pass to `load` for each checkpoint, in order: its number, or None for a single state."""
        return self.numbers or (None,)


def open_source(
    model: Any, around: AnyAround, unit: str | None = None, step_per_epoch: int | None = None
) -> CheckpointSource:
    """The checkpoints that `around` names; for None, the model's values are the only checkpoint.

    Raises MissingFileError and DamagedFileError for a trajectory or file that cannot be read.
    """
    if is_single(around):
        label, state = _single(model, around)
        return CheckpointSource(
            label=label,
            intervals=(),
            numbers=(),
            load=lambda _: state,
            unit=unit or "step",
            step_per_epoch=step_per_epoch or 1,
        )
    assert around is not None
    if isinstance(around, Mapping):
        return _saved(model, around, unit, step_per_epoch)
    _refuse_files(around)
    trajectory = around if isinstance(around, Trajectory) else read(_ckpt_dir_of(around))
    kept_in = trajectory.ckpt_dir
    return CheckpointSource(
        label=kept_in.parent.name if kept_in.name == "ckpt_dir" else kept_in.name,  # the run's name
        intervals=saved_intervals(trajectory.intervals, trajectory.numbers),
        numbers=trajectory.numbers,
        load=partial(_load, trajectory),
        unit=unit or trajectory.unit,
        step_per_epoch=trajectory.step_per_epoch if step_per_epoch is None else step_per_epoch,
        num_samples=trajectory.spec.num_samples,
    )


def _saved(
    model: Any, path: Mapping[Any, Any], unit: str | None, step_per_epoch: int | None
) -> CheckpointSource:
    """The source for a path through numbered checkpoints; a file is opened when it is needed."""
    what = "a key of around, a step or epoch,"
    path = {check_int(what, n, low=0, high=MAX_INT): checkpoint for n, checkpoint in path.items()}
    for number, checkpoint in path.items():
        if isinstance(checkpoint, str | os.PathLike | Mapping) and is_single(checkpoint):
            continue
        _refuse_files(checkpoint)
        is_path = isinstance(checkpoint, str | os.PathLike)
        # The values would be too long.
        found = repr(checkpoint) if is_path else f"a {type(checkpoint).__name__}"
        error = InvalidValueError if is_path else InvalidTypeError
        raise error(
            f"around[{number}] must be values by name or a file that ends with one of {SUFFIXES}, got "
            f"{found}; give one of these"
        )
    numbers = tuple(sorted(path))
    return CheckpointSource(
        label="path",
        intervals=(numbers,),
        numbers=numbers,
        load=lambda number: _single(model, path[number])[1],
        unit=unit or "step",
        step_per_epoch=step_per_epoch or 1,
    )


def open_runs(model: Any, runs: Sequence[AnyAround]) -> list[CheckpointSource]:
    """One source for each of several runs, with labels that all differ; raises as `open_source` does."""
    sources = [open_source(model, run) for run in runs]
    plain = [source.label for source in sources]
    labels = []
    for run, label in zip(runs, plain, strict=True):
        if plain.count(label) > 1 and isinstance(run, str | os.PathLike) and is_single(run):
            # The label includes the folder, as in checkpoint-500/model.safetensors. Not resolve(): in the
            # cache of Hugging Face's hub all such files are links into one folder.
            label = f"{Path(os.path.abspath(run)).parent.name}/{label}"
        labels.append(label)
    # A numbered label may equal that of another run, such as "best (1)".
    while len(set(labels)) < len(labels):
        labels = [f"{at} ({n})" if labels.count(at) > 1 else at for n, at in enumerate(labels, 1)]
    return [replace(source, label=label) for source, label in zip(sources, labels, strict=True)]


def is_single(around: AnyAround) -> bool:
    """Whether `around` is a single state: None (the model), one file or values by name."""
    if isinstance(around, Mapping):
        return all(isinstance(name, str) for name in around)
    is_path = isinstance(around, str | os.PathLike) and not isinstance(around, RunDir)
    return around is None or (is_path and Path(around).suffix in SUFFIXES)  # type: ignore[arg-type]  # it is a path


def _refuse_files(around: object) -> None:
    """Raise InvalidValueError for a blank name or another file format; unpickling a file may run code."""
    if not isinstance(around, str | os.PathLike):
        return
    if not os.fspath(around).strip():
        raise InvalidValueError(f"around must not be blank, got {around!r}; name a run or a checkpoint file")
    if Path(around).is_dir():
        return
    # The suffix is not enough: checkpoints of Lightning end with .ckpt too, and are files of torch.save.
    is_zip = False
    if Path(around).is_file():
        with open(around, "rb") as file:
            is_zip = file.read(len(ZIP)) == ZIP
    if Path(around).suffix in PICKLES or is_zip:
        raise InvalidValueError(
            f"files of torch.save are not read here, got {os.fspath(around)}; load the file yourself and "
            "give the values by name: around=torch.load(path, weights_only=True) if that is a state_dict, "
            'otherwise its entry under "state_dict"'
        )
    if is_single(around):
        return
    if Path(around).exists():
        raise InvalidValueError(
            f"around must be a run, a ckpt_dir or a checkpoint file that ends with one of {SUFFIXES}, got "
            f"{os.fspath(around)}; name one of these"
        )


def _single(model: Any, around: Any) -> tuple[str, Weights]:
    """The label and the values of a single state (see `is_single`)."""
    if around is None:
        return "model", own_state(model)
    _refuse_files(around)
    if isinstance(around, Mapping):
        if nested := [name for name, value in around.items() if isinstance(value, Mapping)]:
            raise InvalidValueError(
                f"around must be arrays by name, got mappings under {', '.join(map(repr, nested[:SHOWN]))}; "
                'give the one that holds the parameters, such as checkpoint["state_dict"]'
            )
        framework = framework_of(model)
        values = around.items()
        return "state", {
            n: framework.to_numpy(v) if framework.is_tensor(v) else np.asarray(v) for n, v in values
        }
    with _limits_open_files():
        return Path(around).stem, map_checkpoint(Path(around))


def _load(trajectory: Trajectory, number: int | None) -> Weights:
    assert number is not None
    with _limits_open_files():
        return trajectory.open(number)


@contextmanager
def _limits_open_files() -> Iterator[None]:
    """Raise LandscapeError with the remedy if the operating system allows no more open files."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise LandscapeError(
            "the path has more checkpoints than the number of files that this process may have open; raise "
            "that limit (ulimit -n) above the number of checkpoints, choose fewer checkpoints, or use Python "
            "3.13, where their files need not stay open"
        ) from error


def _ckpt_dir_of(around: RunDir | str | os.PathLike[str]) -> Path:
    """The checkpoint directory: `around` itself if it has metadata, otherwise that of the run."""
    if isinstance(around, RunDir):
        return around.ckpt_dir
    if not isinstance(around, str | os.PathLike):
        raise InvalidTypeError(
            "around must be a run, a checkpoint file, values by name or checkpoints by step or epoch, got a "
            f"{type(around).__name__}; for a model, give model.state_dict()"
        )
    return Path(around) if (Path(around) / METADATA).is_file() else RunDir(around).ckpt_dir


def saved_intervals(planned: Sequence[Sequence[int]], numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each planned path with at least 3 saved checkpoints, these; without any, one path through all.

    Raises LandscapeError if there are no checkpoints.
    """
    if not numbers:
        raise LandscapeError(
            "the trajectory has no checkpoints yet; train until the first step or epoch of its intervals"
        )
    found = []
    for interval in planned:
        saved = tuple(number for number in interval if number in numbers)
        if len(saved) < len(interval):
            _log.warning(
                "of the checkpoints in the interval %s, only %s were saved", list(interval), list(saved)
            )
        if len(saved) >= MIN_INTERVAL:
            found.append(saved)
    return tuple(found) or (tuple(numbers),)

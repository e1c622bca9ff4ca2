"""SummaryLandscape draws loss landscapes from a run's checkpoints; its interface is that of MindSpore."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.base.processes import in_ray
from distsummary.checkpoints.landscape_spec import check_collect_landscape
from distsummary.checkpoints.trajectory import Trajectory, read
from distsummary.errors import (
    InvalidTypeError,
    InvalidValueError,
    NotADirectoryPathError,
    RunDirError,
    reason,
)
from distsummary.landscapes.engines.engine import MODES
from distsummary.landscapes.generator import landscape
from distsummary.landscapes.model.data import check_batches, mindspore_batches
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.request import Compute, Plane
from distsummary.rundir.run_dir import RunDir

TUPLE = "model", "loss_fn", "batches", "evaluation"
NAMED = ("model", "loss_fn", "batch_loss", "batches", "evaluation")
_RESULT = (
    "(model, loss_fn, batches), a dict with the keys model, batches, and loss_fn or batch_loss, "
    "or (model, network, valid_dataset, metrics)"
)


class SummaryLandscape:
    """Draws the landscapes that `collect_landscape` requested in the training, or others.

        landscapes = ds.SummaryLandscape("runs/digits")
        landscapes.gen_landscapes_with_multi_process(lambda: (model, loss_fn, batches))
        landscapes.clean_ckpt()

    Args:
        summary_dir: the run dir. Nothing is created in it until landscapes are drawn.
        mode: "standard", or "mindspore" for the same numbers as MindSpore's; see `landscape`.
        seed: the seed of the random directions (MindSpore has none: its landscapes differ between calls).

    Raises InvalidTypeError, InvalidValueError (bad argument), NotADirectoryPathError (summary_dir is a file).
    """

    def __init__(self, summary_dir: str | os.PathLike[str], *, mode: str = "standard", seed: int = 0) -> None:
        self._run_dir = _run_dir("summary_dir", summary_dir)
        check_choice("mode", mode, MODES)
        seed = check_int("seed", seed, low=-(2**63), high=2**63 - 1)
        self._mode, self._seed = mode, seed

    def gen_landscapes_with_multi_process(
        self,
        callback_fn: Callable[[], Any],
        collect_landscape: dict[str, Any] | None = None,
        device_ids: list[int] | None = None,
        output: str | os.PathLike[str] | None = None,
        *,
        resume: bool = True,
        address: str | None = None,
    ) -> dict[str, LossGrid]:
        """Compute the landscapes and write them as events for MindInsight and TensorBoard, .npz and .png.

        A journal file keeps the finished points until the landscapes are complete: after an interruption,
        such as Ctrl-C, the same call continues from them.

        Args:
            callback_fn: a function without arguments that makes the model and the data. It returns
                (model, loss_fn, batches), as `landscape` takes them, or a dict of these by name, in which
                `batch_loss` may take the place of `loss_fn`; or, as for MindSpore,
                (model, network, valid_dataset, metrics): `network` is the torch module or numpy model,
                `valid_dataset` its batches, and `model` a `ds.Model`, the loss function, or an object that
                has it as `loss_fn`. If `model` is the network itself, or None, the loss function is
                metrics["Loss"]. `metrics` is a dict with the key "Loss", or None; no other metric is
                computed.
            collect_landscape: settings that replace the recorded ones for this call only. The keys are those
                of the collector, all optional: landscape_size, unit, num_samples, intervals, create_landscape
                (with both "train" and "result").
            device_ids: different numbers >= 0 (MindSpore allows 0 to 7). There is one worker for each number;
                Ray chooses the devices. None: one worker for each free GPU, or each free core if there are no
                GPUs, in the connected Ray cluster or in a new local one. An empty list: this process computes
                the landscapes, as it also does for one number if it is not connected to Ray.
            output: the run dir to write to, `summary_dir` by default; the loss curve next to the landscapes
                is always that of `summary_dir`.
            resume: True continues a stopped earlier call for the same landscapes; False starts again.
            address: that of the Ray cluster to use, as in `landscape`.

        Returns:
            The grids; the keys are "pca", or "pca[first, last]" for each of several intervals, and "random".

        Raises:
            InvalidTypeError, InvalidValueError: bad arguments, a step or epoch without a saved checkpoint, or
                a result of callback_fn in none of the forms above.
            MissingFileError: summary_dir has no trajectory, or a checkpoint file is gone.
            DamagedFileError: a file of the trajectory has damaged or unexpected content.
            LandscapeError: the checkpoints span no plane, or a worker failed.
            LandscapeCancelled: an interrupt (Ctrl-C) stopped the call, as in `landscape`.
        """
        if not callable(callback_fn):
            raise InvalidTypeError(
                f"callback_fn must be a function without arguments that returns {_RESULT}, "
                # Only the type is shown, since the repr could hold all the data.
                f"got a {type(callback_fn).__name__}"
            )
        check_overrides(collect_landscape)
        check_device_ids(device_ids)
        target = self._run_dir if output is None else _run_dir("output", output)
        trajectory = choose(read(self._run_dir.ckpt_dir), collect_landscape)
        spec = trajectory.spec
        directions = ["pca"] if spec.create_train and spec.intervals else []  # a plane for each interval
        directions += ["random"] if spec.create_result else []  # around the last checkpoint
        if not directions:
            return {}
        parts = parts_of(callback_fn())
        batches = mindspore_batches(check_batches(parts["batches"]), trajectory.spec.num_samples)
        # The type is Any, because the public type of around has no Trajectory.
        around: Any = trajectory
        is_connected = in_ray() or address is not None
        return landscape(
            **(parts | {"batches": batches}),
            around=around,
            directions=directions,
            plane=Plane(size=trajectory.spec.landscape_size, seed=self._seed, unit=trajectory.spec.unit),
            mode=self._mode,
            compute=Compute(workers=count_workers(device_ids, is_connected=is_connected), address=address),
            run_dir=target,
            resume=resume,
        )

    def clean_ckpt(self) -> None:
        """Remove all checkpoints (`ckpt_dir`), also those of superseded attempts.

        Landscapes already drawn are kept. Raises RunDirError if the directory cannot be removed.
        """
        try:
            shutil.rmtree(self._run_dir.ckpt_dir)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunDirError(
                f"{self._run_dir.ckpt_dir} cannot be removed: {reason(error)}, or remove it by hand"
            ) from error


def count_workers(device_ids: list[int] | None, *, is_connected: bool) -> int | str:
    """The number of workers: 0 for this process alone, "ray" for as many as fit into the free resources."""
    if device_ids is None:
        return "ray"
    return len(device_ids) if len(device_ids) > 1 or (device_ids and is_connected) else 0


def check_device_ids(device_ids: object) -> None:
    """Raise unless `device_ids` is None or a list of different ints >= 0."""
    check_type("device_ids", device_ids, list, optional=True)
    if not isinstance(device_ids, list):
        return
    for index, number in enumerate(device_ids):
        check_int(f"device_ids[{index}]", number, low=0)
    if len(set(device_ids)) < len(device_ids):
        raise InvalidValueError(
            f"device_ids must name each device once, got {device_ids}; each stands for one worker"
        )


def check_overrides(given: object) -> None:
    """Raise unless `given` is None or a `collect_landscape` in which every key may be missing.

    Two checks are stricter than the collector's: `create_landscape` must have both keys, as in MindSpore, and
    `num_samples` must be >= 1, because this call uses it.
    """
    check_type("collect_landscape", given, dict, optional=True)
    if not isinstance(given, dict) or not given:
        return
    check_collect_landscape({"intervals": [], **given})
    check_int("collect_landscape['num_samples']", given.get("num_samples", 1), low=1)
    create = given.get("create_landscape", {})
    if len(create) == 1:
        raise InvalidValueError(
            "collect_landscape['create_landscape'] must have both keys, 'train' and 'result', got "
            f"{create!r}; leave it out to draw what the training asked for"
        )


def choose(trajectory: Trajectory, given: Mapping[str, Any] | None) -> Trajectory:
    """The trajectory with the options in `given` (checked) instead of the recorded ones.

    If `given` has intervals, the trajectory keeps only their checkpoints and ends at the last of these;
    InvalidValueError is raised if one was not saved. Checkpoints that the recorded intervals ask for but that
    were not saved (a training may end early), raise no error here: `landscape` logs them and omits them.
    """
    recorded = trajectory.spec
    merged = {
        "landscape_size": recorded.landscape_size,
        "unit": recorded.unit,
        "num_samples": recorded.num_samples,
        "intervals": [list(interval) for interval in recorded.intervals],
        **(given or {}),
    }
    if not merged.get("create_landscape"):
        merged["create_landscape"] = {"train": recorded.create_train, "result": recorded.create_result}
    spec = check_collect_landscape(merged)
    # Only for empty settings there is no spec, and `merged` is never empty.
    assert spec is not None
    missing = sorted(set(spec.numbers) - set(trajectory.numbers))
    if given and "intervals" in given and missing:
        raise InvalidValueError(
            f"collect_landscape['intervals'] has {trajectory.unit}s that were not saved: {missing}; "
            f"saved are {list(trajectory.numbers)}"
        )
    kept = spec.numbers if given and spec.numbers and "intervals" in given else tuple(trajectory.files)
    return replace(trajectory, spec=spec, files={number: trajectory.files[number] for number in kept})


def named_parts(parts: object) -> dict[str, Any] | None:
    """A factory's result `parts` as a dict of arguments of `landscape`; None if it has another form."""
    if isinstance(parts, dict):
        has_loss = "loss_fn" in parts or "batch_loss" in parts
        is_known = set(parts) <= set(NAMED) and {"model", "batches"} <= set(parts)
        return dict(parts) if has_loss and is_known else None
    if isinstance(parts, tuple | list) and len(parts) in (3, 4):
        return dict(zip(TUPLE, parts, strict=False))
    return None


def parts_of(result: object) -> dict[str, Any]:
    """The arguments of `landscape`, by name, from the result of callback_fn; raises for an unknown form."""
    parts = named_parts(result)
    if parts is None:
        size = f" of {len(result)}" if isinstance(result, tuple | list) else ""
        raise InvalidTypeError(f"callback_fn must return {_RESULT}, got a {type(result).__name__}{size}")
    if not isinstance(result, tuple | list) or len(result) == 3:
        return parts
    # MindSpore's form: without a separate model the loss is in metrics, otherwise the model has it.
    model, network, batches, metrics = result
    check_type("metrics (the fourth value of callback_fn)", metrics, dict, optional=True)
    if metrics is not None and "Loss" not in metrics:
        raise InvalidValueError(
            f"metrics (the fourth value of callback_fn) must have the key 'Loss', got {list(metrics)}; "
            "return None if the model has the loss"
        )
    if model is None or model is network:
        found, place = (metrics or {}).get("Loss"), "metrics['Loss']"
    elif getattr(model, "loss_fn", model) is None and callable(getattr(model, "batch_loss", None)):
        # A ds.Model with a batch_loss in place of a loss_fn.
        return {"model": network, "batch_loss": model.batch_loss, "batches": batches}
    else:
        found, place = getattr(model, "loss_fn", model), "the model (the first value of callback_fn)"
    if not callable(found):
        raise InvalidTypeError(
            f"{place} must be a loss function, got {found!r}; give a function of (network(inputs), targets), "
            "or return (model, loss_fn, batches)"
        )
    return {"model": network, "loss_fn": found, "batches": batches}


def _run_dir(field: str, path: object) -> RunDir:
    """The run dir that an argument gives; `field` is the argument's name in errors."""
    if isinstance(path, RunDir):
        return path
    check_type(field, path, (str, os.PathLike))
    assert isinstance(path, str | os.PathLike)
    if not os.fspath(path).strip():
        raise InvalidValueError(f"{field} must not be blank, got {path!r}; name a directory")
    run_dir = RunDir(path)
    if run_dir.base.exists() and not run_dir.base.is_dir():
        raise NotADirectoryPathError(
            f"{field} must be a directory, but {run_dir.base} is a file; name another"
        )
    return run_dir

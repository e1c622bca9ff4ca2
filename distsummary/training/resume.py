"""resume: brings a training to where a checkpoint was saved: model, optimizer, random numbers, data."""

import os
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_type
from distsummary.base.guard import guarded_log
from distsummary.checkpoints import dcp
from distsummary.checkpoints.encryption import GCM, check_key
from distsummary.checkpoints.load import load_param_into_net, parameters_of
from distsummary.checkpoints.model_file import read_model, saved_in
from distsummary.checkpoints.training_state import (
    MODULES,
    OPTIMIZER,
    STATES,
    holds_state,
    named_state,
    saved_states,
    training_state,
)
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.rundir.topology import detect
from distsummary.training.resumed import Resumed

logger = guarded_log(__name__)


def resume(
    checkpoint: str | os.PathLike[str],
    network: Any = None,
    optimizer: Any = None,
    *,
    dec_key: bytes | None = None,
    dec_mode: str = GCM,
    **states: Any,
) -> Resumed:
    """Load a checkpoint into a network, an optimizer and other objects, and return where its training stood.

        resumed = ds.resume("checkpoints", model, optimizer, scheduler=scheduler)
        run = ds.init("runs/mine", watch=model, optimizer=optimizer, resume=resumed)
        for epoch in run.epochs(10):
            for x, y in run.steps(resumed.rest_of(loader) if epoch == resumed.epoch else loader):
                ...

    On a CPU the resumed training computes what the uninterrupted one does, bit for bit. Each rank calls it,
    after the objects are made, and gets the random number generators of its number.

    Args:
        checkpoint: a checkpoint, or a directory: then its newest complete one; see `load_checkpoint`. If an
            existing directory holds none, the log says so, and the training begins at its first step, so that
            a script can always resume.
        network, optimizer: what `load_param_into_net` takes; None: not loaded.
        dec_key, dec_mode: of an encrypted checkpoint.
        states: objects with `load_state_dict`, by the names that append_info gave them.

    Raises the errors of `load_checkpoint` and `load_param_into_net`; InvalidTypeError for an object without
    load_state_dict, InvalidValueError for a name that was not saved.
    """
    check_type("checkpoint", checkpoint, (str, os.PathLike))
    check_key("dec_key", dec_key, "dec_mode", dec_mode)
    for name, value in states.items():
        if not callable(getattr(value, "load_state_dict", None)):
            raise InvalidTypeError(
                f"{name} must have load_state_dict, as a scheduler or GradScaler has, got "
                f"{type(value).__name__}"
            )
    path = Path(checkpoint)
    # In a directory, the newest complete checkpoint is meant; a .dcp is itself a checkpoint.
    if path.is_dir() and path.suffix != dcp.SUFFIX:
        complete = [one for one in saved_in(path) if one.is_complete()]
        if not complete:
            logger.warning("%s holds no complete checkpoint yet: the training begins at its first step", path)
            return Resumed(epoch=0, step=0)
        path = complete[-1].path
    stored = read_model(path, key=dec_key, mode=dec_mode)
    saved = saved_states(stored)
    # A wrong name is refused before anything is loaded, so that no object is left half resumed.
    for name in states:
        if name not in saved:
            raise InvalidValueError(
                f"{path} holds no state {name!r}, only {saved}; give the object to append_info= when saving"
            )
    parameters = parameters_of(stored, stored)
    rest = named_state(OPTIMIZER, stored) if holds_state(OPTIMIZER, stored) else {}
    if optimizer is not None and rest:
        _refuse_other_optimizer(path, rest, optimizer, network)
    if network is not None:
        load_param_into_net(network, parameters)
        own = named_state(MODULES, stored) if holds_state(MODULES, stored) else {}
        framework_of(network).load_own_states(network, own)
        if missing := framework_of(network).own_states(network).keys() - own.keys():
            logger.warning("%s does not hold the own state of the modules %s", path, sorted(missing))
    if optimizer is not None and rest:
        framework_of(optimizer).load_optimizer(optimizer, parameters, rest["odd"])
    elif optimizer is not None:
        load_param_into_net(optimizer, parameters)
    for name, value in states.items():
        value.load_state_dict(named_state(STATES + name, stored))
    # Where the training stood is in rank 0's state; the random numbers are those of this rank.
    rank = detect().rank
    first = training_state(path, stored, 0, key=dec_key, mode=dec_mode)
    own = first if not rank else training_state(path, stored, rank, key=dec_key, mode=dec_mode)
    # A checkpoint without the state of a training may still have the numbers of its step and epoch.
    if first is None:
        step, epoch = (
            int(parameters[name]) if name in parameters else 0 for name in ("step_num", "epoch_num")
        )
        logger.warning(
            "%s does not say where in its epoch the training stood: it continues with epoch %d, and with "
            "other random numbers",
            path,
            epoch + 1,
        )
        return Resumed(epoch=epoch, step=step)
    if own is not None and own["step"] != first["step"]:
        # A rank that saved at another step had other random numbers than those of this checkpoint.
        own = None
    if own is None:
        logger.warning("%s holds no random numbers of rank %d: it continues with others", path, rank)
    resumed = Resumed(
        epoch=first["epoch"],
        step=first["step"],
        step_in_epoch=first["step_in_epoch"],
        loss_scale=first["loss_scale"],
        _now=None if own is None else own["random"],
        _at_epoch=None if own is None else own["random_at_epoch"],
    )
    resumed.begin()
    return resumed


def _refuse_other_optimizer(path: Path, saved: dict[str, Any], optimizer: Any, network: Any) -> None:
    """Raise InvalidValueError for an optimizer to which the saved state does not belong.

    More parameters than were saved may follow at the end; they begin without state.
    """
    now = framework_of(optimizer).optimizer_rest(optimizer)
    remedy = "make the optimizer as in the training that saved it, or resume without optimizer="
    if now.get("class") != saved["class"]:
        raise InvalidValueError(
            f"{path} holds the state of an optimizer {saved['class']}, got {type(optimizer).__name__}; "
            f"{remedy}"
        )
    known = {} if network is None else {id(t): name for name, t in framework_of(network).tensors(network)}
    names = [known.get(id(one)) for group in optimizer.param_groups for one in group["params"]]
    for place, (name, shape) in enumerate(zip(saved["names"], saved["shapes"], strict=True)):
        if place >= len(names):
            raise InvalidValueError(
                f"{path} holds the state of an optimizer of {len(saved['names'])} parameters, got one of "
                f"{len(names)}; {remedy}"
            )
        other, size = names[place], now["shapes"][place]
        if (name is not None and other is not None and name != other) or (size and size != shape):
            raise InvalidValueError(
                f"{path} holds the state of an optimizer whose parameter {place} is {name!r} of shape "
                f"{tuple(shape)}, got {other or 'one'!r} of shape {tuple(size)}; {remedy}"
            )

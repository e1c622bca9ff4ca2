"""load_checkpoint and load_param_into_net: a checkpoint by name, and back into a model or an optimizer."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.base.checks import check_type
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.encryption import GCM, check_key
from distsummary.checkpoints.mapped import Array, StoredState, text_in
from distsummary.checkpoints.model_file import TEXT, TRAINING, read_model
from distsummary.checkpoints.sharded import ShardedState
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of

logger = guarded_log(__name__)


def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str],
    net: Any = None,
    strict_load: bool = False,
    filter_prefix: str | Sequence[str] | None = None,
    dec_key: bytes | None = None,
    dec_mode: str = GCM,
    specify_prefix: str | Sequence[str] | None = None,
    choice_func: Callable[[str], bool] | None = None,
) -> Mapping[str, Any]:
    """The content of a checkpoint by name: NumPy arrays, and the texts of append_info as str.

    In addition to parameters and buffers, it holds `epoch_num` and `step_num` (0-d int64) and, if the
    training had an optimizer, `optimizer/...`; `load_param_into_net` takes them all.

        parameters = ds.load_checkpoint("checkpoints/CKP-3_100.safetensors")
        ds.load_param_into_net(model, parameters)
        ds.load_param_into_net(optimizer, parameters)
        ds.init("runs/more", initial_step=int(parameters["step_num"]), ...)

    Args:
        ckpt_file_name: a .safetensors or .ckpt file (also one that MindSpore wrote), the file of any rank of
            a checkpoint in shards, or a directory: then its newest complete checkpoint.
        net: a model to load into, as by `load_param_into_net`.
        strict_load: see `load_param_into_net`.
        filter_prefix: leave out the names that begin so: a str, or a list or tuple of them.
        dec_key, dec_mode: of an encrypted file, the key and the mode: "AES-GCM" or "AES-CBC".
        specify_prefix: take only the names that begin so.
        choice_func: says for a name whether to take it; not used together with a prefix.

    Returns:
        A dict; of a checkpoint in shards a mapping that reads an array from the files when it is accessed.

    Raises:
        InvalidTypeError, InvalidValueError: bad arguments, no name is left, or the values do not fit `net`.
        MissingFileError: a file does not exist. DamagedFileError: a file is damaged, or the key is wrong.
        MissingExtraError: cryptography is not installed.
    """
    check_type("ckpt_file_name", ckpt_file_name, (str, os.PathLike))
    check_type("strict_load", strict_load, bool)
    left_out, taken = _prefixes("filter_prefix", filter_prefix), _prefixes("specify_prefix", specify_prefix)
    check_key("dec_key", dec_key, "dec_mode", dec_mode)
    if choice_func is not None and not callable(choice_func):
        raise InvalidTypeError(f"choice_func must be callable, got {type(choice_func).__name__}")
    stored = read_model(Path(ckpt_file_name), key=dec_key, mode=dec_mode)

    def is_chosen(name: str) -> bool:
        if left_out or taken:
            return not name.startswith(left_out) and (not taken or name.startswith(taken))
        return choice_func is None or choice_func(name)

    names = [name for name in stored if is_chosen(name.removeprefix(TEXT))]
    if not names:
        raise InvalidValueError(
            f"filter_prefix, specify_prefix or choice_func leave nothing of {os.fspath(ckpt_file_name)}, "
            f"which holds {', '.join(list(stored)[:5])} ..."
        )
    parameters = parameters_of(stored, names)
    if net is not None:
        load_param_into_net(net, parameters, strict_load)
    return parameters


def parameters_of(stored: StoredState, names: Iterable[str]) -> Mapping[str, Any]:
    """What `load_checkpoint` returns of an open checkpoint, without the entries for `resume`."""
    chosen = stored.selected({n: n for n in names if not n.removeprefix(TEXT).startswith(TRAINING)})
    return chosen if isinstance(chosen, ShardedState) else _owned(chosen)


def load_param_into_net(
    net: Any, parameter_dict: Mapping[str, Any], strict_load: bool = False
) -> tuple[list[str], list[str]]:
    """Write the values of a checkpoint into a model, or the `optimizer/...` of it into an optimizer.

    Of a sharded model, each rank takes its slices of the whole arrays: it need not have as many ranks as the
    training that saved them.

    Args:
        net: a torch.nn.Module (also in DDP, FSDP2 or torch.compile), or a torch.optim.Optimizer.
        parameter_dict: from `load_checkpoint`; or arrays or tensors by name.
        strict_load: the dtypes must be equal. Otherwise a value is converted to the dtype of the model if
            both are of one kind (float32 to bfloat16), and if names of the model are missing, those that
            have a common prefix in parameter_dict (`network.fc.weight` for `fc.weight`) are taken.

    Returns:
        The names in `net` that were not loaded, and the names in `parameter_dict` that were not used.

    Raises:
        InvalidTypeError: `net` or parameter_dict is of another type.
        InvalidValueError: a value has another shape or kind than in the model, which is then not changed.
    """
    check_type("parameter_dict", parameter_dict, Mapping)
    check_type("strict_load", strict_load, bool)
    for name in parameter_dict:
        check_type("a name in parameter_dict", name, str)
    framework = framework_of(net)
    # An optimizer is recognised by its groups of parameters.
    if hasattr(net, "param_groups"):
        unused = framework.load_optimizer(net, parameter_dict)
        return [], [name for name in unused if not name.startswith(TEXT)]
    try:
        targets = dict(framework.tensors(net))
    except InvalidTypeError as error:
        raise InvalidTypeError(f"net: {error}") from None
    source = {name: name for name in targets if name in parameter_dict}
    if not strict_load:
        source |= _by_common_prefix([name for name in targets if name not in source], parameter_dict, source)
    # All values are checked before the first is written: the model is changed as a whole or not at all.
    faults = []
    for name, key in source.items():
        given_shape, given_dtype = _spec(parameter_dict, key)
        here, shard = framework.array_spec(targets[name]), framework.shard(targets[name])
        shape, dtype = here.shape if shard is None else shard.global_shape, here.dtype
        if given_shape != shape:
            faults.append(f"{name} has the shape {given_shape} instead of {shape}")
        elif (given_dtype != dtype) if strict_load else not np.can_cast(given_dtype, dtype, "same_kind"):
            faults.append(f"{name} has the dtype {given_dtype} instead of {dtype}")
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise InvalidValueError(
            f"the checkpoint does not fit the model: {'; '.join(faults[:5])}{more}; load the checkpoint of "
            "the same model"
        )
    for name, key in source.items():
        framework.write(targets[name], _array(parameter_dict, key))
    not_loaded = [name for name in targets if name not in source]
    if not_loaded:
        logger.warning(
            "%d of %d parameters and buffers are not in the checkpoint and keep their values: %s",
            len(not_loaded),
            len(targets),
            ", ".join(not_loaded[:5]),
        )
    used = set(source.values())
    return not_loaded, [name for name in parameter_dict if name not in used and not name.startswith(TEXT)]


def _prefixes(field: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    check_type(field, given, (str, list, tuple))
    prefixes = (given,) if isinstance(given, str) else tuple(given)
    for prefix in prefixes:
        check_type(f"an element of {field}", prefix, str)
        if not prefix:
            raise InvalidValueError(f"{field} must not be empty: every name begins so; leave it out")
    return prefixes


def _owned(stored: StoredState) -> dict[str, Any]:
    """All arrays as writable copies; texts as str."""
    parameters: dict[str, Any] = {}
    for name, value in stored.own().items():
        if name.startswith(TEXT):
            parameters[name.removeprefix(TEXT)] = text_in(value)
        else:
            parameters[name] = str(value) if value.dtype.kind == "U" else value
    return parameters


def _by_common_prefix(
    missing: list[str], given: Mapping[str, Any], used: Mapping[str, str]
) -> dict[str, str]:
    """For missing names their names in the checkpoint, which differ by one prefix for all of them."""
    if not missing:
        return {}
    # Each prefix that fits the first missing name is tried; the one that fits the most names is taken.
    free = [key for key in given if key not in used]
    prefixes = {key[: -len(missing[0])] for key in free if key.endswith("." + missing[0])}
    found = [
        {name: prefix + name for name in missing if prefix + name in given} for prefix in sorted(prefixes)
    ]
    return max(found, key=len, default={})


def _array(given: Mapping[str, Any], key: str) -> Array:
    value = given[key]
    framework = framework_of(value)
    return framework.to_numpy(value) if framework.name != "numpy" else np.asarray(value)


def _spec(given: Mapping[str, Any], key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if isinstance(given, StoredState):
        # An empty part shows the dtype without reading the array.
        return given.shape(key), given.part(key, 0, 0).dtype
    array = _array(given, key)
    return array.shape, array.dtype

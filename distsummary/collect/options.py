"""Checks the arguments of SummaryCollector and SummaryRecord, as MindSpore does."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distsummary.base.checks import (
    check_choice,
    check_int,
    check_keys,
    check_number,
    check_text,
    check_type,
    is_int,
)
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC, LandscapeSpec, check_collect_landscape
from distsummary.collect.config import FlatValue, read_config
from distsummary.collect.selection import MINDSPORES, Selection
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.spec import Limits
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import DIALECTS
from distsummary.frameworks.base import framework_of, refuse_without_torch
from distsummary.rundir.run_dir import RunDir, refuse_temporary
from distsummary.rundir.topology import EQUAL_AXES, Topology

logger = guarded_log(__name__)

FLAGS = (
    "collect_metric",
    "collect_graph",
    "collect_train_lineage",
    "collect_eval_lineage",
    "collect_input_data",
    "collect_dataset_graph",
)
TREE, OPERATIONS = GRAPHS = ("modules", "ops")
PATTERNS = ("histogram_regular", "gradient_regular", "tensor_regular")
MAX_PATH = 4096  # bytes; the limits of Linux
MAX_PATH_PART = 255
MIN_ROTATE_BYTES = 4096
MIN_KEEP_BYTES = 16 << 20  # files go by parts of it, and a batch, of 1 MiB, is in one file
_RESERVED = ("tfevents", "summary.", "_lineage")  # viewers recognise event files by these words
_AFFIX = re.compile(r"\w+[0-9a-zA-Z_.]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collector collects.

    `histogram`: the parameters that get histograms; `gradient`: those whose gradients get them; `tensor`:
    those that are recorded whole. `landscape`: None for no trajectory. `additions`: what MindSpore's own
    collector does not record: times of steps, the learning rate, metrics of evaluations as scalars.
    """

    metric: bool = False
    graph: str | None = None
    train_lineage: bool = False
    eval_lineage: bool = False
    input_data: bool = False
    dataset_graph: bool = False
    histogram: Selection | None = None
    gradient: Selection | None = None
    tensor: Selection | None = None
    landscape: LandscapeSpec | None = None
    additions: bool = True


def check_specified(
    value: object,
    keep_default_action: bool,
    *,
    histograms: object = None,
    gradients: object = None,
    graph: object = None,
    landscape: object = None,
    compatibility: Compatibility = OURS,
) -> Collected:
    """The checked `collect_specified_data`, `histograms`, `gradients`, `graph` and `collect_landscape`.

    `keep_default_action`: add the defaults. They collect everything except whole parameters and, without
    `compatibility.landscape`, a trajectory; with `compatibility.lineage`, there are no additions. Raises
    InvalidTypeError or InvalidValueError where MindSpore raises TypeError or ValueError.
    """
    check_type("keep_default_action", keep_default_action, bool)
    check_type("collect_specified_data", value, dict, optional=True)
    given: dict[str, Any] = value if isinstance(value, dict) else {}
    check_keys("collect_specified_data", given, (*FLAGS, *PATTERNS, "collect_landscape"))
    for name in FLAGS:
        check_type(f"collect_specified_data[{name!r}]", given.get(name, True), bool)
    flags = {name.removeprefix("collect_"): given.get(name, keep_default_action) for name in FLAGS}
    graph_by_key = TREE if flags.pop("graph") else False
    check_type("collect_landscape", landscape, dict, optional=True)
    trajectory = DEFAULT_SPEC if keep_default_action and compatibility.landscape else None
    if landscape is not None or "collect_landscape" in given:
        trajectory = check_collect_landscape(given["collect_landscape"] if landscape is None else landscape)
    has_default = keep_default_action or "histogram_regular" in given
    return Collected(
        **flags,
        graph=check_graph(graph_by_key if graph is None else graph),
        histogram=_check_choice("histograms", histograms, given, "histogram_regular", has_default),
        gradient=_check_choice("gradients", gradients, given, "gradient_regular"),
        tensor=_check_pattern("tensor_regular", given.get("tensor_regular")),
        landscape=trajectory,
        additions=not compatibility.lineage,
    )


def _check_choice(
    field: str, value: object, given: Mapping[str, object], key: str, has_default: bool = False
) -> Selection | None:
    """The parameters that `field` chooses or, if that is None, the key; `has_default`: else MindSpore's."""
    if value is None:
        return _check_pattern(key, given.get(key)) or (MINDSPORES if has_default else None)
    if key in given:
        raise InvalidValueError(
            f"{field}={value!r} and collect_specified_data[{key!r}]={given[key]!r} both choose the "
            "parameters that get histograms; pass one of them"
        )
    return selection(field, value)


def selection(field: str, value: object, most: int | None = None) -> Selection | None:
    """The parameters, at most `most`, that the argument `field` chooses by a pattern; False chooses none.

    Raises InvalidTypeError or InvalidValueError.
    """
    if value is False:
        return None
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"{field} must be a pattern for the beginning of parameters' names, or False, got {value!r} of "
            f'type {type(value).__name__}; ".*" chooses all parameters'
        )
    return _check_regular(field, value, most)


def refuse_unfit(collected: Collected, network: object, topology: Topology) -> None:
    """Raise InvalidValueError or InvalidTypeError if what was asked for cannot be recorded of this model.

    Rank 0 records what all ranks share, so others may do without a model. Stages of a pipeline have different
    parameters: there a pattern without a match is only logged.
    """
    # Defaults ask for nothing: only what the user chose is refused if it cannot be recorded.
    chosen: dict[str, object] = {
        "histograms": None if collected.histogram is MINDSPORES else collected.histogram,
        "gradients": collected.gradient,
        "tensors": collected.tensor,
        "collect_landscape": None if collected.landscape is DEFAULT_SPEC else collected.landscape,
    }
    if collected.graph == OPERATIONS:
        chosen["graph"] = collected.graph
    asked = {field: value for field, value in chosen.items() if value is not None}
    if network is None:
        for field, value in asked.items() if topology.rank == 0 else ():
            given = value.argument if isinstance(value, Selection) else field
            raise InvalidValueError(
                f"{given} looks into the watched model, got watch=None; pass the model: "
                "ds.init(..., watch=model), as network= to a Run of your own, or leave it out"
            )
        return
    for field in asked.keys() & {"gradients", "graph"}:
        refuse_without_torch(field, network)
    patterns = [one for one in asked.values() if isinstance(one, Selection)]
    if not patterns or topology.mesh.keys() - EQUAL_AXES:
        return
    framework = framework_of(network)
    names = [name for name, _ in framework.named_parameters(network)]
    names += framework.frozen_parameters(network)
    for pattern in patterns:
        if why := pattern.unmatched(names):
            stages = "; if ranks hold different stages of a pipeline, pass mesh={'pp': (stage, stages)}"
            raise InvalidValueError(f"{why}{stages if topology.world_size > 1 else ''}")


def refuse_unmeasured(model: Any) -> None:
    """Raise InvalidValueError or InvalidTypeError unless this is a model whose norms can be measured."""
    if model is None:
        raise InvalidValueError(
            "norms=... measures the parameters of the watched model, got watch=None; pass the model: "
            "ds.init(..., watch=model, norms=True), as network= to a Run of your own, or leave norms out"
        )
    refuse_without_torch("norms", model)
    # This module imports torch, which is imported already.
    from distsummary.frameworks.torch_modules import has_fsdp1

    if has_fsdp1(model):
        raise InvalidValueError(
            "norms=... cannot find which parameter a rank's part of FullyShardedDataParallel (FSDP1) "
            "belongs to; shard the model by torch.distributed.fsdp.fully_shard (FSDP2), or leave norms out"
        )


def _check_pattern(name: str, value: object) -> Selection | None:
    field = f"collect_specified_data[{name!r}]"
    check_type(field, value, str, optional=True)
    return _check_regular(field, value) if isinstance(value, str) else None


def _check_regular(field: str, value: str, most: int | None = None) -> Selection:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidValueError(f"{field} must be a regular expression, got {value!r}: {error}") from error
    return Selection(pattern=value, most=most, argument=f"{field}={value!r}")


def check_summary_dir(value: object, field: str = "summary_dir") -> RunDir:
    """The run dir, created if absent; raises if the path is a file, is too long or cannot be written."""
    check_type(field, value, (str, os.PathLike))
    if isinstance(value, str) and not value.strip():
        raise InvalidValueError(f"{field} must not be blank, got {value!r}; name a directory")
    refuse_temporary(field, value)  # type: ignore[arg-type]  # just checked
    run_dir = RunDir(value)  # type: ignore[arg-type]  # just checked
    parts = [os.fsencode(part) for part in run_dir.base.parts]
    if len(os.fsencode(run_dir.base)) > MAX_PATH or any(len(part) > MAX_PATH_PART for part in parts):
        raise InvalidValueError(
            f"{field} must have at most {MAX_PATH} bytes, and at most {MAX_PATH_PART} between two slashes, "
            f"got {len(os.fsencode(run_dir.base))} bytes in all; choose a shorter path"
        )
    return run_dir.create()


def check_custom_lineage(value: object, *, is_quiet: bool = False) -> dict[str, FlatValue]:
    """The `custom_lineage_data` as texts and numbers (see `read_config`); its keys must be text."""
    check_type("custom_lineage_data", value, dict, optional=True)
    for key in value if isinstance(value, dict) else ():
        check_type("a key of custom_lineage_data", key, str)
        check_text("a key of custom_lineage_data", key)
    return read_config(value, "custom_lineage_data", is_quiet=is_quiet).flat


def check_export_options(value: object) -> bool:
    """Whether `export_options` asks for .npy files of tensors."""
    check_type("export_options", value, dict, optional=True)
    if not isinstance(value, dict):
        return False
    check_keys("export_options", value, ("tensor_format",))
    chosen = value.get("tensor_format")
    check_type("export_options['tensor_format']", chosen, str, optional=True)
    if chosen is not None:
        check_choice("export_options['tensor_format']", chosen, ("npy",))
    return chosen is not None


def check_graph(value: object) -> str | None:
    """How to draw the graph, for the argument `graph`: None for not at all."""
    if value is False:
        return None
    if not isinstance(value, str):
        raise InvalidTypeError(f"graph must be one of {list(GRAPHS)} or False, got {value!r}")
    check_choice("graph", value, GRAPHS)
    return value


def check_checksums(checksums: object) -> bool | int:
    """The argument `checksums`; raises InvalidTypeError or InvalidValueError for anything but bool and n."""
    if isinstance(checksums, bool):
        return checksums
    if not is_int(checksums):
        raise InvalidTypeError(
            f"checksums must be True, False or a number of steps, got {checksums!r} of type "
            f"{type(checksums).__name__}"
        )
    return check_int("checksums", checksums, low=1)


def check_formats(value: object, field: str = "formats") -> tuple[str, ...]:
    """The checked `formats` or `rank_formats`: at least one of DIALECTS, in their order, no duplicates."""
    check_type(field, value, (list, tuple))
    given: Sequence[object] = value if isinstance(value, (list, tuple)) else ()
    for item in given:
        check_choice(f"an item of {field}", item, DIALECTS)
    if not given:
        raise InvalidValueError(f"{field} must name at least one of {list(DIALECTS)}, got {value!r}")
    return tuple(dialect for dialect in DIALECTS if dialect in given)


def check_file_affix(field: str, value: object) -> str:
    """The checked `file_prefix` or `file_suffix`: letters, digits, _ and dots, but no dot first."""
    check_type(field, value, str)
    text = str(value)
    if not _AFFIX.fullmatch(text) or any(word in text for word in _RESERVED):
        raise InvalidValueError(
            f"{field} must be letters, digits, _ and dots (no dot first), and contain none of "
            f"{list(_RESERVED)}, got {text!r}"
        )
    return text


def check_max_file_size(value: object, *, negative_is_unlimited: bool) -> int | None:
    """The checked limit in bytes, or None; `negative_is_unlimited`: if negative, warn and return None."""
    most = check_int("max_file_size", value, optional=True)
    if most is not None and negative_is_unlimited and most < 0:
        logger.warning("max_file_size=%d is negative: the files are not limited", most)
        return None
    return check_int("max_file_size", most, low=0 if negative_is_unlimited else 1, optional=True)


def check_limits(
    max_file_size: int | None, rotate_bytes: object, rotate_s: object, keep_bytes: object = None
) -> Limits:
    """The Limits, with `rotate_bytes` (>= 4096), `rotate_s` (> 0) and `keep_bytes` (>= 16 MiB) checked."""
    rotate_bytes = check_int("rotate_bytes", rotate_bytes, low=MIN_ROTATE_BYTES, optional=True)
    rotate_s = check_number("rotate_s", rotate_s, optional=True)
    if rotate_s is not None and not rotate_s > 0:
        raise InvalidValueError(f"rotate_s must be more than 0 seconds, got {rotate_s}")
    keep_bytes = check_int("keep_bytes", keep_bytes, low=MIN_KEEP_BYTES, optional=True)
    given = {"rotate_bytes": rotate_bytes, "rotate_s": rotate_s, "keep_bytes": keep_bytes}
    if max_file_size is not None and any(limit is not None for limit in given.values()):
        raise InvalidValueError(
            f"max_file_size={max_file_size} drops what does not fit into the file, but "
            f"{', '.join(f'{name}={limit}' for name, limit in given.items())} begin a new file for it; give "
            "the first or the others"
        )
    return Limits(
        max_file_size=max_file_size, rotate_bytes=rotate_bytes, rotate_s=rotate_s, keep_bytes=keep_bytes
    )

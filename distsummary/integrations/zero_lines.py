"""Zero lines: the environment variables that have a script recorded which does not know of it."""

import argparse
import sys
from inspect import signature
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from distsummary.integrations.door import open_door

if TYPE_CHECKING:  # it imports much
    from distsummary.integrations.door_run import DoorRun

OPTIONS = "DISTSUMMARY_OPTIONS"
# Arguments of `ds.init` that are no options: the script decides them.
NOT_OPTIONS = frozenset(
    ("run_dir", "watch", "optimizer", "loss_fn", "callbacks", "role", "rank", "world_size", "mesh", "resume")
)


def arm(run_dir: str, options: str) -> None:
    """Record the training of this process, if it makes one.

    Args:
        run_dir, options: the values of DISTSUMMARY and DISTSUMMARY_OPTIONS.
    """

    def begin(optimizer: Optimizer) -> "tuple[DoorRun | None, Optimizer | None]":
        from distsummary.integrations.door_run import Training, begin_run

        chosen = read_options(options)
        if "config" not in chosen:
            chosen["config"] = script_arguments(sys._getframe(1))
        return begin_run(Training(run_dir=run_dir, options=chosen), optimizer)

    open_door(begin)


def read_options(text: str) -> dict[str, Any]:
    """The arguments for `ds.init` in DISTSUMMARY_OPTIONS, a JSON object.

    Raises DamagedFileError if it is none, InvalidTypeError or InvalidValueError for a wrong field.
    """
    from distsummary._init import init
    from distsummary.base.checks import check_keys
    from distsummary.base.json_door import parse_json
    from distsummary.collect.record_options import Record
    from distsummary.diagnosis.diagnose import Diagnose

    chosen: dict[str, Any] = parse_json(text or "{}", dict[str, Any], name=OPTIONS)
    check_keys(OPTIONS, chosen, signature(init).parameters.keys() - NOT_OPTIONS)
    kinds: tuple[tuple[str, type[Any]], ...] = (("record", Record), ("diagnose", Diagnose))
    for name, kind in kinds:
        if isinstance(fields := chosen.get(name), dict):
            check_keys(f"{name} in {OPTIONS}", fields, tuple(kind.__dataclass_fields__))
            chosen[name] = kind(**fields)
    return chosen


def script_arguments(frame: FrameType | None) -> argparse.Namespace | None:
    """What argparse has parsed for the script: the innermost Namespace in its variables."""
    while frame is not None:
        for found in (*frame.f_locals.values(), *frame.f_globals.values()):
            if type(found) is argparse.Namespace:
                return found
        frame = frame.f_back
    return None

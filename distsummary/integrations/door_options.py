"""Reads the variable DISTSUMMARY_OPTIONS of the doors: arguments for `ds.init`."""

from inspect import signature
from typing import Any

TEE = "tee"
# Arguments of `ds.init` that are no options: the script decides them.
NOT_OPTIONS = frozenset(
    ("run_dir", "watch", "optimizer", "loss_fn", "callbacks", "role", "rank", "world_size", "mesh", "resume")
)


def read_options(text: str) -> dict[str, Any]:
    """The arguments for `ds.init` in DISTSUMMARY_OPTIONS, a JSON object, which may also have the field tee.

    Raises DamagedFileError if it is none, InvalidTypeError or InvalidValueError for a wrong field.
    """
    from distsummary._init import init
    from distsummary.base.checked_json import parse_json
    from distsummary.base.checks import check_keys, check_type
    from distsummary.collect.record_options import Record
    from distsummary.diagnosis.diagnose import Diagnose
    from distsummary.rundir.topology import OPTIONS

    chosen: dict[str, Any] = parse_json(text or "{}", dict[str, Any], name=OPTIONS)
    check_type(f"{TEE} in {OPTIONS}", chosen.pop(TEE, False), bool)
    check_keys(OPTIONS, chosen, signature(init).parameters.keys() - NOT_OPTIONS)
    kinds: tuple[tuple[str, type[Any]], ...] = (("record", Record), ("diagnose", Diagnose))
    for name, kind in kinds:
        if isinstance(fields := chosen.get(name), dict):
            check_keys(f"{name} in {OPTIONS}", fields, tuple(kind.__dataclass_fields__))
            chosen[name] = kind(**fields)
    return chosen

"""Names with and without the prefixes of wrappers: DataParallel's and DDP's, torch.compile's; pure."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from distsummary.checkpoints.mapped import StoredState

_PREFIX = re.compile(r"((module|_orig_mod)\.)*")
_COMPILED = "_orig_mod."


def fitting(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """`state` under those of the names that differ from its own by wrappers alone.

    These are a prefix that all have, and torch.compile's around single layers. Two are never made one.
    """
    if all(name in names for name in state):
        return state
    there = {bare: name for name, bare in _bare(names).items()}
    renamed = {name if name in names else there.get(bare, name): name for name, bare in _bare(state).items()}
    is_clear = len(there) == len(names) and len(renamed) == len(state)
    if not is_clear or all(new == old for new, old in renamed.items()):
        return state
    if isinstance(state, StoredState):
        return state.selected(renamed)
    return {new: state[old] for new, old in renamed.items()}


def _bare(names: Iterable[str]) -> dict[str, str]:
    """The names without wrappers."""
    prefix = common_prefix(names)
    return {name: uncompiled(name.removeprefix(prefix)) for name in names}


def uncompiled(name: str) -> str:
    """The name that a parameter has where none of its layers is compiled."""
    return name.replace(_COMPILED, "")


def common_prefix(names: Iterable[str]) -> str:
    """The wrappers' prefix that all names have, such as "module._orig_mod."."""
    prefixes = [match.group() for name in names if (match := _PREFIX.match(name))]
    shortest = min(prefixes, key=len, default="")
    return shortest if all(prefix.startswith(shortest) for prefix in prefixes) else ""

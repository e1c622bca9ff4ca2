"""Names with and without the prefixes of wrappers: DataParallel's and DDP's, torch.compile's; pure."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from distsummary.checkpoints.mapped import StoredState

_PREFIX = re.compile(r"((module|_orig_mod)\.)*")


def fitting(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """`state` under those of the names that differ from its own in such a prefix alone, which all have."""
    if any(name in names for name in state):
        return state
    own, others = common_prefix(state), common_prefix(names)
    renamed = {others + name.removeprefix(own): name for name in state}
    if not any(name in names for name in renamed):
        return state
    if isinstance(state, StoredState):
        return state.selected(renamed)
    return {new: state[old] for new, old in renamed.items()}


def common_prefix(names: Iterable[str]) -> str:
    """The wrappers' prefix that all names have, such as "module._orig_mod."."""
    prefixes = [match.group() for name in names if (match := _PREFIX.match(name))]
    shortest = min(prefixes, key=len, default="")
    return shortest if all(prefix.startswith(shortest) for prefix in prefixes) else ""

"""Definitions: what the merged run's value of a tag is, which direction is better, and its unit."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from distsummary.base.checks import check_choice, check_keys, check_text, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.own_tags import is_own

MEAN, SUM, MIN, MAX = "mean", "sum", "min", "max"
ACROSS = (MEAN, SUM, MIN, MAX)
BEST = (MIN, MAX)
WEIGHTED = f"{MEAN}:"  # and the tag of the weights
MOST_UNIT, MOST_DEFINITIONS = 40, 1000


Fields: TypeAlias = Mapping[str, str | None]  # of Definition, as run.json has them


class Definition(NamedTuple):
    """What is said of a tag, or of the tags that a glob matches; None: nothing.

    Attributes:
        across: what the merged run's value is: "mean", "sum", "min" or "max" over the ranks that recorded the
            tag at the step, or "mean:TAG", the mean weighted by what each rank recorded as TAG at that step.
        best: "min" or "max", the direction that is better.
        unit: that of the axis.
    """

    across: str | None = None
    best: str | None = None
    unit: str | None = None

    @property
    def of_ranks(self) -> str:
        """What the merged run's value is, in words: "sum", or "tokens-weighted mean"."""
        across = self.across or MEAN
        return f"{across.removeprefix(WEIGHTED)}-weighted mean" if across.startswith(WEIGHTED) else across


class Definitions:
    """The definitions of a run, by tag or glob, in which `*` also matches `/`; see `of`.

    Args:
        define: `define` of run.json; later ones were defined later.
    """

    def __init__(self, define: Mapping[str, Fields]) -> None:
        self._by_name = {
            name: Definition(*map(fields.get, Definition._fields)) for name, fields in define.items()
        }
        self.of = lru_cache(1 << 14)(self._of)

    def _of(self, tag: str) -> Definition:
        """What is said of a tag: by its name, else by the last glob that matches; for each field apart.

        Tags of distsummary itself (`zz_...`) match only globs that begin so.
        """
        across, best, unit = self._by_name.get(tag, Definition())
        for name, found in reversed(self._by_name.items()):
            if None not in (across, best, unit):
                break
            if is_own(name) >= is_own(tag) and fnmatchcase(tag, name):
                across, best, unit = across or found.across, best or found.best, unit or found.unit
        return Definition(across, best, unit)


def check_definition(
    name: object, across: object = None, best: object = None, unit: object = None
) -> dict[str, Fields]:
    """One definition, as run.json has it; raises InvalidTypeError or InvalidValueError."""
    check_type("the name of a definition", name, str)
    tag = str(name)
    check_text("the name of a definition", tag)
    if not tag.strip():
        raise InvalidValueError(f"the name of a definition must be a tag or a glob, got {name!r}")
    check_type(f"across of {tag!r}", across, str, optional=True)
    weights = str(across).removeprefix(WEIGHTED)
    if across is not None and across not in ACROSS and (weights == across or not weights.strip()):
        raise InvalidValueError(
            f"across of {tag!r} must be one of {list(ACROSS)}, or 'mean:TAG' with the tag of the weights, "
            f"got {across!r}"
        )
    if best is not None:
        check_choice(f"best of {tag!r}", best, BEST)
    check_type(f"unit of {tag!r}", unit, str, optional=True)
    if unit is not None and not (0 < len(str(unit)) <= MOST_UNIT and str(unit).isprintable()):
        raise InvalidValueError(
            f"unit of {tag!r} must have 1 to {MOST_UNIT} printable characters, got {unit!r:.100}"
        )
    if across is best is unit is None:
        raise InvalidValueError(f"a definition of {tag!r} must say across, best or unit, got none of them")
    return {tag: Definition(across, best, unit)._asdict()}  # type: ignore[arg-type]  # checked above


def check_definitions(define: object) -> dict[str, Fields]:
    """The argument `define` of ds.init, as run.json has it; raises InvalidTypeError or InvalidValueError."""
    if not isinstance(define, Mapping):
        raise InvalidTypeError(
            f"define must be a dict, got {define!r} of type {type(define).__name__}; write "
            'define={"tokens": {"across": "sum", "unit": "tokens/s"}}'
        )
    if len(define) > MOST_DEFINITIONS:
        raise InvalidValueError(
            f"define must hold at most {MOST_DEFINITIONS} names, got {len(define)}; use globs: 'eval/*'"
        )
    found: dict[str, Fields] = {}
    for name, fields in define.items():
        check_type(f"define[{name!r}]", fields, dict)
        check_keys(f"define[{name!r}]", fields, Definition._fields)
        found |= check_definition(name, **fields)
    return found

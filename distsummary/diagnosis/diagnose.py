"""Diagnose: which alerts of a run are printed and passed on, and how often."""

from collections.abc import Sequence
from dataclasses import dataclass

from distsummary.base.checks import check_choice, check_type, set_ints
from distsummary.diagnosis.verdict import CAUSES, LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose:
    """Options of diagnosis: `ds.init("runs/a", diagnose=ds.Diagnose(level="error"))`.

    Args:
        level: the lowest level ("info", "warning", "error") that is printed and passed to `on_alert`. All
            alerts are written to alerts.jsonl, whatever their level; docs/ranks.md lists causes and levels.
        mute: causes, such as "data", that are neither printed nor passed to `on_alert`, and do not count as
            findings in `status`.
        most_per_hour: how many alerts are printed and passed on within an hour, >= 1; the others are counted,
            and the count is reported. Only alerts of the same or a higher level count.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    level: str = "warning"
    mute: Sequence[str] = ()
    most_per_hour: int = 20

    def __post_init__(self) -> None:
        check_choice("level", self.level, LEVELS)
        check_type("mute", self.mute, (list, tuple))
        for cause in self.mute:
            check_choice("a cause in mute", cause, CAUSES)
        set_ints(self, most_per_hour={"low": 1})

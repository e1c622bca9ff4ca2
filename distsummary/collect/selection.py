"""Selection: which parameters of a model are recorded. It is pure, so all ranks of a job select the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from re import match, search

EXAMPLES = 5
ALL_FROZEN = (
    "all parameters of the model are frozen (requires_grad=False), so there are no gradients to record; call "
    "requires_grad_() on those that are trained, or leave gradients out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects parameters by name.

    Args:
        pattern: a regular expression for the beginning of the names.
        most: how many of those that match are selected, in the order of the model; None: all.
        argument: what the user passed, for messages; None: this is the default, MindSpore's.
    """

    pattern: str = ".*"
    most: int | None = None
    argument: str | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        """The selected names of parameters, in their order."""
        return [name for name in names if match(self.pattern, name)][: self.most]

    def unmatched(self, names: Sequence[str]) -> str:
        """Why the pattern selects none of the parameters `names`, frozen ones among them; "" if it does."""
        if not names or any(match(self.pattern, name) for name in names):
            return ""
        such = f", such as {', '.join(map(repr, names[:EXAMPLES]))}"
        why = f"{self.argument} matches the beginning of none of the {len(names)} names of parameters{such}"
        # A pattern that matches further inside the names may have been meant for any place in them.
        within = [name for name in names if search(self.pattern, name)]
        if not within:
            return why
        return f"{why}; {'.*' + self.pattern!r} would match {len(within)} of them, such as {within[0]!r}"

    def remark(self, names: Sequence[str], selected: Sequence[str], frozen: Sequence[str] = ()) -> str:
        """What a user should know: that a pattern selects nothing, or that the default leaves some out.

        `frozen`: the names of parameters that require no gradient, if nothing is selected.
        """
        if not names:
            if not frozen and self.argument is not None:
                return f"the model has no parameters: nothing is recorded for {self.argument}"
            return ALL_FROZEN if frozen and "gradient" in (self.argument or "") else ""
        if not selected:
            found = [name for name in frozen if match(self.pattern, name)]
            if found:
                examples = ", ".join(map(repr, found[:EXAMPLES]))
                return (
                    f"{self.argument} matches only frozen parameters (requires_grad=False), such as "
                    f"{examples}: nothing is recorded for it"
                )
            return f"{self.unmatched(names)}; nothing is recorded for it"
        left_out = len(names) - len(selected)
        if self.argument is not None or not left_out:
            return ""
        return (
            f"{left_out} of {len(names)} parameters get no histograms by default (the first {self.most}, as "
            "in MindSpore); to choose others, pass a pattern for the beginning of their names, such as "
            'collect_specified_data={"histogram_regular": "conv"}'
        )


MINDSPORES = Selection(most=5)

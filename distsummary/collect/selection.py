"""Selection: which parameters of a model are recorded. It is pure, so all ranks of a job select the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import match, search
from typing import Any

from distsummary.rundir.deal import Steps

MAX_PARAMETERS = 200
MAX_ELEMENTS = 16_000_000
AT_ONCE = 1_000_000  # elements; histograms of more elements begin later, see `default_steps`
EXAMPLES = 5
ALL_FROZEN = (
    "all parameters of the model are frozen (requires_grad=False), so there are no gradients to record; call "
    "requires_grad_() on those that are trained, or leave gradients out"
)
KINDS = {"histograms": "histograms", "gradients": "histograms of gradients"}  # what each field chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects parameters by name, or the first few; without either, by the default rule (`within_bounds`).

    Args:
        pattern: a regular expression for the beginning of the names.
        first: the number of parameters, in the order of the model.
        argument: what the user passed, for messages; None if this is a default.
        field: the argument that chooses others, for messages.
    """

    pattern: str | None = None
    first: int | None = None
    argument: str | None = None
    field: str = "histograms"

    def of(self, parameters: Mapping[str, Any]) -> list[str]:
        """The selected names of parameters (name -> tensor), in their order."""
        if self.pattern is not None:
            pattern = self.pattern
            return [name for name in parameters if match(pattern, name)]
        if self.first is not None:
            return list(parameters)[: self.first]
        taken = within_bounds({name: _shape(tensor) for name, tensor in parameters.items()})
        return [name for name in parameters if name in taken]

    def unmatched(self, names: Sequence[str]) -> str:
        """Why a pattern selects none of the parameters `names`, frozen ones among them; "" if it does."""
        pattern = self.pattern
        if pattern is None or any(match(pattern, name) for name in names):
            return ""
        such = f", such as {', '.join(map(repr, names[:EXAMPLES]))}" if names else ""
        why = f"{self.argument} matches the beginning of none of the {len(names)} names of parameters{such}"
        within = [name for name in names if search(pattern, name)]
        if not within:
            return why
        return f"{why}; {'.*' + pattern!r} would match {len(within)} of them, such as {within[0]!r}"

    def remark(self, names: Sequence[str], selected: Sequence[str], frozen: Sequence[str] = ()) -> str:
        """What a user should know: that a pattern selects nothing, or that a default leaves some out.

        `frozen`: the names of parameters that require no gradient, if nothing is selected.
        """
        if not names:
            is_of_gradients = self.field == "gradients" or "gradient" in (self.argument or "")
            return ALL_FROZEN if frozen and is_of_gradients else ""
        if self.pattern is not None and not selected:
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
        field = self.field
        if self.first is None:
            rule = (
                f"weights first, then biases, up to {MAX_PARAMETERS} parameters and {MAX_ELEMENTS:,} elements"
            )
            remedy = f'{field}="conv", or a number of parameters, {field}=n'
        else:  # who has this default uses MindSpore's arguments
            rule = f"the first {self.first}, as in MindSpore"
            remedy = 'collect_specified_data={"histogram_regular": "conv"}'
        return (
            f"{left_out} of {len(names)} parameters get no {KINDS[field]} by default ({rule}); to choose "
            f"others, pass a pattern for the beginning of their names, such as {remedy}"
        )


MINDSPORES = Selection(first=5)
BY_DEFAULT = Selection()
GRADIENTS_BY_DEFAULT = Selection(field="gradients")


def default_steps(freq: int, elements: int) -> Steps:
    """The steps of the default histograms: 1, and 1, 2, 4 ... times `freq`.

    Counting a million elements takes about 5 ms of CPU. n * AT_ONCE elements are therefore counted at 1, 2,
    4 ... times n * `freq`, so that the first histograms lie further apart.
    """
    return Steps(every=freq * max(1, -(-elements // AT_ONCE)), doubling=True)


def within_bounds(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """The parameters that get histograms by default, given all parameters in the order of the model.

    First those of two or more dimensions (weights), then the others (biases, norms). Each is taken unless
    there would be more than MAX_PARAMETERS, or more than MAX_ELEMENTS elements in all.
    """
    taken: list[str] = []
    room = MAX_ELEMENTS
    for name, shape in sorted(shapes.items(), key=lambda item: len(item[1]) < 2):
        elements = math.prod(shape)
        if elements <= room and len(taken) < MAX_PARAMETERS:
            taken.append(name)
            room -= elements
    return frozenset(taken)


def _shape(tensor: Any) -> tuple[int, ...]:
    """The shape of the whole parameter; () for one of torch's lazy modules before the first forward pass."""
    try:
        return tuple(tensor.shape)
    except RuntimeError:
        return ()

"""What is told when the user's model, loss function or metric raises: what, where, and how to go on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.model.user_code import HINT, IN, first_line

MEND = "mend what raises, or return NaN there"
PLANNING = (
    "while engines were tried, with the model as it is and then at points of the grid's first and last row; "
    f"{MEND}"
)
CODE = "the model, the loss function or a metric"
READING = "when it was read; mend what raises"
OPENING = "when its engine was opened; mend what raises"
HESSIAN = "in a product with the Hessian; mend what raises"


class ChunkFailedError(Exception):
    """Internal: a worker raised `cause` at `chunk`; the runner, which knows what is kept, reports it."""

    def __init__(self, chunk: Chunk, cause: Exception) -> None:
        super().__init__(chunk, cause)
        self.chunk, self.cause = chunk, cause


@contextmanager
def told(where: str, *passing: type[Exception], who: str = CODE) -> Iterator[None]:
    """Raise LandscapeError with the cause for what the user's code raises inside; our own errors pass too."""
    pass_on: tuple[type[Exception], ...] = (DistSummaryError, *passing)
    try:
        yield
    except pass_on:
        raise
    except Exception as error:  # of any kind: it is the user's code
        raise LandscapeError(f"{raised(error, who)} {where}") from error


def raised(error: Exception, who: str = CODE) -> str:
    """Who raised what, in one line, with our hints; the cause has the other lines."""
    line = first_line(error)
    notes = getattr(error, "__notes__", ())
    hints = "".join(f" ({note})" for note in notes if note.startswith(HINT))
    batch = next((f" {note}" for note in notes if note.startswith(IN)), "")
    return f"{who} raised {type(error).__name__}{line and f': {line}'}{hints}{batch}"


def place(chunk: Chunk, planes: Sequence[PlanePlan]) -> str:
    """Where the points of a chunk lie: "y = 0.5, x = -1 to 0.2"."""
    plane = planes[chunk.plane]
    first, last = chunk.columns[0], chunk.columns[-1]
    if chunk.kind == "grid":
        found = f"y = {plane.y[chunk.row]:g}, x = {_span(f'{plane.x[first]:g}', f'{plane.x[last]:g}')}"
    else:
        what = {"path": "point", "checkpoint": "checkpoint"}[chunk.kind]
        found = f"{what} {_span(str(first + 1), str(last + 1))} of the path"
    return found if len(planes) == 1 else f"{found} of landscape {chunk.plane + 1} of {len(planes)}"


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"

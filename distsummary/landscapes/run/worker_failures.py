"""Messages about errors of the user's model, loss or metrics: what raised, where, and how to continue."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distsummary.errors import DistSummaryError, LandscapeError
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.model.user_code import HINT, IN, first_line

MEND = "fix the error, or return NaN there"
CHOOSING = (
    "while engines were tried, with the model as it is and then at points of the grid's first and last row; "
    f"{MEND}"
)
CODE = "the model, the loss function or a metric"
READING = "when it was read; fix the error"
OPENING = "when its engine was opened; fix the error"
HESSIAN = "in a product with the Hessian; fix the error"


class ChunkFailedError(Exception):
    """Internal: evaluating `chunk` raised `cause`. The runner reports it and says which points are kept."""

    def __init__(self, chunk: Chunk, cause: Exception) -> None:
        super().__init__(chunk, cause)
        self.chunk, self.cause = chunk, cause


@contextmanager
def user_errors(where: str, *, who: str = CODE) -> Iterator[None]:
    """Turn errors of the user's code in the block into a one-line LandscapeError; DistSummaryErrors pass."""
    try:
        yield
    except DistSummaryError:
        raise
    except Exception as error:
        # Any error is possible, since it is the user's code.
        raise LandscapeError(f"{raised(error, who)} {where}") from error


def raised(error: Exception, who: str = CODE) -> str:
    """One line for the message of a new error caused by `error`: what raised `error`, its text, hints."""
    line = first_line(error)
    notes = getattr(error, "__notes__", ())
    hints = "".join(f" ({note})" for note in notes if note.startswith(HINT))
    batch = next((f" {note}" for note in notes if note.startswith(IN)), "")
    return f"{who} raised {type(error).__name__}{line and f': {line}'}{hints}{batch}"


def place(chunk: Chunk, planes: Sequence[PlanePlan]) -> str:
    """Where the points of a chunk lie, as text such as "y = 0.5, x = -1 to 0.2"."""
    plane = planes[chunk.plane]
    numbers = chunk.columns[0], chunk.columns[-1]
    if chunk.kind == "grid":
        before = f"y = {plane.y[chunk.row]:g}, x = "
        first, last = (f"{plane.x[number]:g}" for number in numbers)
        behind = ""
    else:
        before = "point " if chunk.kind == "path" else "checkpoint "
        first, last = (str(number + 1) for number in numbers)
        behind = " of the path"
    found = before + (first if first == last else f"{first} to {last}") + behind
    return found if len(planes) == 1 else f"{found} of landscape {chunk.plane + 1} of {len(planes)}"

"""Records what an optimizer that keeps Kronecker factors of its layers reports of them, as one table."""

from distsummary.collect.values.sources import Source
from distsummary.format.own_tags import CURVATURE_TAGS
from distsummary.format.records import Value
from distsummary.frameworks.base import Curvature, CurvatureSource
from distsummary.rundir.deal import Steps
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import StepContext

DAMPING, REFRESHES, SKIPPED, REFRESH_MS, LAYERS, FIGURES = (
    CURVATURE_TAGS + name for name in ("damping", "refreshes", "skipped", "refresh_ms", "layers", "figures")
)
_HEAD = (
    "| layer | trace of A | trace of G | condition of A | condition of G | skipped |",
    "|---|---|---|---|---|---|",
)


class CurvatureFigures(Source):
    """Damping, refreshes and skipped layers at each due step; after a refresh its time and the layers' table.

    The table is recorded as text and, in the order of its rows, as a tensor: float64 (layers, 4), see
    `Curvature.figures`.

    Args:
        source: the optimizer. steps: when the figures are due.
        has_table: whether this rank records the table, which is the same on all.
    """

    what = "curvature"

    def __init__(self, source: CurvatureSource, steps: Steps, *, has_table: bool) -> None:
        self._source: CurvatureSource | None = source
        self.steps, self._has_table = steps, has_table
        self._refreshes = 0

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        if self._source is None:
            return []
        found = self._source.curvature()
        values = [
            Value("scalar", DAMPING, found.damping),
            Value("scalar", REFRESHES, float(found.refreshes)),
            Value("scalar", SKIPPED, float(sum(found.skipped.values()))),
        ]
        if found.refreshes != self._refreshes:
            self._refreshes = found.refreshes
            values.append(Value("scalar", REFRESH_MS, found.refresh_s * 1e3))
            if self._has_table and found.layers:
                values += [Value("tensor", FIGURES, found.figures), Value("text", LAYERS, table(found))]
        return values

    def close(self) -> None:
        """See `Source`."""
        self._source, self.is_active = None, False


def table(found: Curvature) -> str:
    """The figures of the layers in Markdown."""
    rows = [
        f"| {layer} | {' | '.join(f'{figure:.3g}' for figure in figures)} | {found.skipped.get(layer, 0)} |"
        for layer, figures in zip(found.layers, found.figures.tolist(), strict=True)
    ]
    return "\n".join([*_HEAD, *rows])

"""The figure of a picture, which a notebook shows whether pyplot was imported or not; needs matplotlib."""

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

DPI = 120
HEIGHT = 5.6  # inches
PAD = 0.08
FONTS = {"pdf.fonttype": 42}  # TrueType: publishers refuse Type 3, matplotlib's own choice


class ShownFigure(Figure):
    """A Figure that pyplot does not know. Where pyplot was imported notebooks show any Figure, else this."""

    def savefig(self, *args: Any, **options: Any) -> None:
        """Write a file as every Figure does, a PDF with fonts that papers may have."""
        with rc_context(FONTS):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def empty_figure(width: float) -> Figure:
    """One that is `width` inches wide."""
    layout = ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD)
    figure = ShownFigure(figsize=(width, HEIGHT), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure

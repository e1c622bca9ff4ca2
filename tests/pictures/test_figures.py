"""Figures of matplotlib become images: the same pixels as savefig's, of a figure that stays as it was."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from distsummary import SummaryRecord
from distsummary.collect.values import pictures
from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError, MissingExtraError
from distsummary.events.reader import read_directory
from distsummary.format.records import DIALECTS
from tests.programs import run_python


def curve(**options: Any) -> Figure:
    figure = Figure(figsize=(3, 2), dpi=50, **options)
    axes = figure.subplots()
    axes.plot([1, 4, 2])
    axes.set_title("Größe")
    return figure


def saved(figure: Figure) -> np.ndarray:
    """The pixels that savefig writes, on white."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=figure.dpi)
    picture = PIL.Image.open(file).convert("RGBA")
    white = PIL.Image.new("RGBA", picture.size, "white")
    return np.asarray(PIL.Image.alpha_composite(white, picture).convert("RGB"))


@pytest.mark.parametrize(
    "options",
    [{}, {"layout": "constrained"}, {"layout": "tight"}, {"facecolor": "#ff000040"}, {"facecolor": "none"}],
    ids=str,
)
def test_a_figure_has_the_pixels_of_savefig_in_both_dialects(tmp_path: Path, options: dict[str, Any]):
    with SummaryRecord(tmp_path) as record:
        record.add_value("Figure", "curve", curve(**options))
        record.record(3)
    expected = saved(curve(**options))
    assert expected.shape == (100, 150, 3)
    for dialect in DIALECTS:
        [event] = read_directory(tmp_path, dialect)
        [value] = event.values
        assert (event.step, value.plugin, value.tag) == (3, "image", "curve")
        found = np.asarray(PIL.Image.open(io.BytesIO(value.data.encoded)))
        assert np.abs(found.astype(int) - expected).max() <= 1  # of half transparent places: rounding


def test_it_is_drawn_at_the_call_and_stays_as_it_was():
    figure = curve()
    canvas = FigureCanvasSVG(figure)
    first = checked_value("figure", "f", figure).data
    assert figure.canvas is canvas
    assert figure.dpi == 50
    assert figure.stale
    figure.axes[0].plot([4, 1, 4])
    second = checked_value("figure", "f", figure).data
    assert not np.array_equal(first, second)
    assert np.array_equal(second, checked_value("figure", "f", figure).data)


def test_a_very_flat_figure_is_a_picture_too(tmp_path: Path):
    with SummaryRecord(tmp_path) as record:
        record.add_value("figure", "flat", Figure(figsize=(1.5, 0.03), dpi=100))
        record.record(1)
    [event] = read_directory(tmp_path)
    assert (event.values[0].data.height, event.values[0].data.width) == (3, 150)


@pytest.mark.parametrize(
    "wrong", [None, "figure", np.zeros((4, 4)), [Figure(), Figure()], Figure().subplots(), Figure]
)
def test_what_is_no_figure_is_refused(wrong: Any):
    with pytest.raises(InvalidTypeError, match=r"the figure 'f' must be one matplotlib.figure.Figure, got "):
        checked_value("figure", "f", wrong)


def test_a_figure_that_cannot_be_drawn_is_refused_with_its_name():
    figure = curve()
    figure.axes[0].set_title(r"$\nonsense$")
    with pytest.raises(InvalidValueError, match=r"the figure 'f' cannot be drawn: .*nonsense"):
        checked_value("figure", "f", figure)
    for size in ((1000, 1000), (0.001, 1)):
        with pytest.raises(InvalidValueError, match=r"the figure 'f' must have 1 to 67108864 pixels, got"):
            checked_value("figure", "f", Figure(figsize=size, dpi=100))


def test_without_matplotlib_the_extra_is_named(no_matplotlib):
    with pytest.raises(
        MissingExtraError, match=r"the figure 'f' needs matplotlib, which .* pip install matplotlib"
    ):
        pictures.drawn("the figure 'f'", object())


def test_pyplot_is_not_imported():
    code = (
        "import sys; from matplotlib.figure import Figure; "
        "from distsummary.collect.values.pictures import drawn; "
        "drawn('f', Figure()); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert run_python("-c", code, code=None).returncode == 0

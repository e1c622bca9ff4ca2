"""Pictures of grids: whatever the losses are there is one, and what is on it is what the grid says."""

import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from distsummary import LossGrid
from distsummary.errors import InvalidValueError, MissingExtraError
from distsummary.landscapes.output.draw import checkpoint_lines, draw, notes, plane_lines, title
from distsummary.landscapes.output.panels import draw_contours, draw_curve, draw_surface
from distsummary.landscapes.output.scale import scale_for
from tests.unit.landscapes.test_grid import make_grid, random_grid

ENDS: dict[str, Any] = {
    "path": np.array([[-1.0, 0.0], [0.0, 0.0]]),
    "path_loss": np.array([2.0, 1.0]),
    "true_loss": np.array([2.0, 1.0]),
    "residuals": np.zeros(2),
}
MARKED: dict[str, Any] = {"computed": np.eye(3, 4) > 0, "rounding": {"x": 0.0, "y": 0.226}}


@pytest.mark.parametrize("kind", ["contour", "surface"])
@pytest.mark.parametrize(
    "z",
    [
        np.add.outer(np.arange(3.0), np.arange(4.0)),
        np.exp(np.add.outer(np.arange(3.0), 3 * np.arange(4.0))),
        np.ones((3, 4)),
        np.full((3, 4), np.nan),
        np.where(np.eye(3, 4) > 0, np.inf, np.add.outer(-np.arange(3.0), np.arange(4.0))),
        np.where(np.eye(3, 4) > 0, 1e300, 1.0),
    ],
    ids=["plain", "wide", "flat", "nan", "inf", "huge"],
)
def test_any_grid_has_a_picture(z: np.ndarray, kind: str) -> None:
    check_picture(draw(make_grid(z=z), kind))


@pytest.mark.parametrize("kind", ["contour", "surface"])
@pytest.mark.parametrize("z", [np.add.outer(np.arange(3.0), np.arange(4.0)), np.full((3, 4), np.nan)])
def test_a_grid_without_a_path_has_one(z: np.ndarray, kind: str) -> None:
    check_picture(draw(random_grid(z=z), kind))


def check_picture(png: bytes) -> None:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 500
    assert height > 500


@pytest.mark.parametrize("z", [[[1.0, 2.0, 4.0]], [[np.nan, 2.0, np.inf]], [[np.nan] * 3]])
def test_a_grid_of_one_row_or_column_is_drawn_as_a_curve(z: Any) -> None:
    row = make_grid(x=np.arange(3.0), y=np.zeros(1), z=np.array(z))
    column = make_grid(x=np.zeros(1), y=np.arange(3.0), z=np.array(z).T, numbers=(), residuals=np.zeros(3))
    for grid in (row, column):
        check_picture(draw(grid, "contour"))
        figure = figure_for()
        axes = figure.subplots()
        draw_curve(axes, grid, scale_for(grid.z))
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.where(np.isfinite(z), z, np.nan)[0])


def test_a_curve_is_the_same_whatever_the_kind() -> None:
    row = make_grid(x=np.arange(3.0), y=np.zeros(1), z=np.array([[1.0, 2.0, 4.0]]))
    assert draw(row, "contour") == draw(row, "surface")


def test_a_path_that_is_not_finite_has_a_picture() -> None:
    lost = np.array([np.nan, np.inf, 1.0])
    for kind in ("contour", "surface"):
        assert draw(make_grid(path_loss=lost, true_loss=lost[::-1].copy()), kind)


def figure_for() -> Figure:
    figure = Figure(figsize=(6, 5))
    FigureCanvasAgg(figure)
    return figure


def long_grid() -> LossGrid:
    """A path of 200 checkpoints."""
    way = np.linspace(0, 1, 200)
    return make_grid(
        numbers=tuple(range(200)),
        path=np.column_stack((way - 1, np.sin(5 * way))),
        path_loss=2 - way,
        true_loss=3 - way,
        residuals=way / 2,
    )


def test_the_path_is_drawn_on_the_contours_and_its_dots_have_the_colour_of_the_true_loss() -> None:
    grid = make_grid(true_loss=np.array([22.0, 0.5, 1.0]))
    figure = figure_for()
    draw_contours(figure, grid, scale_for(grid.z))
    axes = figure.axes[0]
    paths = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert len(paths) == 2  # black on white
    for line in paths:
        np.testing.assert_array_equal(line.get_xydata(), grid.path)
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    np.testing.assert_array_equal(np.concatenate([dot.get_xydata() for dot in dots]), grid.path)
    high, low, _ = (matplotlib.colors.to_rgb(dot.get_color()) for dot in dots)
    assert high[0] > 0.7  # yellow
    assert low[0] < 0.35  # violet
    assert [text.get_text() for text in axes.texts] == ["1", "5"]


def test_on_the_surface_the_path_lies_on_it_and_upright_lines_lead_to_the_true_losses() -> None:
    grid = make_grid()
    figure = figure_for()
    draw_surface(figure, grid, scale_for(grid.z))
    lines = [np.array(line.get_data_3d()) for line in figure.axes[0].lines]
    on_surface = lines[0].T
    assert len(on_surface) > 20
    inside = on_surface[np.isfinite(on_surface[:, 2])]
    np.testing.assert_allclose(inside[:, 2], 10 * (inside[:, 1] + 2) / 2 + (inside[:, 0] + 1) * 1.5)
    stems = [line[2].tolist() for line in lines if line.shape == (3, 2)]
    assert stems == np.column_stack((grid.path_loss, grid.true_loss)).tolist()


def test_a_long_path_is_drawn_whole_with_some_of_its_dots() -> None:
    grid = long_grid()
    figure = figure_for()
    draw_contours(figure, grid, scale_for(grid.z))
    lengths = [len(line.get_xdata()) for line in figure.axes[0].lines]
    assert lengths.count(200) == 2
    assert 20 < lengths.count(1) < 60


def test_each_run_of_a_joint_plane_has_its_own_line_and_name() -> None:
    joint = make_grid(kind="joint", runs=("sgd", "adam"), run_lengths=(1, 2), numbers=(9, 5, 9))
    figure = figure_for()
    draw_contours(figure, joint, scale_for(joint.z))
    named = {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}
    assert "sgd" not in named  # one checkpoint makes no line: its name stands next to it
    assert [text.get_text() for text in figure.axes[0].texts] == ["sgd", "5", "9"]
    np.testing.assert_array_equal(named["adam"], joint.path[1:])
    assert title(joint) == "joint PCA plane of sgd, adam"
    assert title(make_grid()) == "epochs 1 to 9, PCA plane"
    assert title(make_grid(mode="mindspore")) == "epochs 1 to 9, PCA plane (mindspore)"
    assert [line.split()[-1] for line in checkpoint_lines(joint)[1:]] == ["sgd", "adam", "adam"]


def test_a_line_says_the_share_of_the_way_and_its_barrier() -> None:
    line = make_grid(
        kind="line",
        x=np.linspace(-1, 0, 4),
        y=np.zeros(1),
        z=np.array([[2.0, 4.0, 3.0, 1.0]]),
        numbers=(1, 9),
        path=np.array([[-1.0, 0.0], [0.0, 0.0]]),
        path_loss=np.array([2.0, 1.0]),
        true_loss=np.array([2.0, 1.0]),
        residuals=np.zeros(2),
        explained_variance=np.empty(0),
    )
    axes = figure_for().subplots()
    draw_curve(axes, line, scale_for(line.z))
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0, 1 / 3, 2 / 3, 1])
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert "straight between the ends; barrier 2.333" in labels
    assert axes.get_xlabel() == "share of the way"
    assert title(line) == "from epoch 1 to epoch 9, straight"
    ticks = dict(zip(axes.get_xticks(), [label.get_text() for label in axes.get_xticklabels()], strict=True))
    assert (ticks[0.0], ticks[0.4], ticks[1.0]) == ("0\nepoch 1", "0.4", "1\nepoch 9")
    assert list(axes.texts) == []  # the names of its ends stand nowhere else


def test_long_names_of_the_ends_stand_in_several_rows() -> None:
    names = "a run whose name says all of its settings", "runs/b"
    line = make_grid(kind="line", y=np.zeros(1), z=np.ones((1, 4)), runs=names, run_lengths=(1, 1), **ENDS)
    axes = figure_for().subplots()
    draw_curve(axes, line, scale_for(line.z))
    first, *_, last = (label.get_text() for label in axes.get_xticklabels())
    assert first == "0\na run whose name says all of\nits settings"
    assert last == "1\nruns/b"


@pytest.mark.parametrize("kind", ["joint", "triangle", "line"])
def test_a_name_is_no_formula(kind: str) -> None:
    names = "lr=$\\frac{$", "$", "$HOME"
    if kind == "line":
        grid = make_grid(
            kind=kind, y=np.zeros(1), z=np.ones((1, 4)), runs=names[:2], run_lengths=(1, 1), **ENDS
        )
    else:
        grid = make_grid(kind=kind, runs=names, run_lengths=(1, 1, 1))
    for picture in ("contour", "surface") if kind != "line" else ("contour",):
        assert draw(grid, picture)


def every_legend(figure: Figure) -> list[Any]:
    of_figures = [legend for part in (figure, *figure.subfigs) for legend in part.legends]
    return of_figures + [axes.get_legend() for axes in figure.axes if axes.get_legend()]


@pytest.mark.parametrize("kind", ["contour", "surface", "curve", "joint"])
def test_no_legend_lies_over_an_axes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), saved(self, *a, **k)))
    grid = make_grid(**MARKED)
    if kind == "curve":
        grid = make_grid(
            y=np.zeros(1), z=np.array([[2.0, 4.0, 3.0, 1.0]]), kind="line", numbers=(1, 9), **ENDS
        )
    elif kind == "joint":
        grid = make_grid(kind="joint", runs=("a run with a long name", "another"), run_lengths=(1, 2))
    draw(grid, "surface" if kind == "surface" else "contour")
    [figure] = drawn
    legends = every_legend(figure)
    assert len(legends) == 1 + (kind != "curve")  # of the picture, and of the losses next to it
    below = [part._supxlabel for part in (figure, *figure.subfigs)]
    notes_below = [text for text in below if text is not None and text.get_text()]
    assert len(notes_below) == (kind in ("contour", "surface"))
    for legend in legends:
        box = legend.get_window_extent()
        for axes in figure.axes:
            if axes.name != "3d":  # whose box is the picture's, empty corners and all
                assert not box.overlaps(axes.get_window_extent())
        for text in notes_below:
            assert not box.overlaps(text.get_window_extent())


def test_a_picture_says_what_was_not_computed_and_what_is_rounding() -> None:
    assert notes(make_grid()) == []
    assert notes(make_grid(**MARKED)) == [
        "3 of 12 points computed, the others interpolated",
        "along direction 2, 23 % of the weights move less from point to point than their number format can "
        "hold: that part is rounding",
    ]
    some = np.arange(2601).reshape(51, 51) < 1204
    large = make_grid(x=np.arange(51.0), y=np.arange(51.0), z=np.ones((51, 51)), computed=some)
    assert notes(large) == ["1,204 of 2,601 points computed, the others interpolated"]
    z = np.where(np.eye(3, 4) > 0, np.nan, 1.0)
    missing = make_grid(z=z, computed=np.isfinite(z), is_partial=True)
    assert notes(missing) == ["9 of 12 points computed, the others missing"]
    first_row = np.arange(12).reshape(3, 4) < 4
    assert notes(make_grid(z=z, computed=first_row, is_partial=True)) == [
        "4 of 12 points computed, 6 interpolated, 2 missing",
        "losses not finite: 1",
    ]
    assert notes(make_grid(z=z, rounding={"x": 0.1, "y": 0.05})) == ["losses not finite: 3"]


ONE_ROW = np.repeat([[True], [False], [False]], 4, axis=1)


def partial_grid(**changes: Any) -> LossGrid:
    """Stopped after the first of its three rows, a loss of which is infinite."""
    z = np.where(ONE_ROW, [0.0, 1.0, np.inf, 3.0], np.nan)
    return make_grid(**{"z": z, "computed": ONE_ROW, "is_partial": True} | changes)


def test_a_picture_reports_losses_that_are_not_finite_from_those_not_computed() -> None:
    reported = {"not computed", "loss not finite"}
    whole = partial_grid(is_partial=False)  # by refinement, which computes nothing where all is infinite
    row = {"x": np.arange(4.0), "y": np.zeros(1), "z": np.array([[1.0, np.inf, 2.0, np.nan]]), **ENDS}
    line = make_grid(**row, computed=np.arange(4)[None] < 3, is_partial=True, kind="line", numbers=(1, 9))
    for grid, expected in (
        (partial_grid(), reported),
        (line, reported),
        (whole, {"loss not finite"}),
        (partial_grid(z=np.ones((3, 4))), set()),
    ):
        figure = grid.plot()
        assert figure is not None
        found = {text.get_text() for legend in every_legend(figure) for text in legend.get_texts()}
        assert found & reported == expected
        assert not any("barrier" in text for text in found)
        is_hatched = any(patch.get_hatch() for axes in figure.axes for patch in (axes.patch, *axes.patches))
        assert is_hatched == ("not computed" in expected)


@pytest.mark.parametrize("lost", [np.nan, np.inf, None])
def test_the_legend_reports_of_grey_checkpoints_where_there_are_some(lost: float | None) -> None:
    figure = figure_for()
    grid = make_grid(**ENDS | {"true_loss": np.array([2.0 if lost is None else lost, 1.0])})
    draw_contours(figure, grid, scale_for(grid.z))
    entries = [text.get_text() for legend in every_legend(figure) for text in legend.get_texts()]
    assert ("checkpoint: true loss not finite" in entries) == (lost is not None)


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_losses_that_no_cell_shows_are_dots(kind: str) -> None:
    figure = figure_for()
    grid = partial_grid()
    (draw_contours if kind == "contour" else draw_surface)(figure, grid, scale_for(grid.z))
    axes = figure.axes[0]
    if kind == "contour":
        assert axes.collections[-1].get_offsets().tolist() == [[grid.x[j], grid.y[0]] for j in (0, 1, 3)]
    else:
        squares = [line.get_data_3d() for line in axes.lines if line.get_marker() == "s"]
        assert [float(z) for _, _, [z] in squares] == [0, 1, 3]


def test_the_axes_of_a_hessian_plane_say_their_eigenvalues() -> None:
    grid = random_grid(kind="hessian", eigenvalues=(30.5, 1.25))
    figure = figure_for()
    draw_contours(figure, grid, scale_for(grid.z))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "direction 1 (eigenvalue 30.5)"
    assert axes.get_ylabel() == "direction 2 (eigenvalue 1.25)"
    assert title(grid) == "around epoch 9, the Hessian's two largest eigenvalues"
    assert "eigenvalues 30.5, 1.25" in plane_lines(grid)


def test_losses_residuals_and_explained_variance_are_printed() -> None:
    assert checkpoint_lines(make_grid()) == [
        "   epoch   true loss    in plane  outside",
        "       1         3.5           3    10.0%",
        "       5        2.25           2    20.0%",
        "       9           1           1     0.0%",
    ]
    assert "explained variance 80.0% + 15.0% = 95.0%" in plane_lines(make_grid())
    long = checkpoint_lines(long_grid())
    assert len(long) == 14
    assert (long[1].split()[0], long[-2].split()[0], long[-1]) == ("0", "199", "12 of 200 checkpoints")
    assert not any("variance" in line for line in plane_lines(random_grid()))
    thirteen = make_grid(
        numbers=tuple(range(13)), path=np.zeros((13, 2)), path_loss=np.ones(13), true_loss=np.ones(13),
        residuals=np.zeros(13),
    )  # fmt: skip
    assert [line.split()[0] for line in checkpoint_lines(thirteen)[1:]] == [str(k) for k in range(13)]


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_the_suffix_names_the_format_of_the_picture(tmp_path: Path, name: str, begins: bytes) -> None:
    random_grid().plot(tmp_path / name, kind="surface")
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_without_a_path_the_figure_is_returned_and_pyplot_does_not_know_it() -> None:
    grid, before = make_grid(), plt.get_fignums()
    assert isinstance(grid.plot(kind="surface"), Figure)
    assert plt.get_fignums() == before
    with pytest.raises(InvalidValueError, match=r"kind must be one of.*contour.*surface"):
        grid.plot(kind="heat")


def test_a_notebook_shows_a_grid_and_its_figure_without_pyplot(hide_package: Callable[[str], None]) -> None:
    grid = make_grid()
    figure: Any = grid.plot()  # Any: notebooks ask for the method, not for a type
    assert figure._repr_png_() == grid._repr_png_() == draw(grid)
    hide_package("matplotlib")
    assert grid._repr_png_() is None
    with pytest.raises(MissingExtraError, match="pip install matplotlib"):
        grid.plot()


def test_a_figure_goes_to_another_process() -> None:
    figure = pickle.loads(pickle.dumps(make_grid().plot()))
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_drawing_leaves_matplotlibs_state_alone(tmp_path: Path) -> None:
    before = (matplotlib.get_backend(), plt.get_fignums(), dict(matplotlib.rcParams))
    make_grid().plot(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 10_000
    assert (matplotlib.get_backend(), plt.get_fignums(), dict(matplotlib.rcParams)) == before


def test_a_surface_names_the_corners_of_its_triangle() -> None:
    corners = make_grid(kind="triangle", runs=("a", "b", "c"), run_lengths=(1, 1, 1))
    lost = np.array([np.nan, 2.0, 1.0])
    for grid, expected in ((corners, ["a", "b", "c"]), (replace(corners, true_loss=lost), ["b", "c"])):
        figure = grid.plot(kind="surface")
        assert figure is not None
        assert [text.get_text().strip() for text in figure.axes[0].texts] == expected


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_the_fonts_of_a_pdf_are_such_as_papers_may_have(kind: str) -> None:
    check_fonts(draw(make_grid(), kind, "pdf"))


def test_the_fonts_are_those_in_a_pdf_that_the_user_saves_too(tmp_path: Path) -> None:
    figure = random_grid().plot()
    assert figure is not None
    figure.savefig(tmp_path / "figure.pdf")
    check_fonts((tmp_path / "figure.pdf").read_bytes())


def check_fonts(pdf: bytes) -> None:
    assert b"/Type42" in pdf or b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf

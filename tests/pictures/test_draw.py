"""Pictures of grids: whatever the losses are there is one, and what is on it is what the grid says."""

import pickle
import struct
from collections.abc import Callable
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
from distsummary.landscapes.output.draw import draw, notes, title
from distsummary.landscapes.output.panels import EDGES, draw_contours, draw_curve, draw_losses, draw_surface
from distsummary.landscapes.output.scale import scale_for
from tests.unit.landscapes.test_grid import make_grid, random_grid

ENDS: dict[str, Any] = {
    "path": np.array([[-1.0, 0.0], [0.0, 0.0]]),
    "path_loss": np.array([2.0, 1.0]),
    "true_loss": np.array([2.0, 1.0]),
    "residuals": np.zeros(2),
}
LONG = "resnet20-cifar10_lr0.1_momentum0.9_weight-decay5e-4_seed"
MARKED: dict[str, Any] = {"computed": np.eye(3, 4) > 0, "rounding": {"x": 0.0, "y": 0.226}}


@pytest.mark.parametrize("kind", ["contour", "surface", "curve"])
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


@pytest.mark.parametrize("draw_panel", [draw_contours, draw_surface])
def test_the_path_has_a_gap_where_checkpoints_are_missing(draw_panel: Callable[..., None]) -> None:
    numbers = (1, 2, 3, 40, 41, 90)
    along = np.linspace(-0.9, 0.0, 6)
    losses = np.linspace(3.0, 1.0, 6)
    grid = make_grid(
        numbers=numbers, path=np.stack([along, along], axis=1), path_loss=losses, true_loss=losses,
        residuals=np.zeros(6),
    )  # fmt: skip
    figure = figure_for()
    draw_panel(figure, grid, scale_for(grid.z))
    lines = [line for line in figure.axes[0].lines if line.get_linewidth() == 1.4]
    assert [len(line.get_data()[0]) for line in lines] == [3, 2]
    assert [line.get_label() for line in lines][:1] == ["path of the training"]


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
        assert draw(grid, "contour") == draw(grid, "curve")
        figure = figure_for()
        draw_curve(figure, grid, scale_for(grid.z))
        [axes] = figure.axes
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.where(np.isfinite(z), z, np.nan)[0])


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
    names = [text.get_text() for text in axes.texts if text.get_position() != (0, 0)]
    assert "start, epoch 1" in names
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[-1] == "end, epoch 9: true loss 1, in the plane 1"


def test_lines_have_the_losses_of_the_ticks_of_the_colour_bar() -> None:
    grid = make_grid()
    figure = figure_for()
    scale = scale_for(grid.z)
    draw_contours(figure, grid, scale)
    numbers = {text.get_text() for text in figure.axes[0].texts} - {"start, epoch 1"}
    assert numbers
    assert numbers <= {f"{loss:g}" for loss in scale.ticks(9)}


def test_on_the_surface_the_path_is_at_its_losses_in_the_plane_and_lines_lead_to_the_true_ones() -> None:
    grid = make_grid()
    figure = figure_for()
    draw_surface(figure, grid, scale_for(grid.z))
    lines = [np.array(line.get_data_3d()) for line in figure.axes[0].lines]
    np.testing.assert_array_equal(lines[0].T, np.column_stack((grid.path, grid.path_loss)))
    assert [text.get_text().strip() for text in figure.axes[0].texts] == ["start, epoch 1"]
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
    assert {text.get_text() for text in figure.axes[0].texts} >= {"sgd", "5", "9"}
    np.testing.assert_array_equal(named["adam"], joint.path[1:])
    assert title(joint) == "joint PCA plane of sgd, adam"
    assert title(make_grid()) == "epochs 1 to 9, PCA plane"
    assert title(make_grid(mode="mindspore")) == "epochs 1 to 9, PCA plane (mindspore)"


def test_a_line_says_the_share_of_the_way_and_its_barrier() -> None:
    line = make_grid(
        kind="line", x=np.linspace(-1, 0, 4), y=np.zeros(1), z=np.array([[2.0, 4.0, 3.0, 1.0]]),
        numbers=(1, 9), path=np.array([[-1.0, 0.0], [0.0, 0.0]]), path_loss=np.array([2.0, 1.0]),
        true_loss=np.array([2.0, 1.0]), residuals=np.zeros(2), explained_variance=np.empty(0),
    )  # fmt: skip
    figure = figure_for()
    draw_curve(figure, line, scale_for(line.z))
    [axes] = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0, 1 / 3, 2 / 3, 1])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "straight between the ends; barrier 2.333" in labels
    assert axes.get_xlabel() == "share of the way"
    assert title(line) == "from epoch 1 to epoch 9, straight"
    ticks = dict(zip(axes.get_xticks(), [label.get_text() for label in axes.get_xticklabels()], strict=True))
    assert (ticks[0.0], ticks[0.4], ticks[1.0]) == ("0\nepoch 1", "0.4", "1\nepoch 9")
    assert list(axes.texts) == []  # the names of its ends stand nowhere else


def test_long_names_of_the_ends_stand_in_several_rows() -> None:
    names = "a run whose name says all of its settings", "runs/b"
    line = make_grid(kind="line", y=np.zeros(1), z=np.ones((1, 4)), runs=names, run_lengths=(1, 1), **ENDS)
    figure = figure_for()
    draw_curve(figure, line, scale_for(line.z))
    first, *_, last = (label.get_text() for label in figure.axes[0].get_xticklabels())
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
    for picture in ("contour", "surface", "curve"):
        assert draw(grid, picture)


@pytest.mark.parametrize("kind", ["contour", "surface", "curve", "line", "joint"])
def test_no_legend_lies_over_an_axes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), saved(self, *a, **k)))
    grid = make_grid(**MARKED)
    if kind == "line":
        grid = make_grid(
            y=np.zeros(1), z=np.array([[2.0, 4.0, 3.0, 1.0]]), kind="line", numbers=(1, 9), **ENDS
        )
    elif kind == "joint":
        grid = make_grid(kind="joint", runs=("a run with a long name", "another"), run_lengths=(1, 2))
    draw(grid, kind if kind in ("surface", "curve") else "contour")
    [figure] = drawn
    [legend] = figure.legends
    for axes in figure.axes:
        if axes.name != "3d":  # whose box is the picture's, empty corners and all
            assert not legend.get_window_extent().overlaps(axes.get_window_extent())


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
    for grid, expected in (
        (partial_grid(), reported),
        (whole, {"loss not finite"}),
        (partial_grid(z=np.ones((3, 4))), set()),
    ):
        figure = grid.plot()
        found = {text.get_text() for text in figure.legends[0].get_texts()}
        assert found & reported == expected
        is_hatched = any(patch.get_hatch() for axes in figure.axes for patch in (axes.patch, *axes.patches))
        assert is_hatched == ("not computed" in expected)


def test_a_line_with_gaps_says_so_below_its_title_and_has_no_barrier() -> None:
    row = {"x": np.arange(4.0), "y": np.zeros(1), "z": np.array([[1.0, np.inf, 2.0, np.nan]]), **ENDS}
    line = make_grid(**row, computed=np.arange(4)[None] < 3, is_partial=True, kind="line", numbers=(1, 9))
    figure = line.plot()
    said = figure.axes[0].get_title().splitlines()[1:]
    assert said == ["3 of 4 points computed, the others missing", "losses not finite: 1"]
    assert not any("barrier" in text.get_text() for text in figure.legends[0].get_texts())


@pytest.mark.parametrize("lost", [np.nan, np.inf, None])
def test_the_legend_reports_of_grey_checkpoints_where_there_are_some(lost: float | None) -> None:
    figure = figure_for()
    grid = make_grid(**ENDS | {"true_loss": np.array([2.0 if lost is None else lost, 1.0])})
    draw_contours(figure, grid, scale_for(grid.z))
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("checkpoint: true loss not finite" in entries) == (lost is not None)


def test_the_axes_of_a_hessian_plane_say_their_eigenvalues() -> None:
    grid = random_grid(kind="hessian", eigenvalues=(30.5, 1.25))
    figure = figure_for()
    draw_contours(figure, grid, scale_for(grid.z))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "direction 1 (eigenvalue 30.5)"
    assert axes.get_ylabel() == "direction 2\n(eigenvalue 1.25)"
    assert title(grid) == "around epoch 9, the Hessian's two largest eigenvalues"


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


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_the_fonts_of_a_pdf_are_such_as_papers_may_have(kind: str) -> None:
    check_fonts(draw(make_grid(), kind, "pdf"))


def check_fonts(pdf: bytes) -> None:
    assert b"/Type42" in pdf or b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.parametrize("kind", ["joint", "triangle", "line"])
def test_a_picture_of_runs_with_long_names_has_its_place_for_everything(kind: str) -> None:
    runs = ("plain", f"{LONG}1", f"{LONG}2")
    grid = make_grid(kind=kind, runs=runs, run_lengths=(1, 1, 1))
    if kind == "line":
        row = {"y": np.zeros(1), "z": np.ones((1, 4))}
        grid = make_grid(kind=kind, runs=runs[1:], run_lengths=(1, 1), **row, **ENDS)
    for shape in ("contour", "surface"):
        figure = grid.plot(kind=shape)
        figure.draw_without_rendering()  # warns where axes have no place
        for text in [*figure.texts, *figure.legends, *(figure.axes[0].texts if shape == "contour" else ())]:
            assert figure.bbox.x0 <= text.get_window_extent().x0
            assert text.get_window_extent().x1 <= figure.bbox.x1


def test_a_title_counts_runs_that_are_too_many_to_name() -> None:
    runs = tuple(f"experiment-{number}" for number in range(12))
    many = make_grid(kind="joint", runs=runs, run_lengths=(1,) * 12, path=np.zeros((12, 2)))
    assert title(many) == "joint PCA plane of 12 runs"


def test_ticks_of_losses_that_differ_little_differ() -> None:
    grid = make_grid(z=2.3026 + 1e-5 * make_grid().z)
    figure = grid.plot()
    [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    labels = [label.get_text() for label in bar.get_yticklabels()]
    assert len(set(labels)) == len(labels) > 2
    assert labels[0] == "2.3026"


def test_a_curve_over_many_decades_is_logarithmic() -> None:
    for top, expected in ((1e12, "log"), (4.0, "linear")):
        row = make_grid(y=np.zeros(1), z=np.array([[1.0, 2.0, top, 1.0]]), **(ENDS | {"numbers": (1, 9)}))
        figure = figure_for()
        draw_curve(figure, row, scale_for(row.z, row.path_loss, row.true_loss))
        [axes] = figure.axes
        assert axes.get_yscale() == expected
        straight = next(line for line in axes.lines if line.get_linestyle() == ":")
        way, losses = straight.get_data()
        np.testing.assert_allclose(losses, np.interp(way, row.path[:, 0], row.path_loss))
        assert len(way) > 100


def test_the_curve_of_the_checkpoints_is_logarithmic_where_the_contours_are() -> None:
    fall = np.array([10.0, 3.0, 1.0])
    flat = 1.0 + make_grid().z / 23
    for z, losses, expected in ((flat, fall, "log"), (flat, np.array([2.0, 1.5, 1.0]), "linear")):
        grid = make_grid(z=z, true_loss=losses, path_loss=losses)
        scale = scale_for(grid.z, grid.path_loss, grid.true_loss)
        figure = figure_for()
        draw_losses(figure, grid, scale)
        assert (figure.axes[0].get_yscale(), scale.stretch) == (expected, expected)


def test_names_stand_within_the_axes() -> None:
    path = np.array([[-0.7, 1.4], [0.7, 1.4], [0.7, -1.4]])  # with the margin of every path
    runs = ("first-of-the-runs", "another-long-name", "the-last-of-all-of-them")
    figure = make_grid(kind="triangle", runs=runs, run_lengths=(1, 1, 1), path=path).plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    left, bottom, right, top = axes.bbox.extents
    for box in (text.get_window_extent() for text in axes.texts):
        assert left <= box.x0 < box.x1 <= right
        assert bottom <= box.y0 < box.y1 <= top


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_where_no_loss_is_finite_no_scale_says_any(kind: str) -> None:
    lost = np.full((3, 4), np.nan)
    figure = make_grid(z=lost, path_loss=lost[0, :3], true_loss=lost[0, :3]).plot(kind=kind)
    assert [axes for axes in figure.axes if axes.get_label() == "<colorbar>"] == []
    assert kind != "surface" or list(figure.axes[0].get_zticks()) == []
    figure = make_grid(z=lost, path_loss=lost[0, :3], true_loss=np.array([8.0, np.inf, 6.0])).plot(kind=kind)
    [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    labels = [label.get_text() for label in bar.get_yticklabels()]
    assert (labels[0], labels[-1]) == ("6", "8"), "those of the checkpoints"


def test_a_curve_without_a_finite_loss_has_no_scale() -> None:
    lost = np.full((3, 4), np.nan)
    figure = make_grid(z=lost, path_loss=lost[0, :3], true_loss=lost[0, :3]).plot(kind="curve")
    assert list(figure.axes[0].get_yticks()) == []


def test_an_end_of_the_bar_is_an_arrow_only_if_a_loss_is_beyond_it() -> None:
    for true, expected in (
        ([3.0, 2.0, 1.0], "neither"),
        ([90.0, 2.0, 1.0], "max"),
        ([3.0, 2.0, -1.0], "min"),
    ):
        figure = make_grid(true_loss=np.array(true)).plot()
        [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
        assert bar._colorbar.extend == expected


def test_a_picture_says_run_model_points_samples_and_what_moved() -> None:
    grid = make_grid(run="cost$5$", model="Net", lengths={"x": 1.0, "y": 12.34})
    figure: Any = grid.plot(size=(5, 4), dpi=100)
    assert figure.bbox.size.tolist() == [500, 400]
    assert figure._suptitle.get_text() == "cost\\$5\\$: epochs 1 to 9, PCA plane"
    axes = figure.axes[0]
    assert axes.get_title() == "Net, 4 x 3 points, 16 samples, all trained parameters moved"
    assert axes.get_xlabel() == "direction 1, L2 distance (80.0% of the variance)"
    assert axes.get_ylabel() == "direction 2\n(1 = L2 distance 12.3; 15.0% of the variance)"


@pytest.mark.parametrize("size", [(1, 5), (5, 90), 5, (5, "6"), (float("nan"), 5)])
def test_a_wrong_size_is_refused(size: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"size must be .* from 2 to 60 inches"):
        make_grid().plot(size=size)
    with pytest.raises(InvalidValueError, match="no path"):
        random_grid().plot(kind="curve")


def test_a_triangle_has_its_edges_and_the_names_of_its_corners() -> None:
    corners = make_grid(kind="triangle", runs=("a", "b", "c"), run_lengths=(1, 1, 1))
    contour, surface = (corners.plot(kind=kind) for kind in ("contour", "surface"))
    [edges] = [line for line in contour.axes[0].lines if line.get_label() == EDGES]
    assert edges.get_linestyle() == "--"
    assert {text.get_text() for text in contour.axes[0].texts} >= {"a", "b", "c"}
    assert {text.get_text().strip() for text in surface.axes[0].texts} == {"a", "b", "c"}

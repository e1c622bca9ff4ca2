"""What stands in a picture: names, titles, ticks and legends have their place, whatever the grid holds."""

from typing import Any

import matplotlib
import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscapes.output.draw import title
from distsummary.landscapes.output.panels import EDGES, FAINT, draw_contours, draw_curve, draw_losses
from distsummary.landscapes.output.scale import scale_for
from tests.pictures.test_draw import ENDS, every_legend, figure_for
from tests.unit.landscapes.test_grid import make_grid, random_grid

LONG = "resnet20-cifar10_lr0.1_momentum0.9_weight-decay5e-4_seed"


@pytest.mark.parametrize("kind", ["joint", "triangle", "line"])
def test_a_picture_of_runs_with_long_names_has_its_place_for_everything(kind: str) -> None:
    runs = ("plain", f"{LONG}1", f"{LONG}2")
    grid = make_grid(kind=kind, runs=runs, run_lengths=(1, 1, 1))
    if kind == "line":
        row = {"y": np.zeros(1), "z": np.ones((1, 4))}
        grid = make_grid(kind=kind, runs=runs[1:], run_lengths=(1, 1), **row, **ENDS)
    for shape in ("contour", "surface"):
        figure = grid.plot(kind=shape)
        assert figure is not None
        figure.draw_without_rendering()  # warns where axes have no place
        texts = [text for part in (figure, *figure.subfigs) for text in part.texts]
        texts += [text for axes in figure.axes for text in axes.texts if axes.name != "3d"]
        boxes = [text.get_window_extent() for text in texts] + [
            legend.get_window_extent() for legend in every_legend(figure)
        ]
        for box in boxes:
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
        [headline] = (part._suptitle for part in figure.subfigs if part._suptitle is not None)
        assert headline.get_window_extent().x1 <= figure.subfigs[0].bbox.x1


def test_a_title_counts_runs_that_are_too_many_to_name() -> None:
    runs = tuple(f"experiment-{number}" for number in range(12))
    many = make_grid(kind="joint", runs=runs, run_lengths=(1,) * 12, path=np.zeros((12, 2)))
    assert title(many) == "joint PCA plane of 12 runs"


def test_what_lies_beyond_the_grid_is_not_grey() -> None:
    grid = make_grid(path=np.array([[-9.0, 9.0], [-0.4, 1.5], [0.0, 0.0]]))
    figure = figure_for()
    draw_contours(figure, grid, scale_for(grid.z))
    assert matplotlib.colors.to_hex(figure.axes[0].get_facecolor()) == "#ffffff"
    holes = make_grid(z=np.where(np.eye(3, 4) > 0, np.nan, grid.z))
    figure = figure_for()
    draw_contours(figure, holes, scale_for(holes.z))
    grey = next(part for part in figure.axes[0].collections if part.get_array() is not None)
    assert grey.get_array().mask.tolist() == [[False, False, True], [False, False, False]]


def test_ticks_of_losses_that_differ_little_differ() -> None:
    grid = make_grid(z=2.3026 + 1e-5 * make_grid().z)
    figure = grid.plot()
    assert figure is not None
    [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    labels = [label.get_text() for label in bar.get_yticklabels()]
    assert len(set(labels)) == len(labels) > 2
    assert labels[0] == "2.3026"


def test_ticks_of_a_surface_stand_apart_below_a_checkpoint_far_above_it() -> None:
    grid = make_grid(z=10.0 ** (make_grid().z / 6), true_loss=np.array([1e30, 2.0, 1.0]))
    figure = grid.plot(kind="surface")
    assert figure is not None
    figure.draw_without_rendering()
    heights = figure.axes[0].get_zticks()
    low, high = figure.axes[0].get_zlim()
    assert np.diff(heights).min() > 0.04 * (high - low)


def test_the_heights_of_a_surface_over_many_decades_stand_next_to_their_axis() -> None:
    pads = []
    for z in (make_grid().z, 10.0 ** (make_grid().z - 8)):
        figure = make_grid(z=z).plot(kind="surface")
        assert figure is not None
        figure.draw_without_rendering()
        pads.append(figure.axes[0].zaxis.get_tick_params()["pad"])
        assert not {*figure.axes[0].get_xticks()} & {*figure.axes[0].get_xlim()}  # free for the other axis
    assert pads[0] < pads[1]


def test_a_curve_over_many_decades_is_logarithmic() -> None:
    for top, expected in ((1e12, "log"), (4.0, "linear")):
        row = make_grid(y=np.zeros(1), z=np.array([[1.0, 2.0, top, 1.0]]), **(ENDS | {"numbers": (1, 9)}))
        axes = figure_for().subplots()
        draw_curve(axes, row, scale_for(row.z, row.path_loss, row.true_loss))
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
        axes = figure_for().subplots()
        draw_losses(axes, grid, scale)
        assert (axes.get_yscale(), scale.stretch) == (expected, expected)


def test_losses_of_checkpoints_with_one_number_have_one_tick() -> None:
    corners = make_grid(kind="triangle", runs=("a", "b", "c"), run_lengths=(1, 1, 1), numbers=(9, 9, 9))
    axes = figure_for().subplots()
    draw_losses(axes, corners, scale_for(corners.z))
    assert axes.get_xticks().tolist() == [9]


def test_the_legend_of_the_losses_leaves_room_for_the_offset_of_the_axis() -> None:
    figure = make_grid(true_loss=1e6 + np.array([0.3, 0.2, 0.1]), path_loss=np.full(3, 1e6)).plot()
    assert figure is not None
    figure.draw_without_rendering()
    [losses] = [axes for axes in figure.axes if axes.get_legend()]
    offset = losses.yaxis.get_offset_text()
    assert offset.get_text()
    assert not losses.get_legend().get_window_extent().overlaps(offset.get_window_extent())


def test_names_of_checkpoints_cover_no_dot_and_no_other_name() -> None:
    angle = np.linspace(0, 3 * np.pi, 40)
    way = 0.2 * np.column_stack((np.cos(angle), 2 * np.sin(angle)))[::-1] * np.linspace(1, 0, 40)[:, None]
    grid = make_grid(
        numbers=tuple(range(1000, 1040)), path=way, path_loss=np.ones(40), true_loss=np.ones(40),
        residuals=np.zeros(40),
    )  # fmt: skip
    figure = grid.plot()
    assert figure is not None
    figure.draw_without_rendering()
    axes = figure.axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert (texts[0], texts[-1]) == ("1000", "1035")
    assert 4 < len(texts) < 11
    boxes = [text.get_window_extent() for text in axes.texts[:-1]]
    dots = axes.transData.transform(grid.path)
    assert not any(box.contains(*dot) for box in boxes for dot in dots)
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_names_at_the_edge_stand_within_the_axes() -> None:
    path = np.array([[-0.99, 1.99], [0.99, 1.99], [0.99, -1.99]])
    runs = ("first-of-the-runs", "another-long-name", "the-last-of-all-of-them")
    figure = make_grid(kind="triangle", runs=runs, run_lengths=(1, 1, 1), path=path).plot()
    assert figure is not None
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
    assert figure is not None
    assert [axes for axes in figure.axes if axes.get_label() == "<colorbar>"] == []
    assert kind == "contour" or list(figure.axes[0].get_zticks()) == []
    assert list(figure.axes[-2].get_yticks()) == [], "nor does that of the checkpoints"
    figure = make_grid(z=lost, path_loss=lost[0, :3], true_loss=np.array([8.0, np.inf, 6.0])).plot(kind=kind)
    assert figure is not None
    [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    labels = [label.get_text() for label in bar.get_yticklabels()]
    assert (labels[0], labels[-1]) == ("6", "8"), "those of the checkpoints"


def test_a_curve_without_a_finite_loss_has_no_scale() -> None:
    lost = np.full((1, 4), np.nan)
    figure = make_grid(
        y=np.zeros(1), z=lost, path=np.zeros((1, 2)), path_loss=lost[0, :1], true_loss=lost[0, :1]
    ).plot()
    assert figure is not None
    assert list(figure.axes[0].get_yticks()) == []


def test_a_star_behind_a_wall_is_faint() -> None:
    axis = np.linspace(-1, 1, 31)
    for z, expected in (
        (1 + np.add.outer(axis**2, axis**2), False),
        (1 + np.add.outer(axis**8, axis**8) * 9, True),
    ):
        grid = make_grid(x=axis, y=axis, z=z, computed=np.ones((31, 31), bool))
        figure = grid.plot(kind="surface")
        assert figure is not None
        [star] = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
        assert (star.get_alpha() == FAINT) is expected
        assert star.get_label().endswith("behind the surface") is expected


def test_an_end_of_the_bar_is_an_arrow_only_if_a_loss_is_beyond_it() -> None:
    for true, expected in (
        ([3.0, 2.0, 1.0], "neither"),
        ([90.0, 2.0, 1.0], "max"),
        ([3.0, 2.0, -1.0], "min"),
    ):
        figure = make_grid(true_loss=np.array(true)).plot()
        assert figure is not None
        [bar] = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
        assert bar._colorbar.extend == expected


def test_a_picture_says_run_model_points_samples_and_what_moved() -> None:
    grid = make_grid(run="cost$5$", model="Net", lengths={"x": 1.0, "y": 12.34})
    figure: Any = grid.plot(alone=True, size=(5, 4), dpi=100)
    assert figure.bbox.size.tolist() == [500, 400]
    assert figure.subfigs[0]._suptitle.get_text() == "cost\\$5\\$: epochs 1 to 9, PCA plane"
    axes = figure.axes[0]
    assert axes.get_title() == "Net, 4 x 3 points, 16 samples, all trained parameters moved"
    assert axes.get_xlabel() == "direction 1, L2 distance (80.0% of the variance)"
    assert axes.get_ylabel() == "direction 2\n(1 = L2 distance 12.3; 15.0% of the variance)"
    assert not [axes for axes in figure.axes if axes.get_legend()], "the checkpoints are left out"
    assert len(make_grid().plot(kind="checkpoints").axes) == 2


def test_a_triangle_has_its_edges() -> None:
    corners = make_grid(kind="triangle", runs=("a", "b", "c"), run_lengths=(1, 1, 1))
    for kind in ("contour", "surface"):
        figure: Any = corners.plot(kind=kind)
        [edges] = [line for line in figure.axes[0].lines if line.get_label() == EDGES]
        assert edges.get_linestyle() == "--"


@pytest.mark.parametrize("size", [(1, 5), (5, 90), 5, (5, "6"), (float("nan"), 5)])
def test_a_wrong_size_is_refused(size: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"size must be .* from 2 to 60 inches"):
        make_grid().plot(size=size)
    with pytest.raises(InvalidValueError, match="no path"):
        random_grid().plot(kind="checkpoints")

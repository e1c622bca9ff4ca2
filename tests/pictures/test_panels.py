"""What stands in a picture: names, titles, ticks and legends have their place, whatever the grid holds."""

import matplotlib
import numpy as np
import pytest

from distsummary.landscapes.output.draw import title
from distsummary.landscapes.output.panels import draw_contours, draw_curve, draw_losses
from distsummary.landscapes.output.scale import scale_for
from tests.pictures.test_draw import ENDS, every_legend, figure_for
from tests.unit.landscapes.test_grid import make_grid

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


def test_the_heights_of_a_surface_over_many_decades_stand_beside_their_axis() -> None:
    pads = []
    for z in (make_grid().z, 10.0 ** (make_grid().z - 8)):
        figure = make_grid(z=z).plot(kind="surface")
        assert figure is not None
        figure.draw_without_rendering()
        pads.append(figure.axes[0].zaxis.get_tick_params()["pad"])
        assert not {*figure.axes[0].get_xticks()} & {*figure.axes[0].get_xlim()}  # free for the other axis
    assert pads[0] < pads[1]


def test_a_curve_over_many_decades_is_logarithmic() -> None:
    for top, expected in ((1e12, "log"), (9.0, "linear")):
        row = make_grid(y=np.zeros(1), z=np.array([[1.0, 2.0, top, 1.0]]), **(ENDS | {"numbers": (1, 9)}))
        axes = figure_for().subplots()
        draw_curve(axes, row, scale_for(row.z, row.path_loss, row.true_loss))
        assert axes.get_yscale() == expected
        straight = next(line for line in axes.lines if line.get_linestyle() == ":")
        way, losses = straight.get_data()
        np.testing.assert_allclose(losses, np.interp(way, row.path[:, 0], row.path_loss))
        assert len(way) > 100


def test_losses_of_checkpoints_with_one_number_have_one_tick() -> None:
    corners = make_grid(kind="triangle", runs=("a", "b", "c"), run_lengths=(1, 1, 1), numbers=(9, 9, 9))
    axes = figure_for().subplots()
    draw_losses(axes, corners)
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

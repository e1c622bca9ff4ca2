"""Places the names of checkpoints in a picture, each next to its point where there is room."""

from collections.abc import Container
from typing import Any

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.grid import Grid

# Right or left, above or below; of equally good corners the first is taken.
CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))
DOT, STAR = 3.5, 7.0  # typographic points: half the drawn size of checkpoints and of the centre
GAP = STAR  # from a checkpoint to its name, so that the name covers no star


def place_labels(figure: Any, axes: Any, grid: Grid) -> None:
    """Move the names of checkpoints so that they cover no dot and no other name, or leave them out.

    The first and the last name and those at the ends of a run are never left out.
    """
    # Positions are final only after this.
    figure.get_layout_engine().execute(figure)
    names = list(axes.texts)
    points = axes.transData.transform(np.array([name.xy for name in names]).reshape(-1, 2))
    dots = axes.transData.transform(grid.path)
    sizes = np.array([name.get_window_extent().size for name in names]).reshape(-1, 2)
    ends = {tuple(grid.path[k]) for part in grid.parts.values() for k in (part.start, part.stop - 1)}
    always = {0, len(names) - 1} | {k for k, name in enumerate(names) if tuple(name.xy) in ends}
    point = axes.figure.dpi / 72
    left, bottom, right, top = axes.bbox.extents
    far = np.inf
    # Names must not leave the axes, so everything beyond the four sides counts as taken.
    outside = [
        (-far, -far, left, far),
        (right, -far, far, far),
        (-far, -far, far, bottom),
        (-far, top, far, far),
    ]
    taken = np.vstack((around(dots, DOT * point), around(dots[-1:], STAR * point), outside))
    found = corners_with_room(points, sizes, GAP * point, taken, always)
    for k, name in enumerate(names):
        if k not in found:
            name.remove()
            continue
        to_right, up = found[k]
        name.set(position=(GAP * to_right, GAP * up), ha="left" if to_right > 0 else "right")
        name.set_va("bottom" if up > 0 else "top")


def around(points: Array, radius: float) -> Array:
    """The bounding boxes (k, 4) of dots."""
    return np.hstack((points - radius, points + radius))


def corners_with_room(
    points: Array, sizes: Array, gap: float, taken: Array, always: Container[int]
) -> dict[int, tuple[int, int]]:
    """The corner for each point's name, by index of the point; points without room are left out.

        name |
             o point

    All in pixels: `points` and the `sizes` of names (k, 2); `taken` (t, 4), boxes to keep free, each (left,
    bottom, right, top); `gap`, the distance from a point to its name along either axis.

    A name covers nothing in `taken` and no other name. Of the free corners it gets the one farthest from
    other points and names, so that it is not read as the name of another point; distances above twice the
    gap count as equal.
    Points in `always` choose first and get a place even if there is no room. A box in `taken` that is centred
    on a point is the point's own dot, which its name may cover.
    """
    found = {}
    for k in sorted(range(len(points)), key=lambda k: k not in always):
        is_own = np.isclose(points[k] - taken[:, :2], taken[:, 2:] - points[k], atol=0.5).all(axis=1)
        others = taken[~is_own]
        boxes, room = [], []
        for corner in CORNERS:
            near = points[k] + gap * np.array(corner)
            opposite = near + sizes[k] * np.array(corner)
            box = np.concatenate((np.minimum(near, opposite), np.maximum(near, opposite)))
            apart = np.maximum(others[:, :2] - box[2:], box[:2] - others[:, 2:])
            nearest = np.hypot(*np.maximum(apart, 0).T).min(initial=np.inf)
            covers_some = bool(np.any(apart.max(axis=1) < 0))
            boxes.append(box)
            # Rounded, so that rounding errors decide nothing.
            room.append(-1.0 if covers_some else min(round(float(nearest), 1), 2 * gap))
        if max(room) >= 0 or k in always:
            best = int(np.argmax(room))
            found[k] = CORNERS[best]
            taken = np.vstack((taken, boxes[best]))
    return found

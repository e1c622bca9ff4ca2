"""Where the names of points have room beside them in a picture; pure."""

from collections.abc import Container

import numpy as np

from distsummary.landscapes.directions.recipe import Array

CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # right or left, above or below; as they are tried


def corners_with_room(
    points: Array, sizes: Array, gap: float, taken: Array, always: Container[int]
) -> dict[int, tuple[int, int]]:
    """The corner at which the name of each point stands, by index; of those without room there is none.

        name |              all in pixels: `points` and `sizes` of names (k, 2), `taken` (t, 4) boxes that
             o point        stay free (left, bottom, right, top), `gap` from point to name along either axis

    A name covers nothing that is taken and no other name. Of the corners that are free it has the one that
    is farthest from other points and names (twice the gap is far enough), or it would be read as that of
    another. Those of `always` choose first, and stand also where there is no room. A box around a point is
    its own dot.
    """
    found = {}
    for k in sorted(range(len(points)), key=lambda k: k not in always):
        boxes = [_box(points[k], sizes[k], gap, corner) for corner in CORNERS]
        others = _others(points[k], taken)
        room = [min(_distance(box, others), 2 * gap) for box in boxes]
        if max(room) >= 0 or k in always:
            corner = int(np.argmax(room))
            found[k] = CORNERS[corner]
            taken = np.vstack((taken, boxes[corner]))
    return found


def around(points: Array, radius: float) -> Array:
    """The boxes (k, 4) of dots."""
    return np.hstack((points - radius, points + radius))


def _box(point: Array, size: Array, gap: float, corner: tuple[int, int]) -> Array:
    near = point + gap * np.array(corner)
    far = near + size * np.array(corner)
    return np.concatenate((np.minimum(near, far), np.maximum(near, far)))


def _others(point: Array, taken: Array) -> Array:
    """What is taken, without the boxes whose middle is the point."""
    is_own = np.isclose(point - taken[:, :2], taken[:, 2:] - point, atol=0.5).all(axis=1)
    return np.asarray(taken[~is_own])


def _distance(box: Array, taken: Array) -> float:
    """In pixels to the nearest of what is taken, -1 where some of that is covered."""
    apart = np.maximum(taken[:, :2] - box[2:], box[:2] - taken[:, 2:])
    if np.any(apart.max(axis=1) < 0):
        return -1.0
    return round(float(np.hypot(*np.maximum(apart, 0).T).min(initial=np.inf)), 1)  # rounding chooses none

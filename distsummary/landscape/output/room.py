"""Where the names of points have room beside them in a picture; pure."""

from collections.abc import Container

import numpy as np

from distsummary.landscape.directions.recipe import Array

CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # right or left, above or below; as they are tried


def corners_with_room(
    points: Array, sizes: Array, gap: float, taken: Array, always: Container[int]
) -> dict[int, tuple[int, int]]:
    """The corner at which the name of each point stands, by index; of those without room there is none.

        name |              all in pixels: `points` and `sizes` of names (k, 2), `taken` (t, 4) boxes that
             o point        stay free (left, bottom, right, top), `gap` from point to name along either axis

    A name covers nothing that is taken and no other name, nor stands nearer to them than to its own point
    if it need not: it would be read as another's. Those of `always` choose first, and stand also
    where there is no room.
    """
    found = {}
    for k in sorted(range(len(points)), key=lambda k: k not in always):
        boxes = [_box(points[k], sizes[k], gap, corner) for corner in CORNERS]
        room = [min(_distance(box, taken), gap) for box in boxes]
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


def _distance(box: Array, taken: Array) -> float:
    """To the nearest of what is taken, along the axis in which that is farther off; negative if covered."""
    apart = np.maximum(taken[:, :2] - box[2:], box[:2] - taken[:, 2:]).max(axis=1)
    return round(float(apart.min(initial=np.inf)), 1)  # in pixels: rounding must not choose the corner

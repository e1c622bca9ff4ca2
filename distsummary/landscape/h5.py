"""A loss grid as HDF5 (.h5), in the layout of Li et al. (2018), whose plot scripts read it; pure.

One file is their surface, direction and projection file at once:

    surface     xcoordinates (n,)  ycoordinates (m,)  train_loss (m, n)
    directions  explained_variance_ratio_ (2,), if there is one
    projection  proj_xcoord (k,)  proj_ycoord (k,), the path

`train_loss` is the loss of whatever data was given. A grid of one row is their 1-D layout: no ycoordinates,
train_loss (n,), and train_acc (n,) all NaN, because plot_1D.py wants one. Ours are checkpoints, path_loss,
true_loss and residuals, each (k,), steps (s,) and step_path (s, 2), known by sketches, and the attribute
`distsummary`: the other fields of the grid as JSON. Losses that are not finite stay what they are.
"""

import importlib
import io
import json
from typing import Any

import numpy as np

from distsummary.errors import MissingExtraError
from distsummary.landscape.grid import LossGrid


def to_h5(grid: LossGrid) -> bytes:
    """The file; raises MissingExtraError without h5py."""
    try:
        h5py: Any = importlib.import_module("h5py")  # Any: it has no types
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "HDF5 files need h5py; run: pip install 'distsummary[h5]', or save as .npz", name="h5py"
        ) from error
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in _arrays(grid).items():
            file[name] = values
        file.attrs["distsummary"] = json.dumps(grid.meta())
    return buffer.getvalue()


def _arrays(grid: LossGrid) -> dict[str, Any]:
    """The datasets by name."""
    if len(grid.y) == 1:
        losses = grid.z[0]
        surface = {"train_loss": losses, "train_acc": np.full(losses.shape, np.nan)}
    else:
        surface = {"ycoordinates": grid.y, "train_loss": grid.z}
    path = {
        "proj_xcoord": grid.path[:, 0],
        "proj_ycoord": grid.path[:, 1],
        "checkpoints": np.array(grid.numbers, np.int64),
        "path_loss": grid.path_loss,
        "true_loss": grid.true_loss,
        "residuals": grid.residuals,
    }
    if grid.explained_variance.size:
        path["explained_variance_ratio_"] = grid.explained_variance
    if grid.steps:
        path |= {"steps": np.array(grid.steps, np.int64), "step_path": grid.step_path}
    return {"xcoordinates": grid.x, **surface, **path}

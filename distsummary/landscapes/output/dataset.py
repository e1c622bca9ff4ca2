"""A loss grid as an xarray Dataset, from which other programs get what they read (netCDF, HDF5, Zarr)."""

import json
from typing import TYPE_CHECKING

from distsummary.base.extras import extra
from distsummary.landscapes.output.grid import Grid

if TYPE_CHECKING:
    import xarray


def to_dataset(grid: Grid) -> "xarray.Dataset":
    """The grid's arrays with names and axes; raises MissingExtraError if xarray is not installed.

    Dimensions: y and x of the plane; checkpoint, the steps or epochs of the path; step, those between
    checkpoints. In the plane are loss, computed and all quantities; along checkpoint and step the coordinates
    path_x, path_y, step_x, step_y, and path_loss, true_loss, residual. The attribute `distsummary` has the
    other fields of the grid as JSON.
    """
    xarray = extra("an xarray Dataset", "xarray")
    plane, along = ("y", "x"), ("checkpoint",)
    values = {
        "loss": (plane, grid.z),
        "computed": (plane, grid.computed),
        **{name: (plane, array) for name, array in grid.quantities.items()},
        "path_x": (along, grid.path[:, 0]),
        "path_y": (along, grid.path[:, 1]),
        "path_loss": (along, grid.path_loss),
        "true_loss": (along, grid.true_loss),
        "residual": (along, grid.residuals),
        "step_x": (("step",), grid.step_path[:, 0]),
        "step_y": (("step",), grid.step_path[:, 1]),
    }
    axes = {"y": grid.y, "x": grid.x, "checkpoint": [*grid.numbers], "step": [*grid.steps]}
    return xarray.Dataset(values, axes, {"distsummary": json.dumps(grid.meta())})

"""A loss grid as HDF5 (.h5) in the layout that the plot scripts of Li et al. (2018) read. Pure functions.

Their scripts use a surface, a direction and a projection file; this one file holds the contents of all:

    surface     xcoordinates (n,)  ycoordinates (m,)  train_loss (m, n)  train_acc (m, n), if computed
                test_loss (m, n)  test_acc (m, n), if there is a data set "test"
    directions  explained_variance_ratio_ (2,), if known
    projection  proj_xcoord (k,)  proj_ycoord (k,), the path

train_* and test_* come from the user's data called "train" and "test". If none is called "train",
`train_loss` is the grid's loss. The quantity "accuracy" becomes `train_acc` and `test_acc`, in percent as in
Li et al.'s evaluation.py: if no value is above 1, the values are multiplied by 100. A grid of one row has
the layout of their 1-D plots: no ycoordinates, arrays (n,), and NaN in place of an accuracy that was not
computed, because plot_1D.py needs an accuracy for each loss.

The file also has the HDF5 data sets checkpoints, path_loss, true_loss and residuals, each (k,), and computed
(m, n); steps (s,) and step_path (s, 2), if the grid has them; and the group `quantities` with all quantities,
each (m, n). The attribute `distsummary` holds the other fields of the grid as JSON. HDF5 splits names at
slashes, so in the names within `quantities` "%" is written as "%25" and "/" as "%2F"; the attribute `name` of
each has the original name. Numbers that are not finite are kept.
"""

import io
import json

import numpy as np

from distsummary.extras import extra
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.grid import Grid, finite_bounds

QUANTITIES = "quantities"
ACCURACY = "accuracy"  # the quantity that becomes train_acc and test_acc


def to_h5(grid: Grid) -> bytes:
    """The bytes of the file; raises MissingExtraError if h5py is not installed."""
    h5py = extra("an HDF5 file", "h5py")
    surface: dict[str, Array] = {}  # losses and accuracies under Li et al.'s names
    first = grid.data_sets[0] if grid.data_sets else ""
    measured = {_named(first, "loss"): grid.z, **grid.quantities}
    for theirs, data_set in (("train", "train" if "train" in grid.data_sets else first), ("test", "test")):
        loss, accuracy = _named(data_set, "loss"), _named(data_set, ACCURACY)
        if loss in measured:
            surface[f"{theirs}_loss"] = measured[loss]
            if accuracy in measured:
                _, largest = finite_bounds(measured[accuracy])
                is_share = largest <= 1
                surface[f"{theirs}_acc"] = measured[accuracy] * 100.0 if is_share else measured[accuracy]
    if len(grid.y) == 1:
        for name in [name for name in surface if name.endswith("_loss")]:
            surface.setdefault(name.replace("_loss", "_acc"), np.full(grid.z.shape, np.nan))
        surface = {name: values[0] for name, values in surface.items()}
    else:
        surface["ycoordinates"] = grid.y
    path = {
        "proj_xcoord": grid.path[:, 0],
        "proj_ycoord": grid.path[:, 1],
        "checkpoints": np.array(grid.numbers, np.int64),
        "path_loss": grid.path_loss,
        "true_loss": grid.true_loss,
        "residuals": grid.residuals,
        "computed": grid.computed,
    }
    if grid.explained_variance.size:
        path["explained_variance_ratio_"] = grid.explained_variance
    if grid.steps:
        path |= {"steps": np.array(grid.steps, np.int64), "step_path": grid.step_path}

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in {"xcoordinates": grid.x, **surface, **path}.items():
            file[name] = values
        group = file.create_group(QUANTITIES)
        for name, values in grid.quantities.items():
            group.create_dataset(link_name(name), data=values).attrs["name"] = name
        file.attrs["distsummary"] = json.dumps(grid.meta())
    return buffer.getvalue()


def _named(data_set: str, quantity: str) -> str:
    """The name of a quantity of a data set; the data set called "" adds no prefix."""
    return f"{data_set}/{quantity}" if data_set else quantity


def link_name(name: str) -> str:
    """A name that HDF5 takes as it is: HDF5 splits names at slashes, and "." means the group itself."""
    quoted = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return {"": "%", ".": "%2E"}.get(quoted, quoted)

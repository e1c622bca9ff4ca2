"""A loss grid as NumPy archive (.npz): our own format, from which grids are loaded, and Landscaper's names.

The arrays of the grid by their names, everything else as JSON under the key `meta`. Beside them Landscaper
1.3 (`LossLandscape.load_from_npz`) finds its `loss` (m, n), NaN and Inf made finite as for viewers, since
it orders all points by loss, and `coordinates` (2, n), the axes; grids that are not square have neither.
"""

import io
import json
from typing import Any
from zipfile import BadZipFile

import numpy as np

from distsummary.errors import DamagedFileError
from distsummary.landscapes.output.grid import ARRAYS, LATER, LossGrid, finite_bounds, make_finite

FORMAT = 1
ZIP = b"PK"  # how a .npz begins
QUANTITY = "quantity:"  # before its name in the file


def to_npz(grid: LossGrid) -> bytes:
    """The file."""
    arrays = {name: getattr(grid, name) for name in ARRAYS}
    arrays |= {f"{QUANTITY}{name}": values for name, values in grid.quantities.items()}
    if len(grid.x) == len(grid.y):
        arrays["loss"] = make_finite(grid.z, finite_bounds(grid.z))
        arrays["coordinates"] = np.stack((grid.x, grid.y))
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array(json.dumps({"format": FORMAT, **grid.meta()})), **arrays)
    return buffer.getvalue()


def from_npz(data: bytes) -> LossGrid:
    """The grid that `to_npz` made the file of; raises DamagedFileError for anything else."""
    if not data.startswith(ZIP):  # NumPy would take it for a pickle, and advise to load that
        raise DamagedFileError("it is no .npz, the only format that loads; save as .npz, or compute it again")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            meta: dict[str, Any] = json.loads(str(saved["meta"]))
            arrays = {n: saved[n] for n in ARRAYS if n in saved or n not in LATER}
            measured = {n.removeprefix(QUANTITY): saved[n] for n in saved if n.startswith(QUANTITY)}
        if meta.pop("format") != FORMAT:
            raise ValueError("it was written by a newer version")
        if "centring" in meta:  # as this field was called at first
            meta["centering"] = meta.pop("centring")
        meta |= {name: tuple(value) for name, value in meta.items() if isinstance(value, list)}
        return LossGrid(**meta, **arrays, quantities=measured)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, BadZipFile) as error:
        raise DamagedFileError(f"not a saved loss grid ({error}); compute it again") from error

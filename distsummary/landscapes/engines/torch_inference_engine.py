"""The inference engine: the row engine's losses, bit for bit, with hardly more memory than a forward pass.

For each point (x, y), it writes theta + y * v + x * u (v, u: the directions) into the user's own parameters,
block by block, as MeZO does (Malladi et al. 2023). It reads theta from the checkpoint's file, or from a saved
copy of the model's own values, and draws random directions again from their seeds. So a landscape needs no
larger machine than one evaluation of the model; the price is the time to draw the directions at every point.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from distsummary.landscapes.directions.array_rows import Rows
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.directions.torch_rows import rows_on
from distsummary.landscapes.engines.torch_engines import Loaded, TorchEngine


class TorchInferenceEngine(TorchEngine):
    """See `Engine`."""

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        super().set_plane(self._loan.saved.state(centre), recipe)
        recipe = self._loan.saved.recipe(recipe)
        self._block: tuple[Any, Any] = None, None  # the block of theta that was read last: key, values
        self._plane: list[tuple[str, Tensor, Rows, list[Rows]]] = []
        for name, tensor in self._loan.moved.items():
            rows = self._remembering(name, rows_on(tensor.device, self._centre, name))
            self._plane.append((name, tensor, rows, [recipe.rows(axis, name, rows) for axis in (0, 1)]))
            self._loan.release(self._centre, name)

    def _remembering(self, name: str, rows: Rows) -> Rows:
        """`rows` with a one-block cache: the block of theta read last is reused to scale directions."""

        def read(start: int, stop: int) -> Any:
            if self._block[0] != (name, start, stop):
                self._block = (name, start, stop), rows(start, stop)
            return self._block[1]

        return replace(rows, read=read)

    def _place(self, state: Weights) -> None:
        super()._place(self._loan.saved.state(state))

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        found = []
        for x in xs:
            for name, tensor, rows, (along_x, along_y) in self._plane:
                # The order of the sums is that of the row engine, y before x, because the bits depend on it.
                steps = [(float(y), along_y), (float(x), along_x)]
                steps = [(length, along) for length, along in steps if length and not along.is_zero]
                self._loan.write(tensor, rows, steps, state=self._centre, name=name)
            self._block = None, None
            found.append(self._read_here(batches))
        return torch.stack(found, dim=1)

    def close(self) -> None:
        """See Engine; also releases the file of saved values."""
        super().close()
        self._plane, self._centre = [], {}

"""MindSpore's SummaryLandscape as a peer of the landscape benchmark; MLPs only."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import context, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Loss, Model
from mindspore.train.callback import SummaryLandscape
from peers import Own


class MindSpore(Own):
    """`SummaryLandscape._create_landscape_by_random` on the CPU in graph mode, one batch of all rows.

    It draws its own directions, so what it evaluates is read off the network.
    """

    engine = "mindspore"

    def __init__(self, path: str) -> None:
        context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
        with np.load(path) as saved:
            parts = {key: saved[key] for key in saved.files}
        meta = json.loads(str(parts["meta"]))
        if meta["model"] != "mlp":
            raise NotImplementedError("MindSpore is measured on the MLP only")
        self._network = nn.SequentialCell(
            nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 64), nn.ReLU(), nn.Dense(64, 10)
        )
        for name, parameter in zip(meta["names"], self._network.trainable_params(), strict=True):
            parameter.set_data(mindspore.Tensor(parts[f"state/{name}"]))
        self._inputs, self._labels = parts["inputs"], parts["labels"].astype(np.int32)
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self._model = Model(self._network, loss_fn=loss_fn, metrics={"Loss": Loss()})  # compiled once
        self.seen, self.losses = None, []
        self._directory = tempfile.TemporaryDirectory()
        self._landscape = self._make(Path(self._directory.name))

    def _make(self, directory: Path) -> SummaryLandscape:
        """One over a directory with the checkpoint, whose losses are noted while `seen` is a list."""
        folder = directory / "ckpt_dir"
        folder.mkdir()
        checkpoint = str(folder / "net-1_1.ckpt")
        mindspore.save_checkpoint(self._network, checkpoint)
        meta = {
            "epoch_group": {"0": [1, 2, 3]},
            "model_params_file_map": dict.fromkeys(("1", "2", "3"), checkpoint),
            "step_per_epoch": 1,
            "unit": "step",
            "num_samples": len(self._labels),
            "landscape_size": 3,
            "create_landscape": {"train": False, "result": True},
        }
        (folder / "train_metadata.json").write_text(json.dumps(meta))
        landscape = SummaryLandscape(str(directory))
        landscape._model_params_file_map = meta["model_params_file_map"]
        compute = landscape._loss_compute

        def noted(model: Any, data: Any, metrics: Any) -> Any:
            found = compute(model, data, metrics)
            if self.seen is not None:
                parameters = model.train_network.trainable_params()
                self.seen.append(np.concatenate([p.asnumpy().reshape(-1) for p in parameters]))
                self.losses.append(float(found["Loss"]))
            return found

        landscape._loss_compute = noted
        return landscape

    def _parts(self) -> tuple[Any, Any, Any, Any]:
        """What its callback_fn returns."""
        data = NumpySlicesDataset((self._inputs, self._labels), shuffle=False).batch(len(self._labels))
        return self._model, self._network, data, {"Loss": Loss()}

    def grid(self, steps: int) -> None:
        """See Own."""
        with contextlib.redirect_stdout(io.StringIO()):  # it prints every point
            self._landscape._create_landscape_by_random([1], 0.2, steps, [0], self._parts, None)

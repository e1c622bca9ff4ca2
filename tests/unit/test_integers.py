"""Integers that are not Python's int, where users pass them: a step read back, a size computed by NumPy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.model.metrics_of_classes import ConfusionMatrix
from distsummary.rundir import topology

FIVE = np.int64(5)


def trained(path: Path, **options: object) -> list[int]:
    with ds.init(path, quiet=True, system_metrics=False, aggregate=False, **options) as run:
        for _ in run.steps(range(4), accumulate=np.uint8(2)):
            run.log(loss=1.0)
        run.log(step=np.int32(9), loss=1.0)
    assert not run.health().errors
    return ds.open_run(path).scalars("loss", rank=np.int64(0))["step"].tolist()


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, [1, 2, 9]), ({"initial_step": FIVE}, [6, 7, 9]), ({"collect_freq": FIVE}, [1, 2, 9])],
)
def test_a_run_takes_them(tmp_path: Path, options: dict[str, object], steps: list[int]) -> None:
    assert trained(tmp_path, **options) == steps


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: ds.Record(max_histograms=FIVE, tensor_freq=FIVE), "tensor_freq"),
        (lambda: ds.Record(rotate_bytes=np.int64(4096)), "rotate_bytes"),
        (lambda: ds.Diagnose(most_per_hour=FIVE), "most_per_hour"),
        (lambda: ds.Plane(size=FIVE, seed=FIVE, step_per_epoch=FIVE), "step_per_epoch"),
        (lambda: ds.Compute(workers=FIVE), "workers"),
        (lambda: ds.CheckpointConfig(save_checkpoint_steps=FIVE), "save_checkpoint_steps"),
        (lambda: EngineChoice(engine="graph", chunk=FIVE), "chunk"),
        (lambda: topology.detect(rank=np.int64(1), world_size=FIVE, environ={}), "world_size"),
    ],
)
def test_a_record_of_options_keeps_python_s_int(made: Callable[[], object], field: str) -> None:
    assert type(getattr(made(), field)) is int


def test_callbacks_metrics_and_records_take_them(tmp_path: Path) -> None:
    ds.LossMonitor(FIVE)
    ds.TimeMonitor(data_size=FIVE)
    ConfusionMatrix(FIVE)
    ds.SummaryCollector(str(tmp_path / "a"), collect_freq=FIVE, max_file_size=np.int64(1 << 20))
    with ds.SummaryRecord(str(tmp_path / "b")) as record:
        record.add_value("scalar", "loss", 1.0)
        assert record.record(FIVE)
        record.scalars(np.int16(6), {"loss": 0.5})
    assert ds.open_run(tmp_path / "b").scalars("loss")["step"].tolist() == [5, 6]

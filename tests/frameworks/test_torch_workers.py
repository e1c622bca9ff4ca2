"""A data set that holds the run, in forked workers of a DataLoader."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import distsummary as ds
from distsummary.training.forks import FORKED

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Logging(Dataset[torch.Tensor]):
    """Logs each sample that is read."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.run.log(index=index)
        self.run.image("sample", torch.zeros(1, 4, 4))
        return torch.ones(2)


def test_what_workers_log_is_counted(tmp_path):
    with ds.init(tmp_path) as run:
        for _ in run.epochs(2):
            loader = DataLoader(Logging(run), batch_size=2, num_workers=2, multiprocessing_context="fork")
            for batch in run.steps(loader):
                run.log(loss=batch.mean())
        assert run.step == 8
        assert run.health().dropped == {"scalar": 16, "image": 16}
        assert run.health().errors == {FORKED: 32}

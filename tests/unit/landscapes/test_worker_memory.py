"""What a worker takes is measured while an engine is tried."""

import numpy as np

from distsummary.landscapes.run.worker_memory import BARE_BYTES, COPIES, WorkerMemory
from tests.unit.landscapes import golden_mlp


def test_the_peak_of_the_block_counts_and_at_least_the_copies_of_an_engine() -> None:
    model, memory = golden_mlp.Mlp(), WorkerMemory()
    least = COPIES * sum(array.nbytes for array in model.parameters.values())
    with memory.measured(model):
        pass
    assert memory.nbytes >= BARE_BYTES + least
    with memory.measured(model):
        held = np.ones(64 << 20, np.uint8)
        del held
    assert memory.nbytes >= BARE_BYTES + (60 << 20)

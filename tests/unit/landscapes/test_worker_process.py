"""What runs in a worker's process, here in this one."""

from typing import Any

import numpy as np
import pytest

from distsummary.landscapes.directions.planes import Settings, prepare_random
from distsummary.landscapes.engines.chunks import plan_chunks
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.worker import LandscapeWorker
from distsummary.landscapes.model.user_code import BatchLoss
from distsummary.landscapes.run.worker_process import ChunkWorker, EngineChooser, portable_task
from tests.unit.landscapes import golden_mlp


def task(loss_fn: Any = golden_mlp.cross_entropy) -> Task:
    model = golden_mlp.Mlp()
    state = {name: array.copy() for name, array in model.parameters.items()}
    prepared = prepare_random(state, None, list(state), Settings(size=3))
    return Task(model=model, loss_fn=loss_fn, batches=golden_mlp.batches(), planes=[prepared.plane])


def test_a_chunk_worker_gives_the_bits_of_a_landscape_worker_and_leaves_the_model() -> None:
    given = portable_task(task())
    before = {name: array.tobytes() for name, array in given.model.parameters.items()}
    worker, chunks = ChunkWorker(given), plan_chunks(given.planes)
    assert worker.begin().name == "numpy-naive"
    found = worker.work(chunks)
    here = LandscapeWorker(task())
    assert [one.measured.tobytes() for one in found] == [here.evaluate(c).measured.tobytes() for c in chunks]
    assert {name: array.tobytes() for name, array in given.model.parameters.items()} == before


def test_what_is_done_before_a_chunk_that_raises_is_returned_and_then_it_raises() -> None:
    at = float(golden_mlp.Mlp().parameters["d1.weight"][0, 0])

    def loss(model: Any, batch: Any) -> float:
        if model.parameters["d1.weight"][0, 0] > at:
            raise ZeroDivisionError
        return 1.0

    worker = ChunkWorker(task(BatchLoss(loss)))
    worker.begin()
    chunks = plan_chunks(task().planes)
    done = worker.work(chunks)
    assert 0 < len(done) < len(chunks)
    assert all(np.all(one.measured == 1.0) for one in done)
    with pytest.raises(ZeroDivisionError):
        worker.work(chunks[len(done) :])


def test_the_engine_of_a_numpy_model_is_the_naive_one() -> None:
    assert EngineChooser(task()).begin().engine == "naive"

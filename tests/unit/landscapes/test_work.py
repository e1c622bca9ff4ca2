"""Jobs are handed out, come back from dead workers, and their results are put together."""

import numpy as np
import pytest

from distsummary.errors import LandscapeError
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.worker import ChunkResult
from distsummary.landscapes.run.scheduler import Scheduler
from distsummary.landscapes.run.work import ChunkWork, ProductWork
from distsummary.landscapes.run.worker_failures import ChunkFailedError


def test_a_product_is_summed_in_the_order_of_its_groups_whoever_makes_which() -> None:
    parts = [np.array([value]) for value in (1e16, 1.0, -1e16, 1.0)]
    totals = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        work = ProductWork("sent", 4)
        jobs = [work.next_job(f"worker-{n % 2}", 2) for n in range(4)]
        assert jobs == [("sent", group) for group in range(4)]
        assert work.next_job("worker-0", 2) is None
        for group in order:
            assert not work.is_finished
            work.done(f"worker-{group % 2}", ("sent", group), parts[group])
        assert work.is_finished
        totals.append(work.total().tobytes())
    assert totals[0] == totals[1] == (((parts[0] + parts[1]) + parts[2]) + parts[3]).tobytes()


def test_groups_of_a_dead_worker_are_handed_out_again_in_their_order() -> None:
    work = ProductWork("sent", 3)
    for _ in range(2):
        work.next_job("dead", 2)
    work.done("dead", ("sent", 0), np.zeros(1))
    work.lost("dead", was_at_it=True)
    work.lost("never seen", was_at_it=True)
    assert [work.next_job("other", 1) for _ in range(3)] == [("sent", 1), ("sent", 2), None]


def test_what_the_users_code_raises_is_reported_with_what_was_computed() -> None:
    error = ZeroDivisionError("no")
    assert "ZeroDivisionError: no in a product" in str(ProductWork("sent", 1).failure(("sent", 0), error))
    assert isinstance(ProductWork("sent", 1).failure(("sent", 0), error), LandscapeError)
    chunk = Chunk(plane=0, kind="grid", row=0, columns=(0,))
    failed = ChunkWork(Scheduler([chunk]), lambda *_: 1, lambda *_: None).failure(((chunk,),), error)
    assert isinstance(failed, ChunkFailedError)
    assert (failed.chunk, failed.cause) == (chunk, error)


def test_chunks_that_did_not_come_are_what_is_left_of_the_job() -> None:
    chunks = [Chunk(plane=0, kind="grid", row=row, columns=(0,)) for row in range(3)]
    scheduler = Scheduler(chunks)
    kept: list[Chunk] = []

    def keep(worker: str, chunk: Chunk, result: ChunkResult) -> None:
        kept.append(chunk)
        scheduler.done(worker, chunk, result.measured)

    work = ChunkWork(scheduler, lambda waiting, workers: waiting // workers, keep)
    job = work.next_job("a", 1)
    assert job == (chunks,)
    result = ChunkResult(values=np.zeros(1), seconds=0.1, measured=np.zeros((1, 1)))
    assert work.done("a", job, [result]) == (chunks[1:],)
    assert work.done("a", (chunks[1:],), [result, result]) is None
    assert kept == chunks
    assert work.is_finished


@pytest.mark.parametrize("was_at_it", [True, False])
def test_only_a_worker_that_was_at_its_chunks_makes_them_suspects(was_at_it: bool) -> None:
    chunks = [Chunk(plane=0, kind="grid", row=row, columns=(0,)) for row in range(2)]
    scheduler = Scheduler(chunks)
    work = ChunkWork(scheduler, lambda waiting, workers: waiting, lambda *_: None)
    for _ in range(3):
        work.next_job("a", 1)
        work.lost("a", was_at_it=was_at_it)
    job = work.next_job("b", 1)
    assert job is not None
    assert len(job[0]) == (1 if was_at_it else 2)

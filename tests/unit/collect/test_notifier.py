"""What a collector reports about its batches."""

import os

import pytest

from distsummary.collect.notifier import Notifier
from distsummary.collect.rank_collector import RankCollector
from distsummary.errors import StaleAttemptError
from distsummary.events.spec import WriterSpec
from distsummary.format.digest import Digest
from distsummary.format.records import Batch, Scalars
from distsummary.format.scalar_rows import row_struct

RUN_ID = "00000000000000ab"


class Receiver:
    def __init__(self) -> None:
        self.digests: list[Digest] = []
        self.settled = 0

    def report(self, digest: Digest) -> None:
        self.digests.append(digest)

    def settle(self, timeout_s: float) -> None:
        self.settled += 1


def batch_of(first_seq: int, count: int = 2) -> Batch:
    rows = b"".join(row_struct(1).pack(0.0, seq, float(seq)) for seq in range(first_seq, first_seq + count))
    return Batch(run_id=RUN_ID, attempt=0, rank=3, first_seq=first_seq, events=[Scalars(("loss",), rows)])


def test_what_is_written_within_a_second_is_one_digest_and_the_last_one_goes_at_once():
    receiver = Receiver()
    reporting = Notifier(receiver, "train", interval_s=3600.0)
    reporting.wrote(batch_of(1), "a", 100)
    for first_seq in range(3, 21, 2):
        reporting.wrote(batch_of(first_seq), "a", 100 + first_seq)
    reporting.close()
    reporting.close()
    seqs = [(digest.first_seq, digest.last_seq) for digest in receiver.digests]
    assert 1 <= len(seqs) <= 2  # the first one may have gone alone
    assert (seqs[0][0], seqs[-1][1]) == (1, 20)
    assert receiver.digests[-1].end == 119
    assert all(len(digest.scalars) == 1 for digest in receiver.digests)
    assert receiver.settled == 1
    assert not reporting._thread.is_alive()


def test_a_notifier_continues_after_its_interval():
    receiver = Receiver()
    reporting = Notifier(receiver, "train", interval_s=0.001)
    for first_seq in (1, 3, 5):
        reporting.wrote(batch_of(first_seq), "a", first_seq)
        while not receiver.digests or receiver.digests[-1].last_seq < first_seq + 1:
            os.sched_yield()
    reporting.close()
    assert [digest.first_seq for digest in receiver.digests] == [1, 3, 5]


def test_a_collector_reports_what_is_in_which_file_and_nothing_that_was_refused(tmp_path):
    receiver = Receiver()
    collector = RankCollector(WriterSpec(directory=tmp_path, run_id=RUN_ID, rank=3, role="eval"), receiver)
    session = collector.hello().session
    collector.write(session, batch_of(1))
    with pytest.raises(StaleAttemptError):
        collector.write("another session", batch_of(3))
    collector.close()
    [digest] = receiver.digests
    [file] = tmp_path.glob("*.summary.*")
    assert (digest.role, digest.rank, digest.first_seq, digest.last_seq) == ("eval", 3, 1, 2)
    assert (digest.file, digest.end) == (file.name, file.stat().st_size)


def test_a_batch_that_was_sent_again_is_reported_without_a_place(tmp_path):
    first = RankCollector(WriterSpec(directory=tmp_path, run_id=RUN_ID, rank=3))
    first.write(first.hello().session, batch_of(1, 1))
    first.close()
    receiver = Receiver()
    collector = RankCollector(WriterSpec(directory=tmp_path, run_id=RUN_ID, rank=3), receiver)
    collector.write(collector.hello().session, batch_of(1, 3))
    collector.close()
    [digest] = receiver.digests
    assert (digest.first_seq, digest.last_seq, digest.file, digest.end) == (1, 3, "", 0)

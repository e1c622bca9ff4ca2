"""What collectors report to the aggregator while the ranks train."""

import logging
import os
import pickle
import signal

import pytest
import ray

from distsummary.aggregate import actor_listener
from distsummary.aggregate.actor_listener import ON_WAY, DigestListener
from distsummary.collect.actor_writer import RemoteWriter
from distsummary.events.async_writer import AsyncWriter
from distsummary.events.spec import WriterSpec
from distsummary.format.digest import Digest
from distsummary.format.records import Event, Value
from tests.ray.receiver import GROUP, NAME, NAMESPACE, start_receiver


def digest_of_seq(seq: int) -> Digest:
    return Digest(
        role="train", rank=0, attempt=0, run_id="0" * 16, first_seq=seq, last_seq=seq, scalars=(), bulk=()
    )


@pytest.fixture(autouse=True)
def _connected(ray_cluster):
    """Every test here needs the cluster."""


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setattr(actor_listener, "LOOK_S", 0.0)
    return DigestListener(NAME, NAMESPACE, GROUP)


def seqs(actor) -> list[int]:
    return [digest.first_seq for digest in ray.get(actor.last_seen.remote())]


def test_all_that_a_rank_records_is_reported_once_and_the_end_at_once(tmp_path):
    receiver = start_receiver()
    spec = WriterSpec(directory=str(tmp_path), interval_s=0.01, rank=2)
    writer = AsyncWriter(RemoteWriter(spec, DigestListener(NAME, NAMESPACE, GROUP)), spec)
    for step in range(200):
        writer.write(Event(step, 0.0, [Value("scalar", "loss", float(step))]))
    writer.close()
    digests = ray.get(receiver.last_seen.remote())
    assert [d.last_seq + 1 for d in digests[:-1]] == [d.first_seq for d in digests[1:]]
    assert (digests[0].first_seq, digests[-1].last_seq) == (1, 200)
    assert sum(scalars.size for d in digests for scalars in d.scalars) == 200
    assert (tmp_path / digests[-1].file).stat().st_size == digests[-1].end
    ray.kill(receiver)


def test_without_an_aggregator_digests_are_dropped_and_counted(listener):
    listener.report(digest_of_seq(1))
    listener.settle(1.0)
    assert listener.dropped == 1


def test_the_next_aggregator_is_found_and_nothing_is_printed(listener, caplog, capfd):
    listener = pickle.loads(pickle.dumps(listener))
    first = start_receiver()
    ray.get(first.pid.remote())
    listener.report(digest_of_seq(1))
    listener.settle(60.0)
    assert seqs(first) == [1]
    ray.kill(first)
    with caplog.at_level(logging.INFO):
        for seq in range(2, 20):
            listener.report(digest_of_seq(seq))
            listener.settle(60.0)
    assert listener.dropped >= 10
    second = start_receiver()
    ray.get(second.pid.remote())
    listener.report(digest_of_seq(20))
    listener.settle(60.0)
    assert seqs(second) == [20]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert "Unhandled error" not in capfd.readouterr().err
    ray.kill(second)


def test_an_aggregator_that_is_restarted_is_reported_again(listener):
    receiver = start_receiver(max_restarts=-1)
    pid = ray.get(receiver.pid.remote())
    listener.report(digest_of_seq(1))
    listener.settle(60.0)
    os.kill(pid, signal.SIGKILL)
    for seq in range(2, 1000):
        listener.report(digest_of_seq(seq))
        listener.settle(60.0)
        if seqs_or_none(receiver):
            break
    assert seqs(receiver) == [seq]
    ray.kill(receiver)


def seqs_or_none(actor) -> list[int]:
    try:
        return seqs(actor)
    except ray.exceptions.RayActorError:
        return []


def test_an_aggregator_that_hangs_is_not_sent_more_and_more(listener):
    receiver = start_receiver()
    pid = ray.get(receiver.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    for seq in range(ON_WAY + 5):
        listener.report(digest_of_seq(seq))
    listener.settle(0.01)
    assert listener.dropped == 5
    os.kill(pid, signal.SIGCONT)
    listener.settle(60.0)
    assert seqs(receiver) == list(range(ON_WAY))
    ray.kill(receiver)


def test_an_aggregator_of_another_version_that_takes_no_digests_costs_nothing(listener):
    class Old:
        def ready(self) -> None:
            pass

    old = ray.remote(Old).options(name=NAME, namespace=NAMESPACE, num_cpus=0).remote()
    ray.get(old.ready.remote())
    listener.report(digest_of_seq(1))
    listener.settle(1.0)
    assert listener.dropped == 1
    ray.kill(old)

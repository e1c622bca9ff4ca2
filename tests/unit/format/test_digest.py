"""Digests of batches."""

import pickle
from typing import Any

import numpy as np

from distsummary.format.digest import BulkName, Digest, digest_of, joined_digests
from distsummary.format.records import HPARAMS, Batch, Event, Scalars, Shard, Value
from distsummary.format.scalar_rows import events_of, row_struct

SHARD = Shard(global_shape=(4,), offset=(2,))


def packed(step: int, **numbers: float) -> Scalars:
    return Scalars(tuple(numbers), row_struct(len(numbers)).pack(100.0 + step, step, *numbers.values()))


def batch_of(*events: Event | Scalars, first_seq: int = 1) -> Batch:
    return Batch(run_id="00000000000000aa", attempt=2, rank=3, first_seq=first_seq, events=events)


def numbers_of(digest: Digest) -> list[tuple[int, float, dict[str, Any]]]:
    return [
        (event.step, event.wall_time, {value.tag: value.data for value in event.values})
        for scalars in digest.scalars
        for event in events_of(scalars)
    ]


def test_scalars_are_whole_and_bulk_values_are_named():
    rows = packed(1, loss=0.5, acc=0.25)
    mixed = Event(
        2,
        102.5,
        [
            Value("scalar", "loss", np.float32(0.5)),
            Value("histogram", "weight", np.zeros(3)),
            Value("histogram", "part", np.zeros(2), SHARD),
            Value("scalar", "count", np.array([7])),
        ],
    )
    digest = digest_of(
        batch_of(rows, mixed, Event(3, 103.0, [Value("text", "note", "hi")]), first_seq=9), "eval"
    )
    assert digest.scalars[0] is rows
    assert numbers_of(digest) == [
        (1, 101.0, {"loss": 0.5, "acc": 0.25}),
        (2, 102.5, {"loss": 0.5, "count": 7.0}),
    ]
    assert digest.bulk == (
        BulkName(2, "histogram", "weight", False, 102.5),
        BulkName(2, "histogram", "part", True, 102.5),
        BulkName(3, "text", "note", False, 103.0),
    )
    who = (digest.role, digest.rank, digest.attempt, digest.run_id, digest.first_seq, digest.last_seq)
    assert who == ("eval", 3, 2, "00000000000000aa", 9, 11)
    assert pickle.loads(pickle.dumps(digest)) == digest


def test_what_no_merged_run_takes_from_a_rank_is_left_out_but_keeps_its_seq():
    digest = digest_of(
        batch_of(
            Event(0, 100.0, [Value("train_lineage", "train_lineage", object())]),
            Event(1, 101.0, [Value(HPARAMS, "_hparams_/session_start_info", object())]),
            Event(1, 101.0, [Value("scalar", "bad", "no number"), Value("scalar", "good", 1)]),
            Event(2, 102.0, [Value("scalar", "bad", np.zeros(2))]),
        ),
        "train",
    )
    assert numbers_of(digest) == [(1, 101.0, {"good": 1.0})]
    assert (digest.bulk, digest.last_seq) == ((), 4)


def test_a_digest_of_scalars_is_hardly_larger_than_its_rows():
    tags = tuple(f"metric/{number}" for number in range(20))
    rows = b"".join(row_struct(20).pack(100.0 + step, step, *range(20)) for step in range(100))
    digest = digest_of(batch_of(Scalars(tags, rows)), "train")
    assert len(pickle.dumps(digest)) < len(rows) + 1000


def test_digests_that_follow_each_other_in_one_file_are_joined():
    histogram = Event(3, 103.0, [Value("histogram", "weight", np.zeros(3))])
    first = digest_of(batch_of(packed(1, loss=0.5)), "train", "a", 10)
    second = digest_of(batch_of(packed(2, loss=0.25), histogram, first_seq=2), "train", "a", 20)
    third = digest_of(batch_of(packed(4, loss=0.125, acc=0.5), first_seq=4), "train", "a", 30)
    joined, other_file, after_gap = joined_digests(
        [
            first,
            second,
            third,
            digest_of(batch_of(packed(5, loss=0.1), first_seq=5), "train", "b", 5),
            digest_of(batch_of(packed(7, loss=0.1), first_seq=7), "train", "b", 9),
        ]
    )
    assert (joined.first_seq, joined.last_seq, joined.file, joined.end) == (1, 4, "a", 30)
    assert [scalars.tags for scalars in joined.scalars] == [("loss",), ("loss", "acc")]
    assert numbers_of(joined) == numbers_of(first) + numbers_of(second) + numbers_of(third)
    assert joined.bulk == second.bulk
    assert (other_file.first_seq, after_gap.first_seq) == (5, 7)
    assert joined_digests([]) == []

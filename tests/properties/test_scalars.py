"""Thousands of scalar events, and of more tags than an encoder remembers."""

from distsummary.format.records import DIALECTS
from distsummary.format.scalar_encoder import ScalarEncoder
from tests.unit.format.test_scalar_encoder import RUN, check, rows


def test_growing_steps_and_seqs_are_sorted_out():
    table = [(1.5 + n, 5 * n, [n / 7]) for n in range(1, 4000)]
    encoder = ScalarEncoder(RUN, 3, DIALECTS)
    for first_seq in (1, 20, 16000):
        assert check(encoder, first_seq, rows(("é" * 60,), table)) == len(table)


def test_more_tags_than_are_remembered_are_still_encoded():
    encoder = ScalarEncoder(RUN, 3, DIALECTS)
    for number in range(1100):
        assert len(list(encoder.encode(9, rows((f"tag{number}",), [(1.5, 5, [0.5])])))) == 1
    assert len(encoder._layouts) <= 1024

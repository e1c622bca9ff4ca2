"""Every event once, in whatever order its copies come."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distsummary.events.deduplicate import Seen

IDS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 30))


@given(st.lists(IDS, max_size=200))
def test_an_event_is_new_once_and_one_without_a_seq_always(ids: list[tuple[str, int, int]]):
    seen, known = Seen(), set()
    for one in ids:
        assert seen.add(*one) == (one not in known or one[2] == 0)
        known.add(one)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(1, 20), st.integers(0, 2))))
def test_several_at_a_time_are_as_new_as_one_by_one(runs: list[tuple[int, int, int, int]]):
    together, alone = Seen(), Seen()
    for attempt, first, count, stride in runs:
        seqs = [first + stride * number for number in range(count)]
        if stride == 1 and first and together.add_range("a", attempt, first, seqs[-1]):
            new = np.ones(count, np.bool_)
        else:
            new = together.add_all("a", attempt, np.array(seqs, np.int64))
        assert new.tolist() == [alone.add("a", attempt, seq) for seq in seqs]

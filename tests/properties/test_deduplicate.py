"""A long run with gaps, and many owners."""

from distsummary.events.deduplicate import Seen


def test_many_gaps_and_owners_take_bounded_memory():
    seen = Seen()
    for seq in range(2, 200_000, 2):
        assert seen.add("a", 0, seq)
    assert not seen.add("a", 0, 3)  # its gap is forgotten
    assert seen.add("a", 0, 199_997)
    assert not seen.add("a", 0, 199_997)
    for attempt in range(5000):
        assert seen.add("b", attempt, 1)
    assert len(seen._attempts) <= 4096

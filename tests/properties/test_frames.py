"""Frames between arbitrary bytes."""

import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distsummary.format.frames import frame, read_frames
from tests.unit.format.test_frames import a_header, joined


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(data: bytes):
    for found in read_frames(io.BytesIO(frame(b"one") + data)):
        assert len(found.payload) <= len(data) + 3


@given(st.binary(max_size=300), st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.booleans())
def test_resync_finds_what_stands_behind_any_bytes(lost: bytes, payloads: list[bytes], is_torn: bool):
    torn = frame(b"torn" * 9)[:20] if is_torn else b""
    data = frame(b"first") + lost + torn + joined(payloads)
    frames = list(read_frames(io.BytesIO(data), resync=True))
    intact = [f.payload for f in frames if f.damage is None]
    assert intact[:1] + intact[1:][-len(payloads) :] == [b"first", *payloads]
    assert all(one.end == other.offset for one, other in pairwise(frames))
    assert frames[-1].end == len(data)


def test_false_starts_are_tried_only_up_to_a_limit():
    data = b"\xff" * 12 + a_header(500_000) * 100_000
    assert [f.damage for f in read_frames(io.BytesIO(data), resync=True)] == ["the length has a wrong CRC"]

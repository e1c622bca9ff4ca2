"""Frames against their definition, and against every way a file can be damaged."""

import io
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.format import frames
from distsummary.format.crc import masked_crc
from distsummary.format.frames import MAX_PAYLOAD, OVERHEAD, frame, read_frames, whole_length

PAYLOADS = [b"first", b"", b"third" * 1000]


def joined(payloads: list[bytes]) -> bytes:
    return b"".join(map(frame, payloads))


def a_header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc(packed))


def test_the_checksum_is_the_masked_crc32c_of_tensorflow():
    # CRC32C of "123456789" is e3069283 (RFC 3720); the mask is that of tensorflow/core/lib/hash/crc32c.h
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


@given(st.lists(st.binary(max_size=300)))
def test_what_was_framed_is_read_again(payloads: list[bytes]):
    data = joined(payloads)
    frames = list(read_frames(io.BytesIO(data)))
    assert [f.payload for f in frames] == payloads
    assert all(f.damage is None for f in frames)
    assert [f.end - f.offset for f in frames] == [len(p) + OVERHEAD for p in payloads]


def test_reading_continues_where_it_stopped(nasty_tmp_path: Path):
    path = nasty_tmp_path / "growing"
    path.write_bytes(joined(PAYLOADS[:2]) + frame(PAYLOADS[2])[:-1])
    first = list(read_frames(path))
    path.write_bytes(joined(PAYLOADS))
    rest = list(read_frames(path, start=first[-1].end))
    assert [f.payload for f in [*first, *rest]] == PAYLOADS


@pytest.mark.parametrize("cut", range(1, len(frame(b"last"))))
def test_a_torn_tail_is_no_frame_and_is_cut(nasty_tmp_path: Path, cut: int):
    path = nasty_tmp_path / "torn"
    path.write_bytes(joined(PAYLOADS) + frame(b"last")[:cut])
    assert [f.payload for f in read_frames(path)] == PAYLOADS
    assert whole_length(path) == len(joined(PAYLOADS))


def test_a_whole_file_keeps_its_length(nasty_tmp_path: Path):
    path = nasty_tmp_path / "whole"
    for payloads in ([], PAYLOADS):
        path.write_bytes(joined(payloads))
        assert whole_length(path) == path.stat().st_size


def test_a_flipped_byte_of_a_payload_costs_that_frame_only():
    data = bytearray(joined([b"one", b"two", b"three"]))
    data[OVERHEAD + 3 + 12] ^= 1
    frames = list(read_frames(io.BytesIO(data)))
    assert [f.damage for f in frames] == [None, "the payload has a wrong CRC", None]
    assert frames[2].payload == b"three"


def test_a_flipped_byte_of_a_length_hides_the_rest():
    data = bytearray(joined([b"one", b"two", b"three"]))
    data[OVERHEAD + 3] ^= 1
    frames = list(read_frames(io.BytesIO(data)))
    assert [f.damage for f in frames] == [None, "the length has a wrong CRC"]
    assert (frames[1].offset, frames[1].end) == (OVERHEAD + 3, len(data))


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 17])
def test_an_absurd_length_is_damage_and_allocates_nothing(length: int):
    frames = list(read_frames(io.BytesIO(frame(b"one") + a_header(length) + b"x" * 100)))
    assert [f.payload for f in frames] == [b"one", b""]
    assert str(length) in str(frames[1].damage)


@pytest.mark.parametrize("resync", [False, True])
def test_a_small_file_that_claims_the_largest_event_takes_no_memory(resync: bool):
    data = io.BytesIO(frame(b"one") + a_header(MAX_PAYLOAD) + b"x" * 100)
    tracemalloc.start()
    frames = list(read_frames(data, resync=resync))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [f.payload for f in frames] == [b"one"]
    assert peak < 1 << 20


def test_a_search_reads_false_headers_only_so_often():
    class Counted(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.read_bytes += size or 0
            return super().read(size)

    size, count = 1 << 20, 1000
    headers = b"".join(a_header(size // 2 + number) for number in range(count))
    data = Counted(b"x" + headers + bytes(size - len(headers)))
    [damaged] = read_frames(data, resync=True)
    assert damaged.payload == b""
    assert data.read_bytes < (64 << 20) + 4 * size < count * size // 2


def test_an_event_above_the_cap_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 999)
    data = joined([b"one", b"x" * 1000, b"three"])
    found = read_frames(io.BytesIO(data))
    assert [(f.payload, f.damage is None) for f in found] == [(b"one", True), (b"", False), (b"three", True)]


def test_zeros_in_the_middle_are_damage_and_not_a_torn_tail(nasty_tmp_path: Path):
    path = nasty_tmp_path / "zeros"
    path.write_bytes(frame(b"one") + bytes(4096) + frame(b"two"))
    assert [f.damage for f in read_frames(path)] == [None, "the length has a wrong CRC"]
    assert whole_length(path) == path.stat().st_size


def test_a_wrong_checksum_at_the_end_is_damage_and_not_a_torn_tail(nasty_tmp_path: Path):
    path = nasty_tmp_path / "flipped"
    path.write_bytes(frame(b"one") + frame(b"two")[:-1] + b"?")
    assert [f.damage is None for f in read_frames(path)] == [True, False]
    assert whole_length(path) == path.stat().st_size


def test_a_file_that_is_cut_while_it_is_read_ends_there():
    class Cut(io.BytesIO):
        """Says that it is longer than what can be read of it."""

        def seek(self, offset: int, whence: int = 0) -> int:
            return 200 if whence == 2 else super().seek(offset, whence)

    data = joined([b"one", b"x" * 100])
    assert [f.payload for f in read_frames(Cut(data[:-20]))] == [b"one"]
    assert [f.payload for f in read_frames(Cut(data[:22]))] == [b"one"]


def test_resync_looks_across_the_blocks_that_it_reads():
    for before in (2**20 - 40, 2**20 - 8, 2**20, 2 * 2**20 + 5):
        data = frame(b"first") + b"\xff" * before + frame(b"second")
        frames = list(read_frames(io.BytesIO(data), resync=True))
        assert [f.payload for f in frames] == [b"first", b"", b"second"]


def test_frames_larger_than_a_block_are_read():
    payloads = [b"a", b"x" * 3_000_000, b"b", b"y" * 600_000, b"z" * 600_000, b"c"]
    assert [f.payload for f in read_frames(io.BytesIO(joined(payloads)))] == payloads

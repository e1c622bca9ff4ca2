"""Encrypted bytes: what a change of the file does."""

import os

import pytest

from distsummary.checkpoints.encryption import CBC, GCM, STREAM, decrypt, encrypt
from distsummary.errors import DamagedFileError

KEY = bytes(range(32))
DATA = os.urandom(1000)


def blocks_of(data: bytes = DATA, block_bytes: int = 300) -> list[bytes]:
    """The header and the four blocks of a file."""
    return [*encrypt(data, KEY, STREAM, block_bytes=block_bytes)]


@pytest.mark.parametrize("mode", [GCM, CBC, STREAM])
@pytest.mark.parametrize("data", [b"", b"x", DATA[:300], DATA[:900], DATA])
def test_what_is_encrypted_is_read_again(data: bytes, mode: str) -> None:
    found = b"".join(encrypt(data, KEY, mode, block_bytes=300))
    assert decrypt(found, KEY, mode) == data
    assert data[:100] not in found or len(data) < 2


def test_a_file_of_another_mode_is_refused_unless_it_says_so_itself() -> None:
    found = b"".join(blocks_of())
    assert decrypt(found, KEY, GCM) == DATA
    with pytest.raises(DamagedFileError, match="check dec_mode"):
        decrypt(found, KEY, CBC)
    with pytest.raises(DamagedFileError, match="check dec_mode"):
        decrypt(b"".join(encrypt(DATA, KEY, GCM)), KEY, STREAM)


@pytest.mark.parametrize("change", [
    lambda head, *blocks: [head, *blocks[:-1]],
    lambda head, *blocks: [head, *blocks[1:]],
    lambda head, *blocks: [head],
    lambda head, *blocks: [head, blocks[1], blocks[0], *blocks[2:]],
    lambda head, *blocks: [head, blocks_of()[1], *blocks[1:]],
    lambda head, *blocks: [blocks_of()[0], *blocks],
    lambda head, *blocks: [head[:-8] + (3).to_bytes(8, "little"), *blocks[:3]],
    lambda head, *blocks: [head[:-8] + bytes(8)],
    lambda head, *blocks: [head[:-8] + b"\xff" * 8, *blocks],
    lambda head, *blocks: [head, *blocks, blocks[-1]],
    lambda head, *blocks: [head[:10]],
], ids=range(11))  # fmt: skip
def test_blocks_that_are_dropped_moved_or_of_another_file_are_refused(change) -> None:
    found = b"".join(change(*blocks_of()))
    with pytest.raises(DamagedFileError):
        decrypt(found, KEY, STREAM)


def test_no_bit_of_a_file_can_be_changed_and_no_byte_be_cut() -> None:
    found = b"".join(blocks_of(DATA[:40], 20))
    for place in range(len(found)):
        changed = bytearray(found)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), found[:place]):
            if damaged:
                with pytest.raises(DamagedFileError):
                    decrypt(damaged, KEY, STREAM)


def test_what_is_not_authenticated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    decrypt(b"".join(encrypt(DATA, KEY, GCM)), KEY, GCM)
    decrypt(b"".join(blocks_of()), KEY, STREAM)
    assert not caplog.messages
    decrypt(b"".join(encrypt(DATA, KEY, GCM, block_bytes=300)), KEY, GCM)
    decrypt(b"".join(encrypt(DATA, KEY, CBC)), KEY, CBC)
    order, nothing = caplog.messages
    assert "order and number" in order
    assert "authenticates nothing" in nothing

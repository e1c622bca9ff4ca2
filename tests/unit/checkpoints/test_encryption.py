"""Encrypted bytes: which changes of a file are detected, and which are not."""

import os

import pytest

from distsummary.checkpoints.encryption import CBC, GCM, decrypt, encrypt
from distsummary.errors import DamagedFileError

KEY = bytes(range(32))
DATA = os.urandom(1000)


def blocks_of(data: bytes, mode: str = GCM, block_bytes: int = 300) -> list[bytes]:
    """The blocks of a file, each with its header."""
    pieces = [*encrypt(data, KEY, mode, block_bytes=block_bytes)]
    return [head + text for head, text in zip(pieces[::2], pieces[1::2], strict=True)]


@pytest.mark.parametrize("mode", [GCM, CBC])
@pytest.mark.parametrize("data", [b"", b"x", DATA[:300], DATA[:900], DATA], ids=len)
def test_what_is_encrypted_is_read_again(data: bytes, mode: str) -> None:
    found = b"".join(encrypt(data, KEY, mode, block_bytes=300))
    assert decrypt(found, KEY, mode) == data
    assert data[:100] not in found or len(data) < 2


def test_a_file_of_another_mode_is_refused() -> None:
    for mode, other in ((GCM, CBC), (CBC, GCM)):
        with pytest.raises(DamagedFileError, match="check dec_mode"):
            decrypt(b"".join(encrypt(DATA, KEY, mode)), KEY, other)


def test_a_change_within_a_block_of_aes_gcm_is_refused_or_without_effect() -> None:
    [block] = blocks_of(DATA[:40])
    for place in range(len(block)):
        changed = bytearray(block)
        changed[place] ^= 1 << place % 8
        try:
            plain = decrypt(bytes(changed), KEY, GCM)
        except DamagedFileError:
            continue
        # MindSpore's header has a length that nothing needs, and four bytes of a nonce that are not used.
        assert plain == DATA[:40]
        assert 40 <= place < 48
    for size in range(1, len(block)):
        with pytest.raises(DamagedFileError):
            decrypt(block[:size], KEY, GCM)


def test_blocks_that_are_dropped_moved_or_of_another_file_are_not_detected() -> None:
    first, second, third, last = blocks_of(DATA)
    assert decrypt(first + second + third, KEY, GCM) == DATA[:900]
    assert decrypt(second + first, KEY, GCM) == DATA[300:600] + DATA[:300]
    other = os.urandom(300)
    assert decrypt(first + blocks_of(other)[0] + last, KEY, GCM) == DATA[:300] + other + DATA[900:]


def test_aes_cbc_lets_bits_of_the_plain_text_be_chosen() -> None:
    [block] = blocks_of(DATA[:40], CBC)
    changed = bytearray(block)
    changed[12] ^= 1  # the first byte of the vector, after magic, size and its own length
    assert decrypt(bytes(changed), KEY, CBC) == bytes([DATA[0] ^ 1]) + DATA[1:40]


def test_what_is_not_authenticated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    decrypt(b"".join(encrypt(DATA, KEY, GCM)), KEY, GCM)
    assert not caplog.messages
    decrypt(b"".join(blocks_of(DATA)), KEY, GCM)
    decrypt(b"".join(encrypt(DATA, KEY, CBC)), KEY, CBC)
    order, nothing = caplog.messages
    assert "order and number" in order
    assert "authenticates nothing" in nothing

"""Encrypts the bytes of a checkpoint file as MindSpore does, and decrypts them.

AES-GCM authenticates each block alone, not its place, its file or the number of blocks; AES-CBC nothing.
"""

import os
from collections.abc import Iterator
from typing import Any

from distsummary.base.checks import check_choice, check_type
from distsummary.base.extras import extra
from distsummary.base.guard import guarded_log
from distsummary.errors import DamagedFileError, InvalidArgumentError, InvalidValueError

logger = guarded_log(__name__)

MODES = GCM, CBC = "AES-GCM", "AES-CBC"
KEY_BYTES = (16, 24, 32)
BLOCK_BYTES = 256 << 20  # of the plain text

# A block, as MindSpore 2.10 writes it. Numbers are little-endian int32; `size` counts what follows it:
#   AES-GCM: magic | tag (16 bytes) | size | 16 | nonce (16 bytes) | length | cipher text
#   AES-CBC: magic | size | 16 | vector (16 bytes) | length | cipher text, padded as in PKCS #7
_MAGIC = {GCM: 0x7F3A5ED8, CBC: 0x7F3A5ED9}
_NONCE_BYTES = _TAG_BYTES = 16
_GCM_NONCE_BYTES = 12  # MindSpore stores 16 bytes, of which AES-GCM uses the first 12


def check_key(field: str, key: object, mode_field: str, mode: object) -> None:
    """Raise InvalidValueError (also a TypeError for a wrong type), or MissingExtraError."""
    if not isinstance(key, bytes | None):
        raise InvalidArgumentError(
            f"{field} must be bytes of the length 16, 24 or 32, or None, got {type(key).__name__}"
        )
    if not isinstance(mode, str):
        raise InvalidArgumentError(f"{mode_field} must be one of {MODES}, got {mode!r}")
    check_choice(mode_field, mode, MODES)
    if key is not None:
        if len(key) not in KEY_BYTES:
            raise InvalidValueError(f"{field} must have 16, 24 or 32 bytes, got {len(key)}")
        _library("hazmat.primitives.ciphers")


def encrypt(data: bytes, key: bytes, mode: str, *, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The pieces of an encrypted file, in order."""
    view = memoryview(data)
    # Even an empty file has one block.
    for start in range(0, max(len(data), 1), block_bytes):
        nonce = os.urandom(_NONCE_BYTES)
        plain = view[start : start + block_bytes]
        if mode == GCM:
            sealed = _gcm(key).encrypt(nonce[:_GCM_NONCE_BYTES], plain, None)
            text, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        else:
            padder = _library("hazmat.primitives.padding").PKCS7(128).padder()
            encryptor = _cbc(key, nonce).encryptor()
            text, tag = (
                encryptor.update(bytes(padder.update(plain)) + padder.finalize()) + encryptor.finalize(),
                b"",
            )
        inner = _number(len(nonce)) + nonce + _number(len(text))
        yield _number(_MAGIC[mode]) + tag + _number(len(inner) + len(text)) + inner
        yield text


def is_encrypted(data: Any) -> bool:
    """Whether a file begins as an encrypted checkpoint does."""
    return bytes(data[:4]) in {_number(magic) for magic in _MAGIC.values()}


def decrypt(data: Any, key: bytes, mode: str) -> bytes:
    """The plain bytes of an encrypted file (any buffer); logs what is not authenticated.

    Raises DamagedFileError for bytes that are no such file, and for a wrong key or mode.
    """
    check_type("dec_key", key, bytes)
    plain, position, tag = [], 0, b""
    while position < len(data):
        if bytes(data[position : position + 4]) != _number(_MAGIC[mode]):
            raise DamagedFileError(f"no block of {mode} begins at byte {position}; check dec_mode")
        position += 4
        if mode == GCM:
            tag = bytes(data[position : position + _TAG_BYTES])
            position += _TAG_BYTES
        size = int.from_bytes(data[position : position + 4], "little")
        block = bytes(data[position + 4 : position + 4 + size])
        position += 4 + size
        nonce, text = block[4 : 4 + _NONCE_BYTES], block[8 + _NONCE_BYTES :]
        if len(block) != size or block[:4] != _number(_NONCE_BYTES) or len(text) != size - 8 - _NONCE_BYTES:
            raise DamagedFileError(f"the encrypted block that ends at byte {position} is cut off")
        plain.append(_open(text, key, mode, nonce, tag))
    if mode == CBC:
        logger.warning("AES-CBC authenticates nothing: a file that someone changed may be read as valid")
    elif len(plain) > 1 or any(len(one) >= BLOCK_BYTES for one in plain):
        logger.warning("the order and number of AES-GCM blocks is not authenticated, nor whose they are")
    return b"".join(plain)


def _open(text: bytes, key: bytes, mode: str, nonce: bytes, tag: bytes) -> bytes:
    try:
        if mode == GCM:
            return bytes(_gcm(key).decrypt(nonce[:_GCM_NONCE_BYTES], text + tag, None))
        decryptor = _cbc(key, nonce).decryptor()
        remover = _library("hazmat.primitives.padding").PKCS7(128).unpadder()
        padded = decryptor.update(text) + decryptor.finalize()
        return bytes(remover.update(padded) + remover.finalize())
    except (ValueError, _library("exceptions").InvalidTag) as error:
        raise DamagedFileError("it cannot be decrypted; check dec_key") from error


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _gcm(key: bytes) -> Any:
    return _library("hazmat.primitives.ciphers.aead").AESGCM(key)


def _cbc(key: bytes, vector: bytes) -> Any:
    ciphers = _library("hazmat.primitives.ciphers")
    return ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CBC(vector))


def _library(name: str) -> Any:
    return extra("an encrypted checkpoint", f"cryptography.{name}")

"""Damage to the bytes of an event file, from a seed: flips, cuts, false lengths, wrong messages in frames."""

import random
import struct
from collections.abc import Callable

import google_crc32c

from tests.torture.reader import records

LENGTHS = (
    0, 1, 15, 1 << 20, (64 << 20) + 1, 256 << 20, (256 << 20) + 1, 1 << 31, 1 << 40,
    (1 << 63) - 1, (1 << 64) - 17, (1 << 64) - 1,
)  # fmt: skip


def mutate(data: bytes, other: bytes, generator: random.Random) -> bytes:
    """One to four mutations of a file; `other` is a file to splice in."""
    for _ in range(generator.choice((1, 1, 2, 4))):
        data = generator.choice(MUTATIONS)(data, other, generator)
    return data


def _flip(data: bytes, other: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 8)) if changed else 0):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed)


def _cut(data: bytes, other: bytes, generator: random.Random) -> bytes:
    return data[: generator.randint(0, len(data))]


def _zeros(data: bytes, other: bytes, generator: random.Random) -> bytes:
    start = generator.randint(0, len(data))
    count = generator.choice((1, 12, 512, 4096))
    return data[:start] + bytes(count) + data[start + generator.choice((0, count)) :]


def _remove(data: bytes, other: bytes, generator: random.Random) -> bytes:
    start = generator.randint(0, len(data))
    return data[:start] + data[start + generator.randint(1, 64) :]


def _splice(data: bytes, other: bytes, generator: random.Random) -> bytes:
    return data[: generator.randint(0, len(data))] + other[generator.randint(0, len(other)) :]


def _repeat(data: bytes, other: bytes, generator: random.Random) -> bytes:
    start = generator.randint(0, len(data))
    end = generator.randint(start, min(len(data), start + 4096))
    return data[:end] + data[start:end] * generator.choice((1, 3)) + data[end:]


def _lie(data: bytes, other: bytes, generator: random.Random) -> bytes:
    """A wrong length whose own CRC is right, at the beginning of a frame."""
    offsets = [record.offset for record in records(data) if record.payload is not None]
    at = generator.choice(offsets) if offsets else 0
    length = generator.choice((*LENGTHS, len(data), max(0, len(data) - at - 16)))
    packed = struct.pack("<Q", length)
    return data[:at] + packed + struct.pack("<I", _masked(packed)) + data[at + 12 :]


def _message(data: bytes, other: bytes, generator: random.Random) -> bytes:
    """A payload changed, with its length and CRCs made right again: what reaches the decoders."""
    payloads = [record.payload for record in records(data) if record.payload]
    if not payloads:
        return data
    chosen = generator.randrange(len(payloads))
    inner = generator.choice((_flip, _flip, _cut, _remove, _repeat, _zeros, _varint, _nest))
    payloads[chosen] = inner(payloads[chosen], payloads[generator.randrange(len(payloads))], generator)
    return b"".join(framed(payload) for payload in payloads)


def _varint(data: bytes, other: bytes, generator: random.Random) -> bytes:
    """A huge number in place of some byte: counts, dimensions, lengths of fields."""
    at = generator.randint(0, len(data))
    number = generator.choice(
        (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"\x80" * 12, b"\x80\x80\x80\x80\x10")
    )
    return data[:at] + number + data[at + 1 :]


def _nest(data: bytes, other: bytes, generator: random.Random) -> bytes:
    """Messages in messages, deeper than a stack may like."""
    number = generator.choice((3, 4, 5, 6, 10))
    for _ in range(generator.choice((20, 150))):
        size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14 & 0x7F])
        data = bytes([number << 3 | 2]) + size + data
    return data


MUTATIONS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    _flip, _cut, _zeros, _remove, _splice, _repeat, _lie, _message, _message, _message, _message,
)  # fmt: skip


def framed(payload: bytes) -> bytes:
    """The payload in a right frame."""
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", _masked(length)) + payload + struct.pack("<I", _masked(payload))


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

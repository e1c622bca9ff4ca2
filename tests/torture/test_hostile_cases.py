"""What fuzzing found, kept: each file is read in every way, and refused or read."""

from pathlib import Path

import pytest

from tests.torture.fuzz import NAMES, complaint_of, read_everything
from tests.torture.mutate import framed

MINDSPORE_NAME, TENSORBOARD_NAME, LINEAGE_NAME = NAMES


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a message."""
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


WALL_TIME = b"\x09" + bytes(8)
CASES = {
    # protobuf finds bytes that are no UTF-8 only when the string of a proto2 message is asked for
    "lineage_with_a_string_that_is_no_text": (
        LINEAGE_NAME,
        WALL_TIME + field(10, field(1, field(4, field(1, b"key") + field(2, b"\x82")))),
    ),
    "lineage_with_a_key_that_is_no_text": (
        LINEAGE_NAME,
        WALL_TIME + field(10, field(1, field(4, field(1, b"\x82") + field(2, b"text")))),
    ),
    "tag_that_is_no_text": (
        MINDSPORE_NAME,
        WALL_TIME + field(5, field(1, field(1, b"\xff") + b"\x1d" + bytes(4))),
    ),
    "tag_of_tensorboard_that_is_no_text": (
        TENSORBOARD_NAME,
        WALL_TIME + field(5, field(1, field(1, b"\xff") + b"\x15" + bytes(4))),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_refused_or_read_in_every_way(case: str, tmp_path: Path) -> None:
    name, payload = CASES[case]
    complaints = []
    for way in range(len(list(read_everything(tmp_path, name)))):
        (tmp_path / name).write_bytes(framed(payload))
        what, call = list(read_everything(tmp_path, name))[way]
        complaints += [f"{what} {complaint}" for complaint in [complaint_of(call)] if complaint]
    assert complaints == []

"""CRCs of many byte strings at once are those of each."""

import google_crc32c
import numpy as np
import pytest

from distsummary.format.crc import byte_tables, crc_changes


@pytest.mark.parametrize("length", [1, 2, 8, 9, 63, 300])
def test_changes_turn_one_crc_into_those_of_the_others(length: int):
    rows = np.random.default_rng(length).integers(0, 256, (20, length), np.uint8)
    rows[7] = rows[0]
    differences = rows ^ rows[0]
    crcs = np.uint32(google_crc32c.value(rows[0].tobytes())) ^ crc_changes(differences, range(length))
    assert crcs.tolist() == [google_crc32c.value(row.tobytes()) for row in rows]


def test_columns_without_differences_need_no_look():
    rows = np.zeros((3, 50), np.uint8)
    rows[1:, 20] = 255, 7
    crcs = np.uint32(google_crc32c.value(bytes(50))) ^ crc_changes(rows, [20])
    assert crcs.tolist() == [google_crc32c.value(row.tobytes()) for row in rows]


def test_tables_are_made_once_for_similar_lengths():
    assert byte_tables(40) is byte_tables(64)
    assert byte_tables(1).shape == (1, 256)

"""Changed bytes on the short way to scalars."""

from random import Random

import pytest

from distsummary.errors import DamagedFileError
from distsummary.format.records import DIALECTS, Event, EventIds, Value
from distsummary.format.scalar_decoder import decode_scalars
from tests.unit.format.test_scalar_decoder import DECODE, payload, same


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_changed_byte_is_read_as_protobuf_reads_it_or_left_to_it(dialect: str):
    random = Random(7)
    values = [Value("scalar", "loss", 0.5), Value("scalar", "acc", 2.0)]
    original = payload(Event(300, 1.5, values), EventIds("0123456789abcdef", 1, 200), dialect)
    agreed = 0
    for _ in range(3000):
        changed = bytearray(original)
        for _ in range(random.randint(1, 2)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        changed = changed[: random.randint(20, len(changed) + 20)]
        quick = decode_scalars(bytes(changed), dialect)
        if quick is not None:
            try:
                assert same(quick, DECODE[dialect](bytes(changed)))
                agreed += 1
            except DamagedFileError:
                pytest.fail(f"protobuf refuses {bytes(changed).hex()}")
    assert agreed > 100

"""The short way to scalars gives what protobuf gives, or leaves the event to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.encode import encode_event
from distsummary.format.records import DIALECTS, Event, EventIds, Value
from distsummary.format.scalar_decoder import Fields, decode_scalars
from tests.unit.format import samples

DECODE = {"mindspore": mindspore_format.decode_event, "tensorboard": tensorboard_format.decode_event}
IDS = st.none() | st.builds(EventIds, st.just("0123456789abcdef"), st.integers(0, 200), st.integers(0, 2**40))


def payload(event: Event, ids: EventIds | None, dialect: str) -> bytes:
    encoded = encode_event(event, ids, (dialect,))[0][dialect]
    assert encoded is not None
    return encoded


def same(fields: Fields, decoded: tuple[EventIds, Event] | None) -> bool:
    return repr((EventIds(*fields[:3]), Event(*fields[3:]))) == repr(decoded)  # NaN included


@given(
    st.lists(st.tuples(samples.TAGS, st.floats(width=32)), min_size=1, max_size=5),
    samples.STEPS,
    samples.WALL_TIMES,
    IDS,
    st.sampled_from(DIALECTS),
)
def test_scalars_are_read_as_protobuf_reads_them(scalars, step, wall_time, ids, dialect):
    event = Event(step, wall_time, [Value("scalar", tag, number) for tag, number in scalars])
    encoded = payload(event, ids, dialect)
    quick = decode_scalars(encoded, dialect)
    if (
        step >= 0
        and wall_time
        and (ids is None or ids.attempt < 128)
        and all(len(tag.encode()) < 100 for tag, _ in scalars)
    ):
        assert quick is not None
    assert quick is None or same(quick, DECODE[dialect](encoded))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_other_events_are_left_to_protobuf(dialect: str):
    for value in samples.SUMMARY_VALUES[1:4]:
        if dialect == "tensorboard" and value.plugin == "tensor":
            continue
        event = Event(1, 1.0, [Value("scalar", "loss", np.float32(1)), value])
        encoded = payload(event, samples.IDS, dialect)
        assert decode_scalars(encoded, dialect) is None
    assert decode_scalars(b"", dialect) is None
    assert decode_scalars(b"\x09" * 19, dialect) is None

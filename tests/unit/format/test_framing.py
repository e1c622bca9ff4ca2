"""Batches of all kinds of events to frames: the same whether scalars come packed or one by one."""

import numpy as np

from distsummary.format.encode import encode_event
from distsummary.format.frames import Framed, frame
from distsummary.format.framing import EventEncoder
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, EventIds, Value
from distsummary.format.scalar_rows import packed
from tests.unit.format import samples

RUN = "00000000000000ab"


def mixed() -> list[Event]:
    events = [Event(n, 9.5 + n, [Value("scalar", "loss", n / 3)]) for n in range(20)]  # step 0 is unusual
    events.insert(7, Event(7, 1.0, samples.SUMMARY_VALUES))
    events.insert(9, Event(7, 1.0, [Value("train_lineage", "", samples.TRAIN)]))
    events.insert(12, Event(9, 1.0, [Value("tensor", "bad", np.array([1j])), Value("scalar", "good", 1.0)]))
    events.append(Event(3, 1.0, [Value("tensor", "only MindSpore's", np.zeros(3))]))
    return events


def test_frames_are_those_of_each_event_alone_whether_packed_or_not():
    events = mixed()
    for given in (events, packed(events)):
        encoded = EventEncoder(RUN, 2, DIALECTS).encode(5, given)
        assert [value.data for value in encoded.lineage] == [samples.TRAIN]
        assert [refusal.tag for refusal in encoded.refused] == ["bad"]
        for dialect in DIALECTS:
            expected = []
            for seq, event in enumerate(events, 5):
                if event.values[0].plugin == "train_lineage":
                    continue
                payloads, _ = encode_event(event, EventIds(RUN, 2, seq), (dialect,))
                if (payload := payloads[dialect]) is not None:
                    expected.append((seq, frame(payload)))
            found = encoded.framed[dialect]
            assert b"".join(part for framed in found for part in framed.parts) == b"".join(
                data for _, data in expected
            )
            numbers = [n for f in found for n in range(f.first_seq, f.last_seq + 1)]
            assert numbers == [seq for seq, _ in expected]


def test_a_dialect_without_a_place_for_an_event_has_no_frame_of_it():
    tensor = Event(1, 1.0, [Value("tensor", "t", np.zeros(3))])
    framed = EventEncoder(RUN, 0, DIALECTS).encode(1, [tensor]).framed
    assert (len(framed[MINDSPORE]), framed[TENSORBOARD]) == (1, [])


def test_frames_behind_a_seq_are_the_later_ones():
    framed = Framed(10, 4, [b"aabbccdd"], 8)
    assert framed.behind(9) is framed
    later = framed.behind(11)
    assert (later.first_seq, later.count, later.nbytes, later.last_seq) == (12, 2, 4, 13)
    assert b"".join(later.parts) == b"ccdd"
    assert framed.behind(13).count == framed.behind(99).count == 0
    first = framed.slice(0, 3)
    assert (first.first_seq, first.count, b"".join(first.parts)) == (10, 3, b"aabbcc")

"""Events in both dialects, alone and numbered, and what happens to values that cannot be written."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.format import encode, mindspore_format, mindspore_graph, png, tensorboard_format
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.encode import EventEncoder, encode_event, event_parts
from distsummary.format.frames import Framed, frame, frame_parts
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, EventIds, Value
from distsummary.format.scalar_rows import joined
from tests.unit.format import samples

TRANSPOSED = replace(samples.LANDSCAPE, z=samples.LANDSCAPE.z.T)
SHORT_PATH = replace(samples.LANDSCAPE, path_z=np.zeros(1))
BOTH = ("mindspore", "tensorboard")
RUN = "00000000000000ab"


class Broken:
    """An array of another library that cannot be read."""

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise OSError("the device is lost")


def read(payloads: dict[str, bytes | None], dialect: str) -> Event:
    payload = payloads[dialect]
    assert payload is not None
    decode = mindspore_format.decode_event if dialect == "mindspore" else tensorboard_format.decode_event
    decoded = decode(payload)
    assert decoded[0] == samples.IDS
    return decoded[1]


def test_each_dialect_gets_what_it_can_show():
    payloads, refused = encode_event(Event(3, 1.5, samples.SUMMARY_VALUES), samples.IDS, BOTH)
    assert refused == []
    shown = {dialect: [value.plugin for value in read(payloads, dialect).values] for dialect in BOTH}
    assert shown == {
        "mindspore": ["scalar", "tensor", "histogram", "image", "landscape", "text", "audio", "pr_curve"],
        "tensorboard": ["scalar", "histogram", "image", "text", "audio", "pr_curve"],
    }


def test_pictures_and_bins_are_computed_once_for_both_dialects(monkeypatch: pytest.MonkeyPatch):
    calls = []
    for module, name in ((png, "encode_image"), (encode, "count_histogram")):
        original = getattr(module, name)

        def counted(data: Any, _name: str = name, _original: Any = original, **flags: bool) -> Any:
            calls.append(_name)
            return _original(data, **flags)

        monkeypatch.setattr(module, name, counted)
    values = [Value("image", "i", np.zeros((1, 3, 2, 2), np.uint8)), Value("histogram", "h", np.arange(9.0))]
    payloads, refused = encode_event(Event(1, 1.0, values), samples.IDS, BOTH)
    assert refused == []
    assert calls == ["encode_image", "count_histogram"]
    images = [next(v.data for v in read(payloads, d).values if v.plugin == "image") for d in BOTH]
    assert images[0] == images[1]


def test_an_event_that_tensorboard_cannot_show_is_none_there():
    payloads, _ = encode_event(Event(1, 1.0, [samples.SUMMARY_VALUES[1]]), samples.IDS, BOTH)
    assert payloads["tensorboard"] is None
    assert payloads["mindspore"] is not None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Value("scalar", "bad", "text"), "InvalidTypeError: a scalar must be a number"),
        (Value("scalar", "bad", None), "InvalidTypeError: a scalar must be a number"),
        (Value("scalar", "bad", 1j), "InvalidTypeError: a scalar must be a number"),
        (Value("scalar", "bad", [1.0, 2.0]), "InvalidValueError: a scalar must be one number"),
        (Value("tensor", "bad", np.zeros(2, complex)), "InvalidTypeError: a tensor must be one of"),
        (Value("tensor", "bad", np.broadcast_to(0.0, 2**40)), "InvalidValueError: a tensor of 1099511627776"),
        (Value("histogram", "bad", np.array(["x"])), "InvalidTypeError: a histogram counts"),
        (Value("image", "bad", np.zeros((1, 2, 4, 4))), "InvalidValueError: pictures must have the shape"),
        (Value("landscape", "bad", "text"), "InvalidTypeError: the data of a landscape"),
        (Value("landscape", "bad", samples.PICTURE), "InvalidTypeError: the data of a landscape"),
        (Value("landscape", "bad", TRANSPOSED), "InvalidValueError: z of a landscape must have the shape"),
        (Value("landscape", "bad", SHORT_PATH), "InvalidValueError: path_x, path_y and path_z"),
        (Value("train_lineage", "bad", samples.TRAIN), "InvalidValueError: train_lineage is lineage"),
        (Value("mesh", "bad", 1.0), "InvalidValueError: the plugin of a value must be one of"),
        (Value("audio", "bad", 1.0), "InvalidTypeError: the data of an audio must be Audio"),
        (Value("pr_curve", "bad", np.zeros(6)), "InvalidValueError: a PR curve must have the shape (6, T)"),
        (Value("graph", "bad", b""), "InvalidValueError: a graph must be alone in its event"),
        (Value("scalar", "bad", Broken()), "OSError: the device is lost"),
    ],
)  # fmt: skip
def test_a_bad_value_costs_itself_and_nothing_else(bad: Value, reason: str):
    good = Value("scalar", "good", 1.0)
    payloads, refused = encode_event(Event(1, 1.0, [good, bad, good]), samples.IDS, BOTH)
    assert [(plugin, tag) for plugin, tag, _ in refused] == [(bad.plugin, "bad")]
    assert refused[0].reason.startswith(reason)
    for dialect in BOTH:
        assert [value.tag for value in read(payloads, dialect).values] == ["good", "good"]


@pytest.mark.parametrize("tag", ["", "x" * 1025, "é" * 513, "\ud800", 5, None])
def test_a_tag_that_cannot_be_written_is_refused(tag: Any):
    payloads, refused = encode_event(Event(1, 1.0, [Value("scalar", tag, 1.0)]), samples.IDS, BOTH)
    assert [refusal.tag for refusal in refused] == [str(tag)]
    assert read(payloads, "mindspore").values == []
    assert payloads["tensorboard"] is None


def test_an_event_without_values_keeps_its_number():
    payloads, _ = encode_event(Event(5, 1.0, []), samples.IDS, BOTH)
    assert read(payloads, "mindspore") == Event(5, 1.0, [])
    assert payloads["tensorboard"] is None


def test_scalars_of_every_kind_are_one_number():
    numbers = [True, 3, 2.5, np.float16(0.5), np.array(7), np.array([[1]]), 2**70]
    values = [Value("scalar", str(place), number) for place, number in enumerate(numbers)]
    payloads, refused = encode_event(Event(1, 1.0, values), samples.IDS, BOTH)
    expected = [1.0, 3.0, 2.5, 0.5, 7.0, 1.0, float(2**70)]
    assert refused == []
    for dialect in BOTH:
        assert [value.data for value in read(payloads, dialect).values] == expected


def test_a_value_that_would_make_the_event_too_large_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encode, "MAX_PAYLOAD", 6000)
    large = Value("tensor", "large", np.zeros(1000, np.float32))
    event = Event(1, 1.0, [large, Value("scalar", "small", 1.0), large._replace(tag="second")])
    payloads, refused = encode_event(event, samples.IDS, BOTH)
    assert [refusal.tag for refusal in refused] == ["second"]
    assert [value.tag for value in read(payloads, "mindspore").values] == ["large", "small"]
    assert all(len(payload) <= 6000 for payload in payloads.values() if payload is not None)


def test_a_graph_alone_is_an_event_of_each_dialect():
    graph = samples.GRAPH.SerializeToString()
    payloads, refused = encode_event(Event(1, 1.0, [Value("graph", "", graph)]), samples.IDS, BOTH)
    assert refused == []
    assert read(payloads, "mindspore").values == [Value("graph", "", graph)]
    [value] = read(payloads, "tensorboard").values
    assert mindspore_graph.decode(value.data) == mindspore_graph.decode(graph)


def test_a_graph_that_is_none_is_refused():
    for data in (b"\xff\xff", "text"):
        payloads, refused = encode_event(Event(1, 1.0, [Value("graph", "g", data)]), samples.IDS, BOTH)
        assert [refusal.plugin for refusal in refused] == ["graph"]
        assert payloads == {"mindspore": None, "tensorboard": None}


def test_compatibility_reaches_histograms_and_images():
    picture = np.array([0, 255], np.uint8).reshape(1, 1, 1, 2)
    values = [Value("histogram", "h", np.array([-128, 127], np.int8)), Value("image", "i", picture)]
    plain, _ = encode_event(Event(1, 1.0, values), samples.IDS, ("mindspore",))
    compat, _ = encode_event(Event(1, 1.0, values), samples.IDS, ("mindspore",), compatibility=AS_MINDSPORE)
    before, after = (read(payloads, "mindspore").values for payloads in (plain, compat))
    assert before[0].data.left.tolist() == [-128, -0.5]
    assert after[0].data.left.tolist() == [-128, -1]
    assert before[1].data.encoded != after[1].data.encoded


def test_only_the_dialects_asked_for_are_encoded():
    payloads, _ = encode_event(Event(1, 1.0, samples.SUMMARY_VALUES), samples.IDS, ("tensorboard",))
    assert list(payloads) == ["tensorboard"]


@given(samples.ARRAYS | st.just(np.arange(30000.0)[::2]), st.integers(0, 40000))
def test_an_event_in_parts_is_framed_to_the_same_bytes(array: np.ndarray, picture_bytes: int):
    picture = replace(samples.PICTURE, encoded=bytes(picture_bytes))
    values = [*samples.SUMMARY_VALUES, Value("tensor", "t", array), Value("image", "i", picture)]
    event = Event(7, 1.5, values)
    payloads, _ = encode_event(event, samples.IDS, BOTH)
    parts, refused = event_parts(event, samples.IDS, BOTH)
    assert refused == []
    for dialect in BOTH:
        payload, in_parts = payloads[dialect], parts[dialect]
        assert payload is not None
        assert in_parts is not None
        assert b"".join(frame_parts(in_parts)) == frame(payload)


def test_a_large_tensor_is_framed_where_it_lies():
    array = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    parts, _ = event_parts(Event(1, 1.5, [Value("tensor", "t", array)]), samples.IDS, ("mindspore",))
    assert parts["mindspore"] is not None
    framed = frame_parts(parts["mindspore"])
    assert [len(part) for part in framed][1] == array.nbytes
    assert np.shares_memory(np.frombuffer(framed[1], np.float32), array)
    assert len(framed) == 3


def mixed() -> list[Event]:
    events = [Event(n, 9.5 + n, [Value("scalar", "loss", n / 3)]) for n in range(20)]  # step 0 is unusual
    events.insert(7, Event(7, 1.0, samples.SUMMARY_VALUES))
    events.insert(9, Event(7, 1.0, [Value("train_lineage", "", samples.TRAIN)]))
    events.insert(12, Event(9, 1.0, [Value("tensor", "bad", np.array([1j])), Value("scalar", "good", 1.0)]))
    events.append(Event(3, 1.0, [Value("tensor", "only MindSpore's", np.zeros(3))]))
    return events


def test_frames_are_those_of_each_event_alone_whether_packed_or_not():
    events = mixed()
    for items in (events, joined(((event, 0) for event in events), lambda event: event)):
        encoded = EventEncoder(RUN, 2, DIALECTS).encode(5, items)
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
    assert framed.after(9) is framed
    later = framed.after(11)
    assert (later.first_seq, later.count, later.nbytes, later.last_seq) == (12, 2, 4, 13)
    assert b"".join(later.parts) == b"ccdd"
    assert framed.after(13).count == framed.after(99).count == 0
    first = framed.slice(0, 3)
    assert (first.first_seq, first.count, b"".join(first.parts)) == (10, 3, b"aabbcc")

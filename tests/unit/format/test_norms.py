"""Norms of every parameter: what is written is read, by the names of the parameters in each record."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from distsummary.format import mindspore_format, norms, tensorboard_format
from distsummary.format.encode import encode_event
from distsummary.format.norms import COLUMNS, ParameterNorms, ParameterTable
from distsummary.format.own_tags import NORMS_TAG
from distsummary.format.records import DIALECTS, MINDSPORE, NORMS, TENSORBOARD, Event, EventIds, Value
from distsummary.format.scalar_rows import size_of

NAN, INF = float("nan"), float("inf")
DECODERS = {MINDSPORE: mindspore_format.decode_event, TENSORBOARD: tensorboard_format.decode_event}
TABLE = ParameterTable(
    names=("embedding.weight", "block.0.größe", "scale", "empty"),
    shapes=((10, 4), (3,), (), (0, 7)),
    local_sizes=(20, 3, 1, 0),
    starts=(20, 0, 0, 0),
)


def measured(table=TABLE, **more):
    columns = {
        "weight_sums": [1.5, NAN, 1e-300, 0.0], "gradient_sums": [1e300, 0.0, INF, 2.0],
        "has_gradient": [True, False, True, True], "weight_nonfinite": [0, 3, 0, 0],
        "gradient_nonfinite": [0, 0, 2**40, 0], "update_sums": [NAN, 1e-20, NAN, INF],
        "update_max": [NAN, 1e-10, NAN, INF],
    } | more  # fmt: skip
    return ParameterNorms(
        table, **{name: np.array(columns[name], dtype) for name, (dtype, _) in COLUMNS.items()}
    )


def value(data):
    return Value(NORMS, NORMS_TAG, data)


def encoded(*values, formats=DIALECTS, step=3):
    payloads, refused = encode_event(Event(step, 10.0, [*values]), EventIds("a" * 16, 0, 7), formats)
    assert refused == []
    return payloads


def same(left, right):
    assert left.table == right.table
    for name, (dtype, _) in COLUMNS.items():
        assert getattr(left, name).dtype == dtype
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


@pytest.mark.parametrize("formats", [DIALECTS, (MINDSPORE,), (TENSORBOARD,)])
def test_norms_come_back_from_the_one_dialect_that_has_them(formats):
    payloads = encoded(Value("scalar", "loss", 0.5), value(measured()), formats=formats)
    carrier = formats[0]
    for dialect in formats:
        ids, event = DECODERS[dialect](payloads[dialect])
        assert (ids, event.step, event.values[0]) == (
            EventIds("a" * 16, 0, 7),
            3,
            Value("scalar", "loss", 0.5),
        )
        assert len(event.values) == (2 if dialect == carrier else 1)
    norms_read = DECODERS[carrier](payloads[carrier])[1].values[1]
    assert norms_read[:2] == (NORMS, NORMS_TAG)
    same(norms_read.data, measured())


def test_an_event_of_norms_alone_is_in_their_dialect_only():
    payloads = encoded(value(measured()))
    assert payloads[TENSORBOARD] is None
    assert [one.plugin for one in DECODERS[MINDSPORE](payloads[MINDSPORE])[1].values] == [NORMS]
    alone = encoded(value(measured()), formats=(TENSORBOARD,))
    assert [one.plugin for one in DECODERS[TENSORBOARD](alone[TENSORBOARD])[1].values] == [NORMS]


def test_data_that_are_no_norms_are_refused_and_nothing_else_is():
    loss = Value("scalar", "loss", 0.5)
    payloads, refused = encode_event(Event(1, 1.0, [value(3.0), loss]), None)
    assert [one.plugin for one in refused] == [NORMS]
    assert DECODERS[MINDSPORE](payloads[MINDSPORE])[1].values == [loss]


def test_any_damage_is_an_error_of_the_reader_and_nothing_else():
    whole = encoded(value(measured()))[MINDSPORE]
    random = np.random.default_rng(5)
    for _ in range(300):
        norms.read_table.cache_clear()
        octets = bytearray(whole)
        for place in random.integers(0, len(octets), 3):
            octets[place] = random.integers(0, 256)
        try:
            DECODERS[MINDSPORE](bytes(octets[: random.integers(1, len(octets) + 1)]))
        except ValueError:  # DamagedFileError, which is one
            continue


def test_a_queue_counts_the_bytes_of_norms_and_many_ranks_share_the_names():
    assert size_of(Event(1, 1.0, [value(measured())])) > measured().nbytes == 4 * (4 * 8 + 8 + 4 + 1)
    sent = [pickle.loads(pickle.dumps(replace(TABLE, local_sizes=(n, 3, 1, 0)))) for n in (20, 20, 21)]
    assert sent[0] == TABLE
    assert sent[0] is sent[1]
    assert sent[0].names is sent[2].names


def test_a_model_of_many_parameters_is_read_also_if_nothing_is_finite():
    n = 50_000
    names = tuple(f"layers.{row // 256}.experts.{row % 256}.weight" for row in range(n))
    table = ParameterTable(names, ((2**12,) * 5,) * n, (2**58,) * n, (2**59,) * n)
    columns = {name: np.ones(n, dtype) for name, (dtype, _) in COLUMNS.items()}
    columns["weight_nonfinite"] = columns["gradient_nonfinite"] = np.full(n, 2**58)
    many = ParameterNorms(table, **columns)
    [read] = DECODERS[MINDSPORE](encoded(value(many))[MINDSPORE])[1].values
    same(read.data, many)


def test_more_parameters_than_a_reader_takes_are_refused(monkeypatch):
    monkeypatch.setattr(norms, "_MAX_TABLE", 1 << 19)
    n = 20_000
    table = ParameterTable(tuple(f"{row:032}" for row in range(n)), ((),) * n, (1,) * n, (0,) * n)
    columns = {name: np.ones(n, dtype) for name, (dtype, _) in COLUMNS.items()}
    _, [refused] = encode_event(Event(1, 1.0, [value(ParameterNorms(table, **columns))]), None)
    assert (
        "of at most 250000 parameters whose names and shapes take less than 524288 bytes, got 20000"
        in refused.reason
    )

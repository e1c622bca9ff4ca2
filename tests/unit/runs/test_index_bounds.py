"""An index is believed only as far as its event file can hold what it says."""

import json
import struct

import google_crc32c
import pytest

import distsummary as ds
from distsummary.events.contents import MemoryColumn, Progression
from distsummary.events.index import index_path, read_index
from distsummary.events.segments import segments
from distsummary.format.records import MINDSPORE, Value
from tests.unit.runs.recording import record

HEAD = struct.Struct("<8sII")
HUGE = ["p", 0, 1, 10**10]


pytestmark = pytest.mark.usefixtures("indexed_by_readers")


def recorded_file(path, steps=20):
    def values(step, rank):
        return [Value("scalar", "loss", 1 / step), Value("scalar", "lr", 0.1), Value("text", "note", "x")]

    directory = record(path, steps=[*range(1, steps)], values=values, formats=(MINDSPORE,))
    len(ds.open_run(path).scalars())  # the first reader makes the index
    [file] = segments(directory, MINDSPORE)
    assert read_index(file) is not None
    return file


def forge(file, change):
    """Change the header of an index, or its columns, and make its CRCs right again."""
    path = index_path(file)
    data = path.read_bytes()
    magic, length, _ = HEAD.unpack_from(data)
    header, columns = json.loads(data[HEAD.size : HEAD.size + length]), bytearray(data[HEAD.size + length :])
    text = change(header, columns)
    text = json.dumps(header).encode() if text is None else text
    path.write_bytes(HEAD.pack(magic, len(text), google_crc32c.value(text)) + text + columns)


FORGERIES = {
    "huge events": lambda h, c: h["events"].update({name: HUGE for name in h["events"]}),
    "huge scalars": lambda h, c: h["scalars"].__setitem__(0, ["loss", HUGE, h["scalars"][0][2]]),
    "more scalars than bytes": lambda h, c: h["scalars"].extend(
        [f"forged{i}", *h["scalars"][0][1:]] for i in range(1000)
    ),
    "negative": lambda h, c: h["scalars"][0].__setitem__(1, ["p", 0, 1, -5]),
    "other lengths": lambda h, c: h["scalars"][0].__setitem__(1, ["p", 0, 1, 3]),
    "events that are not there": lambda h, c: h["scalars"][0].__setitem__(1, ["p", 5, 1, 19]),
    "backwards": lambda h, c: h["scalars"][0].__setitem__(1, ["p", 5, -1, 19]),
    "objects": lambda h, c: h["scalars"][0][2].__setitem__(1, "O"),
    "owners": lambda h, c: h["events"].update(owner=["p", 9, 0, 19]),
    "shards": lambda h, c: h["others"][0].__setitem__(5, ["p", 4, 0, 19]),
    "seqs": lambda h, c: h["events"].update(seq=["p", 1 << 62, 1 << 62, 19]),
    "lowest steps": lambda h, c: h.update(lows=[10**30]),
    "version": lambda h, c: h.update(version=[]),
    "deep": lambda h, c: b"[" * 200_000,
    "empty": lambda h, c: b"",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_an_index_that_says_what_its_file_cannot_hold_is_not_believed(tmp_path, name):
    file = recorded_file(tmp_path)
    before = ds.open_run(tmp_path).scalars()["value"].tolist()
    forge(file, FORGERIES[name])
    assert read_index(file) is None
    assert ds.open_run(tmp_path).scalars()["value"].tolist() == before


def test_many_tags_of_few_values_have_no_index_and_are_read_in_one_pass(tmp_path, monkeypatch):
    names = [f"t{number}" for number in range(3000)]

    def values(step, rank):
        return [Value("scalar", name, 1.0) for name in names]

    record(tmp_path, steps=[1], values=values, formats=(MINDSPORE,))
    loads = []
    load = Progression.load
    monkeypatch.setattr(Progression, "load", lambda column: loads.append(column) or load(column))
    run = ds.open_run(tmp_path)
    table = run.scalars()
    assert (table["tag"].tolist(), [*tmp_path.rglob("seg-*.idx")]) == (names, [])
    assert len(loads) < 3 * len(names)


def test_one_tag_an_event_takes_no_column_of_all_events_for_each_tag(tmp_path, monkeypatch):
    record(
        tmp_path,
        steps=[*range(1, 301)],
        values=lambda step, rank: [Value("scalar", f"t{step}", 1.0)],
        formats=(MINDSPORE,),
    )
    run = ds.open_run(tmp_path, index=False)
    run.scalars("t1")
    loaded = []
    for kind in (Progression, MemoryColumn):
        load = kind.load
        monkeypatch.setattr(
            kind, "load", lambda column, load=load: loaded.append(column.size) or load(column)
        )
    assert run.scalars()["step"].tolist() == [*range(1, 301)]
    assert sum(loaded) < 300 * 10

"""An index is believed only as far as its event file can hold what it says."""

import json
import struct

import google_crc32c
import pytest

import distsummary as ds
from distsummary.cli.fsck import fsck
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
    return path


def first_column(header, columns):
    """The values of the loss become 42, and the owners of the events 7."""
    place = next(found for tag, _, found in header["scalars"] if tag == "loss")
    columns[place[2] : place[2] + 4 * place[3]] = struct.pack(f"<{place[3]}f", *[42.0] * place[3])
    place[4] = google_crc32c.value(bytes(columns[place[2] : place[2] + 4 * place[3]]))


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
    path = forge(file, FORGERIES[name])
    assert read_index(file) is None
    assert [one.kind for one in fsck(tmp_path).findings if one.file == path] == ["index"]
    assert ds.open_run(tmp_path).scalars()["value"].tolist() == before


def test_forged_values_are_found_by_a_scan_and_put_aside(tmp_path):
    file = recorded_file(tmp_path)
    before = ds.open_run(tmp_path).scalars("loss")["value"].tolist()
    assert [one for one in fsck(tmp_path).findings if one.kind.startswith("index")] == []
    path = forge(file, first_column)
    assert set(ds.open_run(tmp_path).scalars("loss")["value"].tolist()) == {42.0}
    [false] = [one for one in fsck(tmp_path).findings if one.kind == "index_false"]
    assert (false.file, false.is_problem) == (path, True)
    assert "'loss'" in false.message
    repaired = fsck(tmp_path, repair=True)
    assert [one.kind for one in repaired.repaired] == ["index_false"]
    assert ds.open_run(tmp_path).scalars("loss")["value"].tolist() == before


def test_an_index_of_a_file_that_has_grown_is_compared_as_far_as_it_goes(tmp_path):
    file = recorded_file(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data + data[-40:])  # damage behind what was indexed
    assert [one.kind for one in fsck(tmp_path).findings if one.kind == "index_false"] == []


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
    assert [one for one in fsck(tmp_path).findings if one.severity == "error"] == []


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

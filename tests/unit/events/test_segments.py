import re

from distsummary.events.segments import SegmentName, dialect_of, lineage_files, next_stamp, segments, stamp_of
from distsummary.format.records import MINDSPORE, TENSORBOARD

NAME = SegmentName(host="node-1", pid=7)


def test_names_are_found_by_their_viewer_and_by_no_other():
    assert NAME.file_name(MINDSPORE, 1700000000) == "events.out.events.summary.1700000000.0.node-1_MS"
    assert NAME.file_name(TENSORBOARD, 1700000000) == "events.out.tfevents.1700000000.node-1.7.0"
    assert NAME.lineage_name(1700000000) == "events.out.events.summary.1700000000.0.node-1_lineage"
    hidden = NAME.lineage_name(1700000000, is_hidden=True)
    assert re.search(r"summary\.\d+|tfevents", hidden) is None  # how viewers find files
    assert (stamp_of(hidden), dialect_of(hidden)) == (1700000000, "lineage")
    assert stamp_of("lineage.1700000000.txt") is None
    assert stamp_of("torn-0.bin") is None
    assert stamp_of(".tmp-0123456789abcdef") is None


def test_lineage_files_are_no_segments(tmp_path):
    (tmp_path / NAME.lineage_name(5)).touch()
    (tmp_path / NAME.lineage_name(8, is_hidden=True)).touch()
    (tmp_path / NAME.file_name(MINDSPORE, 6)).touch()
    (tmp_path / NAME.file_name(TENSORBOARD, 7)).touch()
    assert [stamp_of(p.name) for p in segments(tmp_path, MINDSPORE)] == [6]
    assert [stamp_of(p.name) for p in segments(tmp_path, TENSORBOARD)] == [7]
    assert [stamp_of(p.name) for p in lineage_files(tmp_path)] == [5, 8]
    assert next_stamp(tmp_path, 0) == 9

"""open_run: runs of one rank, of several, that continue, that were restarted, damaged, removed."""

import json
import os
import shutil

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.main import main
from distsummary.errors import InvalidValueError, MissingFileError, NotADirectoryPathError
from distsummary.events import index, rank_stream, recorded
from distsummary.events.contents import scan
from distsummary.events.index import index_path, is_index, read_index
from distsummary.events.segments import lineage_files, segments
from distsummary.events.spec import Limits, WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format import mindspore_format, tensorboard_format, wire
from distsummary.format.frames import frame
from distsummary.format.histogram import count_histogram
from distsummary.format.hparams import session_start
from distsummary.format.pb.mindspore_anf_ir_pb2 import GraphProto
from distsummary.format.records import MINDSPORE, TENSORBOARD, Batch, Event, Shard, Value
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.show import overview
from distsummary.view.page import page
from tests.event_files import write_events
from tests.refusals import refused
from tests.unit.landscapes.test_grid import make_grid
from tests.unit.runs.recording import RUN, record

pytestmark = pytest.mark.usefixtures("indexed_by_readers")


def rows(table, *names):
    return list(zip(*(table[name].tolist() for name in names), strict=True))


def indexes(path):
    return [one for one in path.rglob("*") if is_index(one.name)]


def test_scalars_of_all_ranks_of_one_and_of_the_merged_run(tmp_path):
    for rank in range(2):
        record(tmp_path, rank=rank, ranks=2, steps=[1, 2])
    run = ds.open_run(tmp_path)
    assert (tuple(run.ranks), run.steps) == ((0, 1), (1, 2))
    assert (run.name, run.id, run.world_size) == (tmp_path.name, "", 2)
    assert run.tags == {"scalar": {"loss": 2, "lr": 2}}
    assert rows(run.ranks[1].scalars("loss"), "rank", "value") == [(1, 1.25), (1, 2.25)]
    assert repr(run.ranks[1]) == f"{run!r}.ranks[1]"
    with pytest.raises(KeyError):
        run.ranks[2]
    table = run.scalars("loss")
    assert table.columns == ("rank", "attempt", "step", "wall_time", "tag", "value")
    assert [tuple(row) for row in table] == [
        (0, 0, 1, 101.0, "loss", 1.0), (0, 0, 2, 102.0, "loss", 2.0),
        (1, 0, 1, 101.0, "loss", 1.25), (1, 0, 2, 102.0, "loss", 2.25),
    ]  # fmt: skip
    assert rows(run.scalars(rank=1), "tag", "value") == [
        ("loss", 1.25), ("loss", 2.25), ("lr", 0.5), ("lr", 0.5),
    ]  # fmt: skip
    assert rows(run.scalars(["lr", "loss"], rank=0), "tag", "step") == [
        ("lr", 1), ("lr", 2), ("loss", 1), ("loss", 2)
    ]  # fmt: skip
    assert len(run.scalars(rank="merged")) == 0
    ds.merge_run(tmp_path)
    merged = run.merged.scalars("loss")
    assert rows(merged, "rank", "step", "value") == [(-1, 1, 1.125), (-1, 2, 2.125)]
    assert run.scalars("zz_ranks/loss/max", rank="merged")["value"].tolist() == [1.25, 2.25]


def test_a_notebook_shows_what_a_run_is_and_what_was_reported_of_its_ranks(tmp_path):
    path = tmp_path / "<b>"
    for rank in range(2):
        record(path, rank=rank, ranks=2)
    shown = ds.open_run(path)._repr_html_()
    assert "&lt;b&gt;: no run.json, 2 ranks, steps 1 to 5, loss 5</p>" in shown
    assert "<p>tags: scalar 2</p>" in shown
    assert "<b>" not in shown
    reported = {"rank": 1, "cause": "data", "since_step": 1, "until_step": None, "reported_step": 2}
    RunDir(path).alerts_path.write_text(json.dumps(reported | {"evidence": "3 < 4"}) + "\n")
    shown = ds.open_run(path)._repr_html_()
    assert "<td>3 &lt; 4</td>" in shown
    assert "<p>Rank 1 has held up the run since step 1: 3 &lt; 4.</p>" in shown


def test_one_tag_as_a_matrix_of_steps_and_ranks(tmp_path):
    record(tmp_path, rank=0, ranks=3, steps=[1, 2])
    record(tmp_path, rank=1, ranks=3, steps=[2, 3])
    record(tmp_path, rank=2, ranks=3, values=lambda step, rank: [Value("scalar", "other", 1.0)])
    run = ds.open_run(tmp_path)
    steps, ranks, values = run.matrix("loss")
    assert (steps.tolist(), ranks.tolist(), values.dtype) == ([1, 2, 3], [0, 1], np.float32)
    assert repr(values.tolist()) == "[[1.0, nan], [2.0, 2.25], [nan, 3.25]]"


def test_a_run_of_one_rank_is_its_own_merged_run(tmp_path):
    record(tmp_path)
    run = ds.open_run(tmp_path)
    assert rows(run.scalars("loss"), "rank", "step") == [(0, step) for step in range(1, 6)]
    assert rows(run.scalars("loss", rank="merged"), "rank", "step") == rows(
        run.scalars("loss"), "rank", "step"
    )


def test_the_directory_of_one_rank_is_a_run_of_that_rank(tmp_path):
    for rank in range(2):
        directory = record(tmp_path, rank=rank, ranks=2)
    run = ds.open_run(directory)
    assert tuple(run.ranks) == (1,)
    assert rows(run.scalars("loss"), "rank", "value")[0] == (1, 1.25)


def test_evaluations_of_several_ranks_are_read_by_their_role(tmp_path):
    for role in ("train", "eval"):
        for rank in range(2):
            directory = RunDir(tmp_path).writer_dir(role, rank, 2)
            events = [Event(1, 0.0, [Value("scalar", f"{role}/acc", float(rank))])]
            write_events(directory, events, run_id=RUN, rank=rank)
    assert ds.open_run(tmp_path).tags == {"scalar": {"train/acc": 2}}
    run = ds.open_run(tmp_path, role="eval")
    assert rows(run.scalars("eval/acc"), "rank", "value") == [(0, 0.0), (1, 1.0)]
    ds.merge_run(tmp_path)
    assert run.scalars("eval/acc", rank="merged")["value"].tolist() == [0.5]
    with pytest.raises(MissingFileError, match="'landscape'; leave role= out"):
        ds.open_run(tmp_path, role="landscape")


def test_landscapes_are_loaded_by_name_and_a_damaged_one_is_named(tmp_path):
    record(tmp_path)
    directory = RunDir(tmp_path).landscape_dir
    directory.mkdir()
    grid = make_grid()
    grid.save(directory / "plane.npz")
    (directory / "torn.npz").write_bytes((directory / "plane.npz").read_bytes()[:-40])
    run = ds.open_run(tmp_path)
    assert list(run.landscapes) == ["plane"]
    assert (run.landscapes["plane"].z == grid.z).all()
    assert [line for line in run.problems if "torn.npz" in line]


def test_steps_that_a_restart_repeated_count_once_on_every_rank(tmp_path):
    record(tmp_path, rank=0, ranks=2, steps=range(1, 9))
    record(tmp_path, rank=1, ranks=2, steps=range(1, 7))
    record(tmp_path, rank=0, ranks=2, steps=range(6, 11), attempt=1)
    record(tmp_path, rank=1, ranks=2, steps=range(5, 11), attempt=1)  # its first step counts for both
    table = ds.open_run(tmp_path).scalars("loss")
    first = [(0, step) for step in range(1, 5)]
    assert rows(table, "attempt", "step")[:9] == first + [(1, step) for step in range(6, 11)]
    assert rows(table, "attempt", "step")[9:] == first + [(1, step) for step in range(5, 11)]


def test_an_attempt_without_files_of_mindspore_is_read_from_those_of_tensorboard(tmp_path):
    record(tmp_path, steps=[1, 2])
    record(tmp_path, steps=[3, 4], attempt=1, formats=(TENSORBOARD,))
    table = ds.open_run(tmp_path).scalars("loss")
    assert rows(table, "attempt", "step") == [(0, 1), (0, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("uses_index", [True, False])
def test_a_run_that_continues_is_followed_and_a_table_stays(tmp_path, uses_index):
    writer = RankWriter(WriterSpec(directory=tmp_path, run_id=RUN))
    seq, tables = 1, []
    run = None
    for count in (1, 3, 200, 1, 40, 500):
        events = [
            Event(step, 0.0, [Value("scalar", "loss", float(step))]) for step in range(seq, seq + count)
        ]
        writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=seq, events=events))
        writer.flush()
        seq += count
        run = run or ds.open_run(tmp_path, index=uses_index)
        tables.append(run.scalars("loss"))
        assert tables[-1]["step"].tolist() == list(range(1, seq))
        assert ds.open_run(tmp_path, index=uses_index).scalars("loss")["value"].tolist() == list(
            range(1, seq)
        )
    writer.close()
    assert [len(table) for table in tables] == [1, 4, 204, 205, 245, 745]
    assert bool(indexes(tmp_path)) is uses_index


def test_a_run_that_is_held_stays_as_it_was(tmp_path):
    record(tmp_path, rank=0, ranks=2)
    run = ds.open_run(tmp_path)
    with run.held():
        record(tmp_path, rank=1, ranks=2)
        with run.held():
            assert run.ranks_of("scalar") == {"loss": (0,), "lr": (0,)}
        assert {*run.scalars("loss")["rank"]} == {0}
    assert run.ranks_of("scalar")["loss"] == (0, 1)
    assert {*run.scalars("loss")["rank"]} == {0, 1}
    assert run.ranks_of("image") == {}


def test_the_state_of_a_run_that_is_held_stays_and_its_stamp_does_not(tmp_path):
    with ds.init(tmp_path / "run", aggregate=False, system_metrics=False) as training:
        for _ in training.steps(range(2)):
            pass
    run = ds.open_run(tmp_path / "run")
    manifest = run.path / "manifest.json"
    with run.held():
        before = run.stamp()
        manifest.write_text(manifest.read_text().replace('"finished"', '"failed"'))
        assert (run.state, set(run.health["state"])) == ("finished", {"finished"})
        assert run.stamp() != before
    assert run.state == "failed"


def test_a_torn_end_is_read_when_it_is_whole(tmp_path):
    directory = record(tmp_path)
    [file] = segments(directory, MINDSPORE)
    data = file.read_bytes()
    file.write_bytes(data[:-5])
    run = ds.open_run(tmp_path)
    assert run.scalars("loss")["step"].tolist() == [1, 2, 3, 4]
    assert [line for line in run.problems if file.name in line and "torn" in line]
    with open(file, "ab") as growing:
        growing.write(data[-5:])
    assert run.scalars("loss")["step"].tolist() == [1, 2, 3, 4, 5]
    assert run.problems == []


# --- the index


def test_the_index_is_read_in_place_of_the_file_and_only_while_it_is_the_same_file(tmp_path):
    directory = record(tmp_path, formats=(MINDSPORE,))
    [file] = segments(directory, MINDSPORE)
    before = rows(ds.open_run(tmp_path).scalars(), "tag", "step", "value")
    [path] = indexes(tmp_path)
    assert path == index_path(file)
    data, stat = file.read_bytes(), file.stat()
    file.write_bytes(bytes(len(data)))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert rows(ds.open_run(tmp_path).scalars(), "tag", "step", "value") == before  # from the index
    os.utime(file, (0, 0))
    assert len(ds.open_run(tmp_path).scalars()) == 0  # the file is the truth
    file.write_bytes(data)
    assert rows(ds.open_run(tmp_path).scalars(), "tag", "step", "value") == before
    copy = shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    os.utime(copy / file.name)  # a copy without its times: the CRC shows that it is the same
    opened = ds.open_run(copy)
    assert rows(opened.scalars(), "tag", "step", "value") == before


def test_an_index_that_is_damaged_anywhere_changes_nothing(tmp_path):
    def values(step, rank):
        return [Value("scalar", "loss", step / 3), Value("text", "note", f"t{step % 3}")]

    def read():
        run = ds.open_run(tmp_path)
        return rows(run.scalars(), "step", "wall_time", "value"), rows(run.text(), "step", "value")

    directory = record(tmp_path, steps=[1, 2, 3, 5, 8, 13], values=values)
    before = read()
    [path] = indexes(tmp_path)
    [file] = segments(directory, MINDSPORE)
    data = path.read_bytes()
    for place in [0, 9, 15, 40, *range(len(data) - 60, len(data), 7)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert read() == before
    path.write_bytes(data[: len(data) // 2])
    assert read_index(file) is None
    assert read() == before
    assert read_index(file) is not None  # made again


def test_an_index_of_another_version_is_made_again(tmp_path, monkeypatch):
    [file] = segments(record(tmp_path), MINDSPORE)
    with monkeypatch.context() as newer:
        newer.setattr(index, "VERSION", 99)
        assert len(ds.open_run(tmp_path).scalars("loss")) == 5
        assert read_index(file) is not None
    assert read_index(file) is None
    assert len(ds.open_run(tmp_path).scalars("loss")) == 5
    assert read_index(file) is not None


def test_readers_of_one_growing_run_take_each_others_indexes(tmp_path, monkeypatch):
    writer = RankWriter(WriterSpec(directory=tmp_path, run_id=RUN, formats=(MINDSPORE,)))
    written = 0

    def write(count):
        nonlocal written
        events = [
            Event(step, 0.0, [Value("scalar", "loss", step / 3), Value("text", "note", f"t{step}")])
            for step in range(written + 1, written + count + 1)
        ]
        writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=written + 1, events=events))
        writer.flush()
        written += count

    write(100)
    readers = [ds.open_run(tmp_path) for _ in range(3)]
    starts = []
    monkeypatch.setattr(recorded, "scan", lambda path, start: starts.append(start) or scan(path, start))
    for count in (1, 60, 90, 1, 150, 400):
        for reader in readers:
            assert reader.scalars("loss")["step"].tolist() == list(range(1, written + 1))
            assert [row.value for row in reader.text()] == [f"t{step}" for step in range(1, written + 1)]
        write(count)
    assert starts.count(0) == 1
    [file] = segments(tmp_path, MINDSPORE)
    assert read_index(file) is not None
    with readers[0].held():
        held = written
        write(1000)
        assert len(readers[1].scalars("loss")) == written  # and leaves its index
        assert readers[0].scalars("loss")["step"].tolist() == list(range(1, held + 1))
    writer.close()  # leaves its index, too
    for reader in readers:
        assert reader.scalars("loss")["value"].size == written
    assert starts.count(0) == 1
    assert read_index(file) is not None


def test_indexes_of_files_that_are_gone_do_not_pile_up(tmp_path):
    for rank in range(2):
        record(tmp_path, rank=rank, ranks=2)
    for _ in range(3):
        ds.merge_run(tmp_path)
        assert len(ds.open_run(tmp_path).scalars("loss", rank="merged")) == 5
    assert len(indexes(tmp_path)) == 3  # of two ranks and of the merged run


def test_a_recording_and_a_merge_leave_indexes_so_that_a_reader_opens_no_event_file(
    tmp_path, monkeypatch, indexed_by_writers
):
    for rank in range(2):
        record(tmp_path, rank=rank, ranks=2)
    ds.merge_run(tmp_path)
    assert len(indexes(tmp_path)) == 3
    monkeypatch.setattr(recorded, "scan", lambda path, start: pytest.fail(f"{path} is read"))
    run = ds.open_run(tmp_path)
    assert len(run.scalars("loss")) == 10
    assert len(run.scalars("loss", rank="merged")) == 5


@pytest.mark.parametrize("formats", [(MINDSPORE,), (TENSORBOARD,), (MINDSPORE, TENSORBOARD)])
def test_a_file_is_indexed_when_it_is_closed_also_by_rotation(tmp_path, indexed_by_writers, formats):
    limits = Limits(rotate_bytes=4096)
    writer = RankWriter(WriterSpec(directory=tmp_path, run_id=RUN, formats=formats, limits=limits))
    for seq in range(1, 151):
        events = [Event(seq, 100.0, [Value("scalar", "loss", seq / 2), Value("text", "note", "x" * 30)])]
        writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=seq, events=events))
    files = segments(tmp_path, formats[0])
    assert len(files) > 2
    assert [index_path(path).exists() for path in files] == [True] * (len(files) - 1) + [False]
    writer.close()
    assert {*indexes(tmp_path)} == {index_path(path) for path in files}
    run = ds.open_run(tmp_path)
    assert run.scalars("loss")["value"].tolist() == [seq / 2 for seq in range(1, 151)]
    assert len(run.text("note")) == 150


@pytest.mark.parametrize("is_small", [True, False])
def test_a_recording_leaves_no_index_of_a_file_that_is_too_small_or_too_large(
    tmp_path, monkeypatch, request, is_small
):
    if not is_small:
        request.getfixturevalue("indexed_by_writers")
        monkeypatch.setattr(index, "MOST_BYTES", 1)
    record(tmp_path)
    assert indexes(tmp_path) == []
    assert len(ds.open_run(tmp_path).scalars("loss")) == 5  # whose reader leaves one
    assert len(indexes(tmp_path)) == 1


def test_a_recording_that_cannot_write_its_index_ends_as_any(tmp_path, indexed_by_writers):
    writer = RankWriter(WriterSpec(directory=tmp_path, run_id=RUN))
    event = Event(1, 100.0, [Value("scalar", "loss", 0.5)])
    writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=1, events=[event]))
    index_path(writer.path(MINDSPORE)).mkdir()
    writer.close()
    assert writer.health().missing == ""
    assert writer.health().errors == {}
    assert ds.open_run(tmp_path).scalars("loss")["value"].tolist() == [0.5]


def test_where_no_index_can_be_written_all_is_read(tmp_path, monkeypatch):
    directory = record(tmp_path)
    [file] = segments(directory, MINDSPORE)
    index_path(file).mkdir()
    assert len(ds.open_run(tmp_path).scalars("loss")) == 5
    index_path(file).rmdir()
    disk = os.statvfs(tmp_path)
    full = os.statvfs_result([*disk[:4], 10, *disk[5:]])  # ten free blocks
    for place, name, instead in (
        (os, "statvfs", lambda path: full),
        (index, "_MAX_HEADER", 100),
        (os, "access", lambda path, mode: False),
    ):
        with monkeypatch.context() as hindered:
            hindered.setattr(place, name, instead)
            assert len(ds.open_run(tmp_path).scalars("loss")) == 5
        assert indexes(tmp_path) == []
    assert len(ds.open_run(tmp_path).scalars("loss")) == 5
    assert len(indexes(tmp_path)) == 1


# --- what is not scalars


def test_values_are_read_one_by_one_from_where_they_stand(tmp_path):
    def values(step, rank):
        picture = np.full((2, 3, 3), step, np.uint8)
        return [Value("image", "im", picture), Value("text", "note", f"<b>{step}</b>"), *weights(step)]

    def weights(step):
        array = np.arange(6.0, dtype=np.float32).reshape(2, 3) * step
        return [Value("tensor", "w", array), Value("histogram", "h", array)]

    record(tmp_path, steps=[1, 2], values=values)
    for run in (ds.open_run(tmp_path), ds.open_run(tmp_path)):  # from the file, then from the index
        assert rows(run.text(), "step", "tag", "value") == [(1, "note", "<b>1</b>"), (2, "note", "<b>2</b>")]
        [first, second] = run.images("im")
        assert (first.value.height, first.value.width, first.step, second.step) == (2, 3, 1, 2)
        assert run.tensors().value(1).tolist() == [[0, 2, 4], [6, 8, 10]]
        assert run.histograms("h").value(-1).max == 10.0
        assert run.tags["histogram"] == {"h": 1}
        with pytest.raises(InvalidValueError, match="'imm'; the nearest are im"):
            run.images("imm")
        for table, expected in (
            (run.text(), "<b>1</b>"),
            (run.tensors(), {"shape": [2, 3], "dtype": "float32", "values": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}),
            (run.images(), {"height": 2, "width": 3, "encoded": first.value.encoded}),
        ):
            assert table.to_polars()["value"][0] == table.to_arrow()["value"][0].as_py() == expected
            assert len(table.to_pandas()) == 2
            assert len(table._repr_html_()) < 2000
        assert run.histograms().to_arrow()["value"][1].as_py()["max"] == 10.0


def test_shards_are_put_together_and_what_is_missing_is_masked(tmp_path):
    whole = np.arange(12.0, dtype=np.float32).reshape(4, 3)

    def shard_of(step, rank):
        shard = Shard(global_shape=(4, 3), offset=(2 * rank, 0))
        part = whole[2 * rank : 2 * rank + 2] * step
        counted = count_histogram(part, fixed=True)
        return [Value("tensor", "w", part, shard), Value("histogram", "w", counted, shard)]

    record(tmp_path, rank=0, ranks=2, steps=[1, 2], values=shard_of)
    record(tmp_path, rank=1, ranks=2, steps=[1], values=shard_of)
    for run in (ds.open_run(tmp_path), ds.open_run(tmp_path)):
        table = run.tensors("w")
        assert rows(table, "rank", "step") == [(0, 1), (0, 2)]
        assert table.value(0).tolist() == whole.tolist()
        second = table.value(1)
        assert second.mask.tolist() == [[False] * 3] * 2 + [[True] * 3] * 2
        assert second[:2].tolist() == (2 * whole[:2]).tolist()
        assert run.tensors("w", rank=1).value(0).tolist() == whole[2:].tolist()
        histograms = run.histograms("w")
        assert rows(histograms, "rank", "step") == [(0, 1), (0, 2)]
        assert [histograms.value(row).count for row in (0, 1)] == [12, 6]  # a shard of step 2 is missing


# --- what is said about the run


def test_config_lineage_attempts_and_health_of_a_recorded_run(tmp_path):
    for rank in range(2):
        with ds.init(
            tmp_path,
            rank=rank,
            world_size=2,
            aggregate=False,
            quiet=True,
            config={"seed": 7, "opt": {"lr": 0.5}},
        ) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1.0)
    run = ds.open_run(tmp_path)
    assert (run.state, run.config) == ("finished", {"seed": 7, "opt": {"lr": 0.5}})
    assert (run.name, len(run.id), run.world_size) == (tmp_path.name, 16, 2)
    assert "argv" in run.provenance
    assert run.problems == [f"not merged: distsummary merge {tmp_path}"]
    ds.merge_run(tmp_path)
    assert run.problems == []
    assert run.lineage["train"]["hyper_parameters"]["device_num"] == 2
    [attempt] = run.attempts
    assert (attempt.attempt, attempt.state, attempt.world_size, attempt.ranks) == (0, "finished", 2, 2)
    assert rows(run.health, "rank", "state", "step") == [(0, "finished", 3), (1, "finished", 3)]
    assert run.graph is None
    assert run.landscapes == {}
    [file] = lineage_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert "train" in run.lineage  # that of a rank
    assert [str(file) in line for line in run.problems] == [True]
    for rank in range(2):
        shutil.rmtree(tmp_path / f"rank_{rank:05d}")
    assert "no directory of rank 0, 1" in ds.open_run(tmp_path).problems


def test_attempts_name_the_rank_that_died_without_a_word(tmp_path):
    for rank in range(2):
        with ds.init(tmp_path, rank=rank, world_size=2, aggregate=False, quiet=True) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1.0)
    path = tmp_path / "rank_00001" / "manifest.json"
    reported = json.loads(path.read_text())
    reported["attempts"][0] |= {"state": "running", "pid_start": "1"}  # of a process that is gone
    path.write_text(json.dumps(reported))
    [attempt] = ds.open_run(tmp_path).attempts
    assert (attempt.state, attempt.failed_rank) == ("lost", 1)
    assert attempt.error.startswith("its process is gone from ")


def test_the_settings_of_files_of_tensorboard_are_the_config(tmp_path):
    settings = {"lr": 0.5, "name": "x"}
    record(
        tmp_path, steps=[0], values=lambda step, rank: [session_start(settings, 1.0)], formats=(TENSORBOARD,)
    )
    assert ds.open_run(tmp_path).config == settings


def test_verdicts_are_read_line_by_line(tmp_path):
    record(tmp_path)
    run = ds.open_run(tmp_path)
    assert len(run.verdicts) == 0
    said = {"rank": 2, "cause": "slow: data", "since_step": 40, "until_step": None, "evidence": "12.5 ms"}
    (tmp_path / "alerts.jsonl").write_text(f"{json.dumps(said | {'reported_step': 45})}\nno json\n")
    [row] = run.verdicts
    assert (row.rank, row.cause, row.since_step, row.until_step, row.reported_step) == (
        2, said["cause"], 40, -1, 45,
    )  # fmt: skip
    assert row.evidence == "12.5 ms"
    assert ["line 2" in line for line in run.problems] == [True]
    (tmp_path / "alerts.jsonl").write_text(f"{json.dumps(said | {'reported_step': 45})}\n")
    assert (len(run.verdicts), run.problems) == (1, [])


def test_a_verdict_that_is_being_written_is_no_problem_while_the_run_continues(tmp_path):
    reported = {"rank": 0, "cause": "data", "since_step": 1, "until_step": None, "evidence": "e"}
    line = json.dumps(reported | {"reported_step": 2})
    with ds.init(tmp_path, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(1)):
            run.log(loss=1.0)
            reader = ds.open_run(tmp_path)
            for text, problems in ((line, 0), (f"{line}\n{line[:30]}", 0), ("{\n" + line, 1)):
                (tmp_path / "alerts.jsonl").write_text(text)
                assert (len(reader.verdicts), len(reader.problems)) == (1, problems)
    (tmp_path / "alerts.jsonl").write_text(f"{line}\n{line[:30]}")
    assert len(reader.verdicts) == 1
    assert ["line 2" in line for line in reader.problems] == [True]


# --- bad input


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: path / "nowhere", MissingFileError, "name the directory of a run"),
        (lambda path: (path / "f").touch() or path / "f", NotADirectoryPathError, "is a file"),
        (lambda path: path, MissingFileError, "is not a run: .* name the directory of a run"),
        (lambda path: record(path / "a" / "b") and path / "a", MissingFileError, "holds runs: distsummary "),
        (lambda path: "s3://bucket/run", InvalidValueError, "file system"),
        (lambda path: " ", InvalidValueError, "blank"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_one_line(tmp_path, make, error, message):
    with pytest.raises(error, match=message) as caught:
        ds.open_run(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_unknown_tag_or_rank_names_what_there_is(tmp_path):
    record(tmp_path)
    run = ds.open_run(tmp_path)
    refused(
        InvalidValueError,
        (lambda: run.scalars("los"), "'los'; the nearest are loss"),
        (lambda: run.matrix("los"), "'los'; the nearest are loss"),
        (lambda: run.scalars("loss", rank=3), "rank must be 'merged', None or one of 0, got 3"),
        (lambda: run.scalars("loss", rank="all"), "got 'all'"),
        (lambda: ds.open_run(tmp_path, role="training"), "role"),
    )


def test_damage_is_left_out_and_named(tmp_path):
    directory = record(tmp_path, steps=range(1, 101))
    [file] = segments(directory, MINDSPORE)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    for run in (ds.open_run(tmp_path), ds.open_run(tmp_path)):
        assert len(run.scalars("loss")) == 99
        [line] = run.problems
        assert (str(file) in line, "byte" in line) == (True, True)


def refuse(monkeypatch, *refused):
    """Let these files and directories be such as may not be read."""
    real_open, real_segments = open, rank_stream.segments

    def check(path):
        if path in refused:
            raise PermissionError(13, "Permission denied", str(path))

    def checked_open(path, *arguments, **options):
        check(path)
        return real_open(path, *arguments, **options)

    def checked_segments(directory, dialect):
        check(directory)
        return real_segments(directory, dialect)

    monkeypatch.setattr("builtins.open", checked_open)
    monkeypatch.setattr(rank_stream, "segments", checked_segments)


def test_what_may_not_be_read_is_named_and_all_else_is_shown(tmp_path, monkeypatch):
    for rank in range(3):
        directory = record(tmp_path, rank=rank, ranks=3)
    record(tmp_path, rank=2, ranks=3, steps=[6, 7], first_seq=6)
    ds.merge_run(tmp_path)
    last = segments(directory, MINDSPORE)[1:]
    lineage = tmp_path / "events.out.events.summary.9999999999.merged.host_lineage"
    lineage.mkdir()
    RunDir(tmp_path).alerts_path.mkdir()
    (tmp_path / "landscape").mkdir()
    (tmp_path / "landscape" / "a.npz").mkdir()
    run = ds.open_run(tmp_path, index=False)
    with monkeypatch.context() as refusing:
        refuse(refusing, RunDir(tmp_path).rank_dirs()[0], tmp_path, *last)
        shown = page(run)
        [curve] = [one for one in shown["curves"] if one["tag"] == "loss"]
        assert [line["rank"] for line in curve["lines"]] == [1, 2]
        assert [line["values"].size for line in curve["lines"]] == [5, 5]
        assert overview(run).steps == (1, 5)
        reported = "\n".join(shown["overview"]["problems"])
        for text in (
            f"rank 0: {RunDir(tmp_path).rank_dirs()[0]} cannot be read: Permission denied",
            f"the merged run: {tmp_path} cannot be read: Permission denied",
            *(f"{file}, byte 0: it cannot be read: Permission denied" for file in last),
            f"{lineage} cannot be read: Is a directory",
            "not judged: alerts.jsonl cannot be read: Is a directory",
            "a.npz",
        ):
            assert text in reported
    for path in (lineage, RunDir(tmp_path).alerts_path, tmp_path / "landscape" / "a.npz"):
        path.rmdir()
    shown = page(run)
    assert shown["overview"]["problems"] == []
    assert shown["overview"]["steps"] == [1, 7]


def test_a_graph_that_may_not_be_read_is_named_and_that_of_another_rank_taken(tmp_path, monkeypatch):
    graph = GraphProto(name="net").SerializeToString()
    for rank in range(2):
        record(tmp_path, rank=rank, ranks=2, steps=[0], values=lambda step, rank: [Value("graph", "", graph)])
    run = ds.open_run(tmp_path)
    assert run.graph.name == "net"  # and leaves the indexes
    files = [segments(directory, MINDSPORE)[0] for directory in RunDir(tmp_path).rank_dirs().values()]
    with monkeypatch.context() as refusing:
        refuse(refusing, files[0])
        assert run.graph.name == "net"
        assert [str(files[0]) in line for line in run.problems] == [True]
        refuse(refusing, *files)
        assert run.graph is None
        assert len(run.problems) == 2
    assert (run.graph.name, run.problems) == ("net", [])


@pytest.mark.parametrize("data", [b"garbage" * 9, b"x"])
def test_a_file_without_any_event_is_named(tmp_path, data):
    record(tmp_path)
    (tmp_path / "events.out.events.summary.9999999999.0.host_MS").write_bytes(data)
    run = ds.open_run(tmp_path)
    assert len(run.scalars("loss")) == 5
    assert ["summary.9999999999" in line for line in run.problems] == [True]


def test_the_manifest_of_a_rank_that_is_damaged_is_named(tmp_path):
    with ds.init(tmp_path, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
    (tmp_path / "manifest.json").write_text("{")
    opened = ds.open_run(tmp_path)
    assert len(opened.scalars("loss")) == 2
    [line] = opened.problems
    assert line.startswith("rank 0: ")
    assert "not JSON" in line


def test_a_manifest_of_a_newer_version_hides_nothing_else(tmp_path):
    record(tmp_path)
    RunDir(tmp_path).manifest_path.write_text('{"format": 99, "run_id": "ab", "attempts": []}')
    run = ds.open_run(tmp_path)
    assert run.state == "unreadable"
    assert len(run.scalars("loss")) == 5
    assert [line for line in run.problems if "format 99" in line]
    assert run.config == {}


@pytest.mark.parametrize(
    ("formats", "known", "newer"),
    [
        (MINDSPORE, "MindSpore.Event:1", "MindSpore.Event:2"),
        (TENSORBOARD, "brain.Event:2", "brain.Event:30"),
        (TENSORBOARD, "brain.Event:2", "other.Event:99"),
        (MINDSPORE, "MindSpore.Event:1", "MindSpore.Event:x"),
    ],
)
def test_an_event_file_of_a_newer_format_is_read_as_far_as_it_is_known_and_named(
    tmp_path, monkeypatch, capsys, formats, known, newer
):
    module = {MINDSPORE: mindspore_format, TENSORBOARD: tensorboard_format}[formats]
    with monkeypatch.context() as writing:
        writing.setattr(module, "VERSION", newer)
        directory = record(tmp_path, formats=(formats,))
    [file] = segments(directory, formats)
    unknown = wire.delimited(1, wire.text(1 + (formats == MINDSPORE), "new") + wire.delimited(1999, b"what"))
    with open(file, "ab") as growing:  # a value of a kind, and an event, that only newer versions know
        growing.write(frame(wire.double(1, 9.0) + wire.integer(2, 9) + wire.delimited(5, unknown)))
        growing.write(frame(wire.double(1, 9.0) + wire.integer(2, 9) + wire.delimited(1998, b"what")))
    line = f"{file}, byte 0: the file is of the format {newer}, which is newer than {known}; "
    expected = newer in ("MindSpore.Event:2", "brain.Event:30")
    for _ in range(2):  # from the file, and from its index
        run = ds.open_run(tmp_path)
        assert run.scalars("loss")["step"].tolist() == [1, 2, 3, 4, 5]
        assert [one.startswith(line) for one in run.problems] == [True] * expected
        assert page(run)["overview"]["problems"] == run.problems
    assert indexes(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    assert (f"which is newer than {known}" in " ".join(capsys.readouterr().out.split())) is expected


def test_a_rank_or_run_that_is_removed_while_it_is_read(tmp_path):
    base = tmp_path / "run"
    for rank in range(2):
        record(base, rank=rank, ranks=2)
    run = ds.open_run(base)
    assert len(run.scalars("loss")) == 10
    texts = run.text()
    shutil.rmtree(base / "rank_00001")
    assert set(run.scalars("loss")["rank"].tolist()) == {0}
    assert [line for line in run.problems if "rank 1: " in line and "removed" in line]
    shutil.rmtree(base)
    with pytest.raises(MissingFileError, match="was removed while it was read"):
        run.scalars("loss")
    assert len(texts) == 0


def test_a_value_whose_file_is_gone_says_so(tmp_path):
    record(tmp_path, values=lambda step, rank: [Value("text", "note", "x")])
    table = ds.open_run(tmp_path).text()
    for file in segments(tmp_path, MINDSPORE):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="changed while it was read"):
        table.value(0)
    for file in segments(tmp_path, MINDSPORE):
        file.unlink()
    with pytest.raises(MissingFileError, match="was removed"):
        table.value(0)

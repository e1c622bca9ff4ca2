"""The other dialect: what it holds is the same, what it cannot hold is counted, and nothing is doubled."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from distsummary.aggregate.charts import charts
from distsummary.cli.convert import convert, widened
from distsummary.cli.fsck import fsck
from distsummary.errors import MissingFileError, RunDirError
from distsummary.events.files import Files
from distsummary.events.reader import read_directory
from distsummary.events.segments import segments, stamp_of
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import read_frames
from distsummary.format.histogram import count_histogram
from distsummary.format.hparams import session_start
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.records import Batch, Event, Histogram, Shard, Value
from tests.disks import FULL, room_for
from tests.event_files import write_events
from tests.unit.format import samples

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ms"
RUN = "0123456789abcdef"


def write(directory: Path, dialects: tuple[str, ...], *, attempt: int = 0, first_step: int = 1) -> None:
    values = [value for value in samples.SUMMARY_VALUES if value.plugin != "landscape"]
    events = [
        Event(step, float(step), [*values, Value("scalar", "acc", step / 2)])
        for step in range(first_step, first_step + 5)
    ]
    write_events(directory, events, run_id=RUN, attempt=attempt, formats=dialects)


def reported(directory: Path, dialect: str) -> list[tuple[object, ...]]:
    """What both dialects can hold of a directory's events."""
    return [
        (event.run_id, event.attempt, event.seq, event.step, event.wall_time, value.tag, plain(value.data))
        for event in read_directory(directory, dialect)
        for value in event.values
        if value.plugin in ("scalar", "image", "histogram", "text", "audio", "pr_curve")
    ]


def plain(data: object) -> object:
    if isinstance(data, Histogram):
        return data.counts.tolist(), data.min, data.max, data.sum
    return data.tolist() if isinstance(data, np.ndarray) else data


def test_a_directory_gets_the_dialect_that_the_writer_would_have_written(nasty_tmp_path: Path):
    write(nasty_tmp_path / "one", ("mindspore",))
    write(nasty_tmp_path / "both", ("mindspore", "tensorboard"))
    (converted,) = convert(nasty_tmp_path / "one").converted
    assert converted.events == 5
    assert converted.left_out == {"tensor": 5}
    assert converted.damage == []
    assert reported(nasty_tmp_path / "one", "tensorboard") == reported(nasty_tmp_path / "both", "tensorboard")
    (made,) = segments(nasty_tmp_path / "one", "tensorboard")
    assert made == converted.file
    (source,) = segments(nasty_tmp_path / "one", "mindspore")
    assert stamp_of(made.name) == stamp_of(source.name)
    assert fsck(nasty_tmp_path / "one").findings == ()


def test_and_back(nasty_tmp_path: Path):
    write(nasty_tmp_path / "one", ("tensorboard",))
    (converted,) = convert(nasty_tmp_path / "one", to="mindspore").converted
    assert converted.left_out == {}
    assert reported(nasty_tmp_path / "one", "mindspore") == reported(nasty_tmp_path / "one", "tensorboard")
    assert fsck(nasty_tmp_path / "one").findings == ()


def test_real_mindspore_files_are_converted_to_another_place(nasty_tmp_path: Path):
    report = convert(GOLDEN / "lenet_images" / "summary", out=nasty_tmp_path / "tb")
    assert report.converted[0].left_out.keys() == {"graph", "tensor"}
    source = reported(GOLDEN / "lenet_images" / "summary", "mindspore")
    made = reported(nasty_tmp_path / "tb", "tensorboard")
    assert [(row[3], row[4], row[5]) for row in made] == [(row[3], row[4], row[5]) for row in source]
    assert {type(row[6]) for row in made} == {type(row[6]) for row in source}
    assert not segments(GOLDEN / "lenet_images" / "summary", "tensorboard")


def test_a_second_conversion_is_refused(nasty_tmp_path: Path):
    write(nasty_tmp_path / "run", ("mindspore",))
    convert(nasty_tmp_path / "run")
    before = sorted(nasty_tmp_path.rglob("*"))
    with pytest.raises(RunDirError, match="double"):
        convert(nasty_tmp_path / "run")
    assert sorted(nasty_tmp_path.rglob("*")) == before


def test_the_ranks_of_a_run_are_converted_and_what_has_both_is_left(nasty_tmp_path: Path):
    write(nasty_tmp_path, ("mindspore", "tensorboard"))
    for rank in range(2):
        write(nasty_tmp_path / f"rank_0000{rank}", ("mindspore",))
    report = convert(nasty_tmp_path)
    assert [one.directory.name for one in report.converted] == ["rank_00000", "rank_00001"]
    assert report.already == (nasty_tmp_path,)
    assert len(report.as_lines()) == 3
    assert report.converted[0].events == 5


def test_a_live_writer_is_waited_for(nasty_tmp_path: Path):
    writer = RankWriter(WriterSpec(directory=nasty_tmp_path / "run", run_id=RUN, formats=("mindspore",)))
    event = Event(1, 1.0, [Value("scalar", "loss", 0.5)])
    writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=1, events=[event]))
    with pytest.raises(RunDirError, match="being written"):
        convert(nasty_tmp_path / "run")
    writer.close()
    assert convert(nasty_tmp_path / "run").converted[0].events == 1


def test_a_conversion_that_fails_leaves_no_file(nasty_tmp_path: Path):
    write(nasty_tmp_path / "run", ("mindspore",))
    with pytest.raises(RunDirError, match=FULL), room_for(100):
        convert(nasty_tmp_path / "run")
    assert not segments(nasty_tmp_path / "run", "tensorboard")
    assert not list((nasty_tmp_path / "run").glob(".tmp-*"))


def test_damage_is_left_out_and_listed(nasty_tmp_path: Path):
    write(nasty_tmp_path / "run", ("mindspore",))
    (path,) = segments(nasty_tmp_path / "run", "mindspore")
    third = list(read_frames(path))[3]
    data = bytearray(path.read_bytes())
    data[third.offset + 20] ^= 1
    path.write_bytes(data)
    (converted,) = convert(nasty_tmp_path / "run").converted
    assert converted.events == 4
    assert [damage.offset for damage in converted.damage] == [third.offset]


def test_a_later_attempt_starts_a_session_of_tensorboard(nasty_tmp_path: Path):
    write(nasty_tmp_path / "run", ("mindspore",))
    write(nasty_tmp_path / "run", ("mindspore",), attempt=1, first_step=4)
    (converted,) = convert(nasty_tmp_path / "run").converted
    assert converted.file is not None
    events = [tensorboard_pb2.Event.FromString(f.payload) for f in read_frames(converted.file)]
    (start,) = [event for event in events if event.HasField("session_log")]
    assert (start.session_log.status, start.step) == (tensorboard_pb2.SessionLog.START, 4)
    assert fsck(nasty_tmp_path / "run").exit_code == 0


def test_what_has_no_place_makes_no_file(nasty_tmp_path: Path):
    shutil.copytree(GOLDEN / "landscape_pca_random" / "summary", nasty_tmp_path / "run")
    (converted,) = convert(nasty_tmp_path / "run").converted
    assert (converted.file, converted.events, converted.left_out) == (None, 0, {"landscape": 3})


def test_nothing_to_convert_is_said(nasty_tmp_path: Path):
    for path in (nasty_tmp_path, nasty_tmp_path / "nowhere"):
        with pytest.raises(MissingFileError, match="name"):
            convert(path)


def test_wide_histograms_keep_their_counts():
    histogram = count_histogram(np.random.default_rng(1).normal(size=1000).astype(np.float32))
    edges = np.linspace(-4.0, 4.0, 1001)
    fine = Histogram(
        left=edges[:-1], width=np.diff(edges), counts=np.arange(1000), count=499_500, min=-4.0, max=4.0,
        sum=0.0,
    )  # fmt: skip
    wide = widened(fine, 90)
    assert wide.left.size <= 90
    assert wide.counts.sum() == fine.counts.sum()
    assert wide.left[0] == -4.0
    np.testing.assert_allclose(wide.left[1:], (wide.left + wide.width)[:-1])
    assert (wide.left + wide.width)[-1] == 4.0
    assert widened(histogram, 90).left.size == histogram.left.size


def test_the_fixed_buckets_of_a_shard_survive_the_way_to_tensorboards_dialect(nasty_tmp_path: Path):
    values = np.random.default_rng(1).normal(size=1000)
    shard = Value("histogram", "h", values, Shard(global_shape=(2000,), offset=(1000,)))
    write_events(nasty_tmp_path, [Event(1, 1.0, [shard])], run_id="f" * 16, formats=("mindspore",))
    convert(nasty_tmp_path)
    [event] = read_directory(nasty_tmp_path, "tensorboard")
    [value] = event.values
    assert value.shard == shard.shard
    assert value.data.counts.tolist() == count_histogram(values, fixed=True).counts.tolist()


def test_the_host_of_a_converted_file_is_this_one(nasty_tmp_path: Path):
    class NamedHost(Files):
        def host(self) -> str:
            return "here"

    write(nasty_tmp_path / "run", ("mindspore",))
    (converted,) = convert(nasty_tmp_path / "run", files=NamedHost()).converted
    assert ".here." in converted.file.name


def test_what_is_for_a_page_of_tensorboard_has_no_place_in_mindspores_dialect(nasty_tmp_path: Path):
    layout = charts({"zz_ranks/loss/min", "zz_ranks/loss/median", "zz_ranks/loss/max"})
    assert layout is not None
    only = [Event(1, 1.0, [session_start({"lr": 0.1}, 1.0)]), Event(1, 1.0, [layout])]
    events = [Event(1, 1.0, [Value("scalar", "loss", 0.5)]), *only]
    write_events(nasty_tmp_path, events, run_id=RUN, formats=("tensorboard",))
    [converted] = convert(nasty_tmp_path, to="mindspore").converted
    assert (converted.events, converted.left_out, converted.refused) == (
        1,
        {"hparams": 1, "custom_scalars": 1},
        0,
    )


def test_norms_go_both_ways(nasty_tmp_path: Path):
    events = [Event(step, 1.0, [Value("scalar", "x", 0.5), samples.norms(step=step)]) for step in (1, 2)]
    write_events(nasty_tmp_path / "one", events, run_id=RUN, formats=("mindspore",))
    (there,) = convert(nasty_tmp_path / "one", out=nasty_tmp_path / "two").converted
    (back,) = convert(nasty_tmp_path / "two", to="mindspore", out=nasty_tmp_path / "three").converted
    assert (there.left_out, back.left_out, there.events, back.events) == ({}, {}, 2, 2)
    for place, dialect in (("two", "tensorboard"), ("three", "mindspore")):
        read = [event.values[1].data for event in read_directory(nasty_tmp_path / place, dialect)]
        for event, found in zip(events, read, strict=True):
            recorded = event.values[1].data
            assert found.table == recorded.table
            assert found.gradient_sums.tobytes() == recorded.gradient_sums.tobytes()

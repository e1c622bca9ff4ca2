import logging
from pathlib import Path

import numpy as np
import pytest

from distsummary.collect import file_export as export
from distsummary.collect.record import SummaryRecord
from distsummary.collect.values import checked_values
from distsummary.errors import (
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    NotADirectoryPathError,
    WriteError,
)
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.segments import segments, source_of
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir
from distsummary.format.pb import mindspore_lineage_pb2 as lineage
from distsummary.format.records import DIALECTS, Landscape
from distsummary.frameworks.numpy import NumpyFramework
from tests.refusals import refused
from tests.unit.collect.doubles import ListWriter


@pytest.fixture
def writer():
    return ListWriter()


@pytest.fixture
def record(tmp_path, writer):
    with SummaryRecord(tmp_path, writer=writer) as record:
        yield record


def graph():
    return anf_ir.GraphProto(name="net", node=[anf_ir.NodeProto(name="1", op_type="MatMul")])


def landscape():
    return Landscape(
        x=np.zeros(2), y=np.zeros(3), z=np.zeros((3, 2)), decomposition="PCA", unit="step", step_per_epoch=1,
        convergence_point=(0.0, 0.0, 1.0),
    )  # fmt: skip


GOOD = {
    "scalar": 1.5, "tensor": np.zeros((2, 0), dtype=np.float16), "histogram": np.arange(3),
    "image": np.zeros((2, 3, 4, 5)), "landscape": landscape(), "text": "Größe **大**, a NUL \0",
    "graph": graph().SerializeToString(), "dataset_graph": lineage.DatasetGraph(),
    "train_lineage": lineage.TrainLineage(), "eval_lineage": lineage.EvaluationLineage(),
    "custom_lineage_data": lineage.UserDefinedInfo(),
}  # fmt: skip


def test_one_call_records_one_event(record, writer):
    for plugin, value in GOOD.items():
        record.add_value(plugin, "x", value)
    assert record.record(7) is True
    [event] = writer.events
    assert ([value.plugin for value in event.values], event.step) == (list(GOOD), 7)


def test_a_text_is_read_as_it_was_given(tmp_path):
    long = "ä" * (1 << 19)  # 1 MiB
    with SummaryRecord(tmp_path) as record:
        for tag, text in (("good", GOOD["text"]), ("empty", ""), ("numpy's", np.str_("a")), ("long", long)):
            record.add_value("Text", tag, text)
        record.record(7)
    expected = {"good": GOOD["text"], "empty": "", "numpy's": "a", "long": long}
    for dialect in DIALECTS:
        [event] = read_directory(tmp_path, dialect)
        assert {value.tag: value.data for value in event.values} == expected


@pytest.mark.parametrize(
    ("wrong", "error", "remedy"),
    [
        (b"bytes", InvalidTypeError, r"value\.decode\(\)"),
        (3, InvalidTypeError, r"got int; convert it with str\(\)"),
        (None, InvalidTypeError, "got NoneType"),
        ("half \ud83d", InvalidValueError, r"character 5 .*errors=\"replace\""),
        ("x" * 101, InvalidValueError, "takes 101 bytes, more than the 100 of an event"),
    ],
    ids=["bytes", "int", "None", "surrogate", "too long"],
)
def test_what_is_no_text_is_refused_with_the_remedy(record, monkeypatch, wrong, error, remedy):
    monkeypatch.setattr(checked_values, "MAX_VALUE_BYTES", 100)
    with pytest.raises(error, match=f"the text 'note' .*{remedy}"):
        record.add_value("text", "note", wrong)


def test_graph_and_lineage_stand_alone_in_the_files(tmp_path):
    with SummaryRecord(tmp_path) as record:
        for plugin, value in GOOD.items():
            record.add_value(plugin, "x", value)
        record.record(7)
    assert [sorted(value.plugin for value in event.values) for event in read_directory(tmp_path)] == [
        ["graph"],
        ["histogram", "image", "landscape", "scalar", "tensor", "text"],
    ]
    assert read_lineage(tmp_path).train is not None
    assert record.health().errors == {}


def test_arrays_are_copied_when_they_are_added(record, writer):
    array = np.zeros(2)
    record.add_value("tensor", "a", array)
    array[:] = 9
    record.record(1)
    assert writer.values("tensor")["a"].tolist() == [0, 0]


@pytest.mark.parametrize("value", [2, True, np.float32(2), np.array([[2.0]]), float("nan")])
def test_scalars_are_numbers_of_any_kind(record, value):
    record.add_value("scalar", "a", value)


@pytest.mark.parametrize("plugin", ["LANDSCAPE", "landscape", "Landscape"])
def test_plugins_are_known_in_any_case(record, writer, plugin):
    record.add_value(plugin, "a", landscape())
    record.record(0)
    assert list(writer.values("landscape")) == ["a"]


def test_what_cannot_be_recorded_is_refused_at_the_call(record, writer):
    record.set_mode("eval")
    record.set_mode("train")
    refused(
        InvalidTypeError,
        *((lambda one=one: record.add_value(one, "a", "x"), one) for one in ("scalar", "histogram", "image")),
        *(
            (lambda one=one: record.add_value(one, "a", 1.0), "must be")
            for one in ("landscape", *list(GOOD)[6:])
        ),
        (lambda: record.add_value("scalar", "a", 2j), "a"),
        (lambda: record.record("1"), "step"),
        (lambda: record.record(1, plugin_filter="scalar"), "plugin_filter"),
    )
    shape = "shape|dimension|element"
    refused(
        InvalidValueError,
        (lambda: record.add_value("explainer", "a", 1.0), "plugin"),
        (lambda: record.add_value(None, "a", 1.0), "plugin"),
        *((lambda name=name: record.add_value("scalar", name, 1), "name") for name in ("  ", 3, "x" * 2000)),
        (lambda: record.add_value("text", "half of a pair \ud800", "x"), "name"),
        (lambda: record.add_value("scalar", "a", np.zeros(2)), shape),
        (lambda: record.add_value("histogram", "a", np.zeros(())), shape),
        (lambda: record.add_value("graph", "a", b""), "graph"),
        (lambda: record.add_value("graph", "a", b"\xff\xff"), "graph"),
        (
            lambda: record.add_value("graph", "a", anf_ir.ModelProto(ir_version=1).SerializeToString()),
            "graph",
        ),
        (lambda: record.set_mode("test"), "mode"),
    )
    record.add_value("scalar", "good", 1)
    refused(
        InvalidValueError,
        (lambda: record.record(2**63), "step"),
        (lambda: record.record(-(2**63) - 1), "step"),
    )
    record.record(1)
    assert writer.values("scalar") == {"good": 1.0}


def test_a_graph_may_come_inside_a_model(record, writer):
    model = anf_ir.ModelProto(ir_version=1, domain="d", model_version=2, graph=graph())
    record.add_value("graph", None, model.SerializeToString())
    record.record(1)
    assert anf_ir.GraphProto.FromString(writer.values("graph")[""]) == graph()


def test_steps_may_be_negative_and_large(record, writer):
    for step in (-5, 2**40):
        record.add_value("scalar", "a", 1)
        record.record(step)
    assert [event.step for event in writer.events] == [-5, 2**40]


def test_filtered_values_are_gone(record, writer):
    record.add_value("scalar", "a", 1)
    record.add_value("histogram", "a", np.zeros(2))
    record.record(1, plugin_filter=lambda plugin: plugin == "histogram")
    record.record(2)
    assert [(event.step, [v.plugin for v in event.values]) for event in writer.events] == [(1, ["histogram"])]


def test_a_closed_record_takes_nothing_more_and_raises_only_where_values_would_be_lost(tmp_path, caplog):
    writer = ListWriter()
    record = SummaryRecord(tmp_path, writer=writer)
    record.close()
    record.close()
    assert writer.closes == 1
    with caplog.at_level(logging.ERROR):
        assert record.record(1) is False
        record.flush()
    assert len(caplog.records) == 2
    with pytest.raises(ClosedError):
        record.add_value("scalar", "a", 1)
    with pytest.raises(InvalidValueError), record:
        pass


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"export_options": []}, InvalidTypeError),
        ({"formats": ()}, InvalidValueError),
        ({"formats": "mindspore"}, InvalidTypeError),
        ({"rotate_bytes": 100}, InvalidValueError),
        ({"rotate_s": 0}, InvalidValueError),
        ({"rotate_s": float("nan")}, InvalidValueError),
        ({"rotate_s": "1h"}, InvalidTypeError),
        ({"max_file_size": 10, "rotate_bytes": 4096}, InvalidValueError),
        ({"delivery": "durable"}, InvalidValueError),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path, arguments, error):
    with pytest.raises(error):
        SummaryRecord(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryPathError):
        SummaryRecord(tmp_path / "file")


def test_arguments_that_mean_nothing_here_are_taken(tmp_path):
    SummaryRecord(tmp_path, "a", "_b", 0, object(), None, False, {}, writer=ListWriter()).close()


def read(directory: Path):
    return [(event.step, {v.tag: v.data for v in event.values}) for event in read_directory(directory)]


def test_real_files_of_several_records_in_one_directory_hold_everything(nasty_tmp_path):
    records = [SummaryRecord(nasty_tmp_path, file_prefix=f"p{n}", num_process=n) for n in range(3)]
    for number, record in enumerate(records):
        record.add_value("scalar", f"tag{number}", number)
        record.record(number)
    for record in records:
        record.flush()
        record.close()
    assert sorted(read(nasty_tmp_path)) == [(n, {f"tag{n}": float(n)}) for n in range(3)]


@pytest.mark.parametrize("formats", [("mindspore", "tensorboard"), ("tensorboard",)])
def test_the_log_dir_is_the_path_of_the_event_file_before_and_after_it_is_there(nasty_tmp_path, formats):
    with SummaryRecord(nasty_tmp_path / "new", formats=formats, file_prefix="mine") as record:
        named = Path(record.log_dir)
        assert not named.exists()
        for step in (1, 2):
            record.add_value("scalar", "a", step)
            record.record(step)
            record.flush()
            assert Path(record.log_dir) == named
    [file] = segments(nasty_tmp_path / "new", formats[0])
    assert named == Path(record.log_dir) == file
    assert file.name.startswith("mine.out.")


def test_the_log_dir_follows_the_newest_file_and_gives_way_to_another_writer(tmp_path):
    records = [SummaryRecord(tmp_path, rotate_bytes=4096) for _ in range(2)]
    for number, record in enumerate(records):
        for step in (1, 2):
            record.add_value("tensor", f"a{number}", np.zeros(900))
            record.record(step)
            record.flush()
    files = segments(tmp_path, "mindspore")
    assert [Path(record.log_dir) for record in records] == [files[1], files[3]]
    for record in records:
        record.close()


def test_exported_tensors_are_next_to_the_events_and_in_them(tmp_path):
    with SummaryRecord(tmp_path, export_options={"tensor_format": "npy"}) as record:
        record.add_value("tensor", "a/b", np.arange(3, dtype=np.int64))
        record.add_value("histogram", "a/b", np.arange(3))
        record.record(4)
    [path] = tmp_path.glob("export_*/tensor/*")
    assert path.name == "a%2Fb_4.npy"
    assert np.load(path).dtype == np.int64
    assert read(tmp_path)[0][1].keys() == {"a/b"}


def test_a_budget_that_is_used_up_is_counted_and_raised_if_asked_for(tmp_path):
    record = SummaryRecord(tmp_path, max_file_size=60, raise_exception=False)
    for step in range(20):
        record.add_value("scalar", "a", step)
        assert record.record(step) is True
    record.close()
    assert any("max_file_size" in reason for reason in record.health().errors)


def test_a_negative_budget_is_none_with_a_warning(tmp_path, caplog):
    with SummaryRecord(tmp_path, max_file_size=-1) as record:
        record.add_value("scalar", "a", 1)
        record.record(1)
    assert "not limited" in caplog.text
    assert len(read(tmp_path)) == 1


class Lost:
    """A device copy that never comes."""

    nbytes = 8

    def result(self):
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize("exports", [None, {"tensor_format": "npy"}])
def test_a_failure_in_the_background_is_raised_on_the_next_call_if_asked_for(tmp_path, monkeypatch, exports):
    monkeypatch.setattr(NumpyFramework, "snapshot", lambda self, tensor: Lost())
    record = SummaryRecord(tmp_path, raise_exception=True, export_options=exports)
    record.add_value("tensor", "a", np.zeros(1))
    record.record(1)
    with pytest.raises(WriteError, match="the device is gone"):  # noqa: PT012
        record.flush()  # an export's failure is raised here, any other by what comes next
        record.add_value("scalar", "a", 1)
        record.record(2)
    record.close()


def test_a_failed_export_is_raised_by_close_at_the_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "export_npy", lambda *arguments: 1 / 0)
    record = SummaryRecord(tmp_path, raise_exception=True, export_options={"tensor_format": "npy"})
    record.add_value("tensor", "a", np.zeros(1))
    record.record(1)
    with pytest.raises(WriteError, match="export of a: ZeroDivisionError"):
        record.close()
    assert [step for step, _ in read(tmp_path)] == [1]


def test_scalars_are_an_event_at_once_and_leave_the_pool_alone(record, writer):
    record.add_value("scalar", "later", 1.0)
    record.scalars(3, {"loss": 0.5, "lr": 1})
    record.scalars(4, {"loss": np.float32(0.25), "lr": True})
    assert [event.step for event in writer.events] == [3, 4]
    assert writer.values("scalar", 3) == {"loss": 0.5, "lr": 1.0}
    assert writer.values("scalar", 4) == {"loss": 0.25, "lr": 1.0}
    record.record(5)
    assert writer.values("scalar", 5) == {"later": 1.0}


@pytest.mark.parametrize(
    ("step", "values", "error", "named"),
    [
        (1, {"a": "x"}, InvalidTypeError, "a"), (1, {"a": np.zeros(2)}, InvalidValueError, "a"),
        (1, {"a": 10**400}, InvalidValueError, "a"), (1, {"": 1.0}, InvalidValueError, "blank"),
        (1, {3: 1.0}, InvalidTypeError, "3"), (1, {"x" * 1025: 1.0}, InvalidValueError, "1024"),
        (1, {}, InvalidValueError, "none"), (1, [1.0], InvalidTypeError, "values"),
        ("1", {"a": 1.0}, InvalidTypeError, "step"), (2**63, {"a": 1.0}, InvalidValueError, "step"),
    ],
)  # fmt: skip
def test_bad_scalars_are_refused_at_the_call_the_first_time_and_later(
    record, writer, step, values, error, named
):
    for _ in range(2):
        with pytest.raises(error, match=named):
            record.scalars(step, values)
        if isinstance(values, dict) and all(isinstance(tag, str) and 0 < len(tag) < 99 for tag in values):
            record.scalars(0, dict.fromkeys(values, 1.0) or {"a": 1.0})  # now the names are known
    assert all(v.data == 1.0 for event in writer.events for v in event.values)


def test_scalars_are_refused_after_close(tmp_path):
    record = SummaryRecord(tmp_path)
    record.scalars(1, {"a": 1.0})
    record.close()
    with pytest.raises(ClosedError, match="closed"):
        record.scalars(2, {"a": 1.0})
    assert read(tmp_path) == [(1, {"a": 1.0})]


def test_of_two_values_of_a_name_the_last_counts(record, writer):
    record.add_value("scalar", "a", 1.0)
    record.add_value("scalar", "a", 2.0)
    record.add_value("histogram", "a", np.zeros(2))
    record.add_value("scalar", "a", 3.0)
    record.record(1)
    assert writer.values("scalar", 1) == {"a": 3.0}


def test_a_flush_of_the_synced_level_reaches_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("distsummary.events.files.os.fdatasync", synced.append)
    with SummaryRecord(tmp_path, delivery="synced") as record:
        record.scalars(1, {"loss": 0.5})
        record.flush()
        assert len(synced) == 2


def test_ranks_that_share_a_directory_have_files_of_their_own_and_are_warned_of(
    tmp_path, monkeypatch, caplog
):
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with SummaryRecord(tmp_path / "shared") as record:
            record.scalars(1, {"loss": 0.5})
    names = [path.name for path in (tmp_path / "shared").glob("events.out.events.summary.*")]
    assert sorted(source_of(name) for name in names) == ["0", "1"]
    [warning] = [line for line in caplog.messages if "also holds files" in line]
    shared = tmp_path / "shared"
    assert warning.startswith(f"rank=1 {shared} also holds files of rank 0, and readers take both ")
    assert warning.endswith(f"such as {shared}1, and join them by: distsummary adopt {shared}")

"""Every value as one strict JSON object a line."""

import base64
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from distsummary.aggregate.charts import charts
from distsummary.cli.dump import dump, to_line
from distsummary.errors import MissingFileError
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.hparams import session_start
from distsummary.format.lineage import Lineage, encode_lineage
from distsummary.format.records import Event, EventIds, Shard, Value
from tests.event_files import write_events
from tests.unit.events.test_reader import LINEAGE, MINDSPORE, RUN, TENSORBOARD, flip, scalar_frames, write
from tests.unit.format import samples

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ms"


def lines(path: Path, *, full: bool = False) -> list[dict]:
    """What is printed, read as strictly as JSON is defined."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(to_line(record), parse_constant=refuse) for record in dump(path, full=full)]


def event_file(directory: Path, *values: Value, name: str = MINDSPORE) -> Path:
    payload = encode_event(Event(7, 1.5, list(values)), EventIds(RUN, 2, 41), ("mindspore",))[0]["mindspore"]
    assert payload is not None
    return write(directory, name.format(17), [frame(payload)])


def test_a_scalar_says_where_it_stands(nasty_tmp_path: Path):
    path = event_file(nasty_tmp_path, Value("scalar", "loss <é>", 0.25))
    assert lines(path) == [
        {
            "file": str(path), "dialect": "mindspore", "attempt": 2, "seq": 41, "step": 7, "wall_time": 1.5,
            "plugin": "scalar", "tag": "loss <é>", "value": 0.25,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "reported"),
    [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (-0.0, -0.0)],
)
def test_numbers_that_json_has_not_are_words(nasty_tmp_path: Path, number: float, reported: object):
    tensor = np.array([[1.0, number]], np.float32)
    path = event_file(nasty_tmp_path, Value("scalar", "loss", number), Value("tensor", "t", tensor))
    scalar, array = lines(path, full=True)
    assert scalar["value"] == reported
    assert array["value"] == {"dtype": "float32", "shape": [1, 2], "data": [[1.0, reported]]}


def test_each_plugin_has_its_fields(nasty_tmp_path: Path):
    values = {
        record["plugin"]: record["value"]
        for record in lines(event_file(nasty_tmp_path, *samples.SUMMARY_VALUES))
    }
    assert values["tensor"] == {"dtype": "float16", "shape": [2, 3]}
    histogram = values["histogram"]
    assert (histogram["count"], histogram["nan"], histogram["pos_inf"], histogram["neg_inf"]) == (5, 1, 1, 0)
    assert (histogram["min"], histogram["max"], histogram["sum"]) == (1.0, 4.0, 7.0)
    assert sum(count for _, _, count in histogram["buckets"]) == 3
    picture = samples.PICTURE
    assert values["image"] == {
        "height": picture.height,
        "width": picture.width,
        "colorspace": picture.colorspace,
        "sha256": hashlib.sha256(picture.encoded).hexdigest(),
    }
    assert values["landscape"]["shapes"] == {
        "x": [3], "y": [4], "z": [4, 3], "path_x": [3], "path_y": [3], "path_z": [3],
    }  # fmt: skip
    assert "z" not in values["landscape"]
    assert values["text"] == {"characters": len(samples.TEXT), "text": samples.TEXT}
    digest = hashlib.sha256(samples.SOUND.encoded).hexdigest()
    assert values["audio"] == {"rate": 8000, "channels": 2, "frames": 3, "sha256": digest}
    assert values["pr_curve"] == {"shape": [6, 2]}


def test_a_long_text_is_shortened_unless_all_is_asked_for(nasty_tmp_path: Path):
    long = "大" * 5000
    path = event_file(nasty_tmp_path, Value("text", "note", long))
    (short,), (whole,) = lines(path), lines(path, full=True)
    assert short["value"] == {"characters": 5000, "text": long[:200]}
    assert whole["value"] == {"characters": 5000, "text": long}


def test_full_has_the_numbers_and_the_bytes(nasty_tmp_path: Path):
    path = event_file(nasty_tmp_path, *samples.SUMMARY_VALUES)
    values = {record["plugin"]: record["value"] for record in lines(path, full=True)}
    assert values["tensor"]["data"] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert base64.b64decode(values["image"]["base64"]) == samples.PICTURE.encoded
    assert values["landscape"]["z"] == samples.LANDSCAPE.z.tolist()
    assert base64.b64decode(values["audio"]["base64"]) == samples.SOUND.encoded
    assert values["pr_curve"]["data"] == samples.CURVE.tolist()


def test_arrays_without_elements_and_without_axes(nasty_tmp_path: Path):
    empty = Value("tensor", "empty", np.empty((0, 3), np.int32))
    path = event_file(nasty_tmp_path, Value("tensor", "0-d", np.float32(2.0)), empty)
    zero_d, none = lines(path, full=True)
    assert zero_d["value"] == {"dtype": "float32", "shape": [], "data": 2.0}
    assert none["value"] == {"dtype": "int32", "shape": [0, 3], "data": []}


def test_a_shape_that_only_claims_to_be_large_is_reported_and_not_built(nasty_tmp_path: Path):
    huge = Value("tensor", "huge", np.empty((2**31, 0), np.float32))
    (record,) = lines(event_file(nasty_tmp_path, huge), full=True)
    assert record["value"] == {"dtype": "float32", "shape": [2**31, 0], "data": []}


def test_a_shard_says_what_it_is_a_part_of(nasty_tmp_path: Path):
    value = Value("tensor", "w", np.zeros(2, np.float32), Shard(global_shape=(8,), offset=(2,)))
    (record,) = lines(event_file(nasty_tmp_path, value))
    assert record["shard"] == {"global_shape": [8], "offset": [2]}


def test_a_graph_says_how_many_nodes_it_has(nasty_tmp_path: Path):
    path = event_file(nasty_tmp_path, Value("graph", "", samples.GRAPH.SerializeToString()))
    (record,) = lines(path)
    assert (record["plugin"], record["value"]["nodes"]) == ("graph", 1)


def test_lineage_is_reported_by_its_fields(nasty_tmp_path: Path):
    lineage = Lineage(
        train=samples.TRAIN, evaluation=samples.EVALUATION, custom=samples.custom(a=1, b="x", c=0.5)
    )
    payloads = encode_lineage(lineage, 1.0)
    path = write(nasty_tmp_path, LINEAGE.format(17), [frame(payload) for payload in payloads])
    reported = {record["plugin"]: record["value"] for record in lines(path)}
    assert reported == {
        "custom_lineage_data": {
            "user_info": [{"map_int32": {"a": 1}}, {"map_str": {"b": "x"}}, {"map_double": {"c": 0.5}}]
        },
        "train_lineage": {"algorithm": {"network": "MLP", "loss": 0.5}},
        "eval_lineage": {"metric": '{"acc": 0.5}'},
    }


def test_damage_and_a_torn_end_are_reported_with_their_bytes(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 5))
    path = write(nasty_tmp_path, MINDSPORE.format(17), [*frames, frames[-1][:-3]])
    second = len(frames[0]) + len(frames[1])
    flip(path, second)
    reported = [(r["plugin"], r["seq"], r.get("offset")) for r in lines(path)]
    assert reported == [
        ("scalar", 1, None), ("damage", None, second), ("scalar", 3, None), ("scalar", 4, None),
        ("damage", None, sum(map(len, frames))),
    ]  # fmt: skip


def test_a_run_is_reported_with_its_ranks_in_both_dialects(nasty_tmp_path: Path):
    for place in (nasty_tmp_path, nasty_tmp_path / "rank_00000"):
        events = [
            Event(1, 1.0, [Value("scalar", "loss", 0.5)]),
            Event(1, 1.0, [Value("train_lineage", "", samples.TRAIN)]),
        ]
        write_events(place, events, run_id=RUN)
    reported = [(Path(r["file"]).parent.name, r["dialect"], r["plugin"]) for r in lines(nasty_tmp_path)]
    own = nasty_tmp_path.name
    kinds = [("mindspore", "scalar"), ("mindspore", "train_lineage"), ("tensorboard", "scalar")]
    assert reported == [(place, *kind) for place in (own, "rank_00000") for kind in kinds]


def test_a_file_of_another_name_is_read_as_mindspores(nasty_tmp_path: Path):
    path = write(nasty_tmp_path, "anything", scalar_frames("mindspore", range(1, 3)))
    assert [record["seq"] for record in lines(path)] == [1, 2]
    tensorboard = write(nasty_tmp_path, TENSORBOARD.format(1), scalar_frames("tensorboard", range(1, 2)))
    assert [record["dialect"] for record in lines(tensorboard)] == ["tensorboard"]


def test_what_is_not_there_is_named_at_once(nasty_tmp_path: Path):
    with pytest.raises(MissingFileError, match="nowhere"):
        dump(nasty_tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match="no event files"):
        dump(nasty_tmp_path)


@pytest.mark.parametrize("case", sorted(path.parent.name for path in GOLDEN.glob("*/summary")))
def test_real_mindspore_files_are_reported_in_strict_json(case: str):
    assert lines(GOLDEN / case / "summary", full=True)


def test_settings_for_tensorboard_are_described(tmp_path):
    event = Event(1, 2.0, [session_start({"lr": 0.5, "act": "relu"}, 1.0)])
    write_events(tmp_path, [event], run_id="00000000000000ff")
    [record] = dump(tmp_path)
    hparams = {"act": {"string_value": "relu"}, "lr": {"number_value": 0.5}}
    assert (record["plugin"], record["tag"]) == ("hparams", "_hparams_/session_start_info")
    assert record["value"] == {"session_start_info": {"hparams": hparams, "start_time_secs": 1.0}}


def test_a_layout_for_tensorboard_is_described(tmp_path):
    event = Event(1, 2.0, [charts({"zz_ranks/loss/min", "zz_ranks/loss/median", "zz_ranks/loss/max"})])
    write_events(tmp_path, [event], run_id="00000000000000ff")
    [record] = dump(tmp_path)
    assert (record["plugin"], record["tag"]) == ("custom_scalars", "custom_scalars__config__")
    margin = {
        "series": [
            {"value": "zz_ranks/loss/median", "lower": "zz_ranks/loss/min", "upper": "zz_ranks/loss/max"}
        ]
    }
    chart = {"title": "loss: median, min to max", "margin": margin}
    assert record["value"] == {"category": [{"title": "loss and learning rate", "chart": [chart]}]}


def test_norms_are_listed_by_parameter(nasty_tmp_path: Path):
    path = event_file(nasty_tmp_path, samples.norms(step=3))
    [line] = lines(path)
    assert (line["plugin"], line["tag"], line["step"]) == ("norms", "zz_norms", 7)
    assert line["value"]["parameters"] == [
        {"name": "a.weight", "weight": 1.0, "gradient": 3.0, "nonfinite": [0, 0]},
        {"name": "b.größe", "weight": 2.0, "gradient": "NaN", "nonfinite": [0, 3]},
        {"name": "c", "weight": 3.0, "gradient": None, "nonfinite": [0, 0]},
    ]
    [line] = lines(path, full=True)
    assert line["value"]["parameters"][0] == {
        "name": "a.weight", "weight": 1.0, "gradient": 3.0, "nonfinite": [0, 0], "update": 0.5,
        "update_max": 0.5, "shape": [4], "start": 0, "local_size": 4,
    }  # fmt: skip
    assert line["value"]["parameters"][1]["update"] == "NaN"

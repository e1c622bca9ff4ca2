"""open_run on what MindSpore, TensorBoard and torch wrote, compared with their own account of it."""

import re
import shutil

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distsummary as ds
from distsummary.events.index import is_index
from distsummary.events.segments import all_event_files
from tests.formats.golden import EVENT_FILES, GOLDEN
from tests.formats.golden import decoded as golden_records

CASES = sorted({file.partition("/")[0] for file in EVENT_FILES if not file.endswith("_lineage")})
FIELDS = {"scalarValue": "scalar", "tensor": "tensor", "histogram": "histogram", "image": "image"}


def reported(case):
    """(Plugin, tag) -> the steps, as decoded.json of the golden data has them."""
    found = {}
    for file in EVENT_FILES:
        if not file.startswith(f"{case}/") or file.endswith("_lineage"):
            continue
        for record in golden_records(file):
            event = record["event"]
            for value in event.get("summary", {}).get("value", []):
                for name, plugin in FIELDS.items():
                    if name in value or name.replace("V", "_v") in value:
                        found.setdefault((plugin, value["tag"]), []).append(int(event.get("step", 0)))
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_mindspore_recorded(case, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / case / "summary", copy)
    for index in (False, True, True):
        run = ds.open_run(copy, index=index)
        assert (tuple(run.ranks), run.state) == ((0,), "no run.json")
        read = {
            "scalar": run.scalars, "tensor": run.tensors, "histogram": run.histograms, "image": run.images,
        }  # fmt: skip
        for (plugin, tag), steps in reported(case).items():
            assert read[plugin](tag)["step"].tolist() == steps
        assert {(p, t) for p, tags in run.tags.items() for t in tags if p in read} == reported(case).keys()


def test_the_lineage_graph_and_config_of_mindspore():
    run = ds.open_run(GOLDEN / "mlp_train_eval" / "summary", index=False)
    assert run.lineage["train"]["hyper_parameters"]["optimizer"] == "Momentum"
    assert run.lineage.keys() == {"train", "evaluation", "dataset_graph", "custom"}
    assert run.config == {"note": "mlp", "k": 3, "lr2": 0.25}
    assert len(run.graph.node) > 5
    drawn = ds.open_run(GOLDEN / "landscape_pca_random" / "summary", index=False).landscapes
    assert drawn
    assert all(one.z.shape == (one.y.size, one.x.size) for one in drawn.values())


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_directory_of_tensorboard_gives_what_its_own_reader_gives(nasty_tmp_path, library):
    module = pytest.importorskip(library)
    with module.SummaryWriter(str(nasty_tmp_path)) as writer:
        for step in (
            *range(150),
            7,
            7,
        ):  # falls, and twice the same: another program's steps stay as they are
            writer.add_scalar("loss", step / 4, step)
        writer.add_text("note", "# hello", 3)
        writer.add_image("im", np.zeros((3, 4, 5), np.uint8), 2)
        writer.add_histogram("h", np.arange(10.0), 1)
    shown = EventAccumulator(str(nasty_tmp_path), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    shown.Reload()
    run = ds.open_run(nasty_tmp_path)
    loss = run.scalars("loss")
    expected = [(event.step, event.wall_time, event.value) for event in shown.Scalars("loss")]
    assert len(expected) == 152
    assert [(row.step, row.wall_time, row.value) for row in loss] == expected
    assert set(loss["attempt"].tolist()) == {0}
    assert run.text().value(0) == "# hello"
    assert run.images("im").value(0).width == 5
    assert run.histograms("h").value(0).count == 10


def test_no_viewer_takes_an_index_for_an_event_file(tmp_path):
    with ds.init(tmp_path / "run", aggregate=False, quiet=True) as run:
        for _ in run.steps(range(3000)):
            run.log(loss=1.0)
    before = all_event_files(tmp_path / "run")
    assert len(ds.open_run(tmp_path / "run").scalars("loss")) == 3000
    [index] = [path for path in (tmp_path / "run").iterdir() if is_index(path.name)]
    assert re.search(r"summary\.\d+|tfevents", index.name) is None  # how viewers find files
    assert all_event_files(tmp_path / "run") == before
    shown = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    shown.Reload()
    assert len(shown.Scalars("loss")) == 3000

"""What `landscape` computes in addition to the loss, leaves out, and keeps when it is interrupted."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distsummary as ds
from distsummary import LossGrid
from distsummary.errors import LandscapeCancelled, LandscapeError
from distsummary.landscapes.output import write
from tests.interrupts import Dropping, sigint
from tests.landscape_arguments import grouped
from tests.unit.landscapes.golden_mlp import Mlp, batches
from tests.unit.landscapes.test_generator import draw


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def by_rows(logits: Any, labels: Any) -> Any:
    return -log_softmax(np.asarray(logits, np.float64))[np.arange(len(labels)), labels]


def accuracy(logits: Any, labels: Any) -> float:
    return float((np.argmax(logits, axis=1) == labels).mean())


def random_plane(**changes: Any) -> LossGrid:
    grid = draw(around=None, **changes)
    assert isinstance(grid, LossGrid)
    return grid


def test_metrics_and_errors_come_with_the_loss() -> None:
    evaluation = ds.Evaluation(metrics={"accuracy": accuracy}, stderr=True)
    grid = random_plane(loss_fn=by_rows, evaluation=evaluation)
    assert sorted(grid.quantities) == ["accuracy", "stderr"]
    model, data = Mlp(), batches()
    rows = np.concatenate([by_rows(model(x), y) for x, y in data])
    at = (2, 2)  # the centre
    assert grid.z[at] == pytest.approx(rows.mean(), rel=1e-6)
    assert grid.stderr[at] == pytest.approx(rows.std(ddof=1) / np.sqrt(len(rows)), rel=1e-6)
    expected = np.concatenate([np.argmax(model(x), axis=1) == y for x, y in data]).mean()
    assert grid.quantities["accuracy"][at] == pytest.approx(expected)


def test_a_loader_that_does_not_fit_is_streamed_unless_that_is_refused(monkeypatch, caplog):
    class Loader:
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return iter(batches())

    monkeypatch.setattr(sys.modules["distsummary.landscapes.generator"], "host_bytes", lambda: 1)
    loader = Loader()
    with caplog.at_level(logging.INFO, "distsummary"):
        streamed = random_plane(batches=loader)
    assert loader.read > 2
    assert "they are streamed" in caplog.text
    held = Loader()
    resident = random_plane(batches=held, evaluation=ds.Evaluation(streamed=False))
    assert held.read == 1
    assert streamed.z.tobytes() == resident.z.tobytes()


def test_refinement_leaves_out_what_interpolation_reports() -> None:
    whole, refined = random_plane(size=41), random_plane(size=41, refine=0.02)
    assert refined.computed.mean() < 0.6
    assert refined.z[refined.computed].tobytes() == whole.z[refined.computed].tobytes()
    assert np.abs(refined.z - whole.z).max() < 0.02 * np.median(whole.z)
    assert whole.computed.all()
    assert refined.true_loss.tobytes() == whole.true_loss.tobytes()


def test_an_interrupt_that_python_drops_stops_it_too() -> None:
    left = [Dropping()]
    with sigint(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        random_plane(progress=lambda progress: left.clear())
    assert not left


@pytest.mark.usefixtures("one_picture")
@pytest.mark.parametrize("refine", [None, 0.02])
def test_an_interrupt_gives_and_saves_what_there_is_and_the_next_call_continues(tmp_path, stop_at, refine):
    arguments = {"size": 33, "refine": refine, "run_dir": tmp_path}
    undisturbed = random_plane(size=33, refine=refine)
    seen = stop_at(None)
    random_plane(**(arguments | {"run_dir": None}))
    whole = len(seen)
    stop_at(whole - 4)
    with pytest.raises(LandscapeCancelled, match=r"random: \d+ of 1089 points") as stopped:
        random_plane(**arguments)
    assert isinstance(stopped.value, KeyboardInterrupt)
    partial = stopped.value.grids["random"]
    assert 0 < partial.computed.sum() < undisturbed.computed.sum()
    assert partial.z[partial.computed].tobytes() == undisturbed.z[partial.computed].tobytes()
    assert np.isfinite(partial.z).all()  # missing points are interpolated
    [saved] = (tmp_path / "landscape").glob("*.npz")
    assert LossGrid.load(saved).computed.tobytes() == partial.computed.tobytes()
    seen = stop_at(None)
    resumed = random_plane(**arguments)
    assert len(seen) == 4
    assert resumed.z.tobytes() == undisturbed.z.tobytes()
    assert resumed.computed.tobytes() == undisturbed.computed.tobytes()


@pytest.mark.usefixtures("one_picture")
def test_what_lies_beyond_the_computed_rows_is_missing(tmp_path: Path, stop_at: Any) -> None:
    whole = random_plane(size=25)
    for chunks, rows in ((3, [0]), (4, [0, 24]), (5, [0, 16, 24])):
        stop_at(chunks)
        with pytest.raises(LandscapeCancelled) as stopped:
            random_plane(size=25, run_dir=tmp_path / str(chunks))
        stop_at(None)
        partial = stopped.value.grids["random"]
        beyond = np.arange(25) > rows[-1]
        assert np.flatnonzero(partial.computed.any(axis=1)).tolist() == rows
        assert partial.z[rows].tobytes() == whole.z[rows].tobytes()
        assert np.isfinite(partial.z[~beyond]).all()
        assert np.isnan(partial.z[beyond]).all()
        assert (partial.missing == beyond[:, None]).all()
        [saved] = (tmp_path / str(chunks) / "landscape").glob("*.npz")
        assert LossGrid.load(saved).missing.tobytes() == partial.missing.tobytes()


def test_an_interrupt_before_the_first_point_is_an_interrupt_and_writes_nothing(tmp_path, stop_at, caplog):
    stop_at(0)
    with pytest.raises(LandscapeCancelled, match="0 of 25 points"):
        random_plane(run_dir=tmp_path)
    assert written(tmp_path) == []
    assert "landscape.npz is not written: no point of it was computed" in caplog.text


@pytest.mark.usefixtures("one_picture")
def test_an_interrupt_while_files_are_written_gives_the_whole_grids_and_the_next_call_writes_them(
    tmp_path: Path, stop_at: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(write, "_publish_for_mindinsight", interrupt)
        with pytest.raises(LandscapeCancelled) as stopped:
            random_plane(run_dir=tmp_path)
    grid = stopped.value.grids["random"]
    assert grid.computed.all()
    assert not grid.is_partial
    [journal] = (tmp_path / "landscape").glob("journal-*.bin")
    assert f"its points are in {journal}: the same call resumes from there" in caplog.text
    seen = stop_at(None)
    assert random_plane(run_dir=tmp_path).z.tobytes() == grid.z.tobytes()
    assert (len(seen), journal.exists()) == (0, False)
    assert (tmp_path / "landscape" / "landscape.png").is_file()


def written(path: Path) -> list[Path]:
    return sorted(one for one in (path / "landscape").iterdir() if not one.name.startswith("."))


@pytest.mark.usefixtures("one_picture")
@pytest.mark.parametrize("refine", [None, 0.02])
def test_a_part_does_not_take_the_place_of_a_complete_landscape(tmp_path, stop_at, caplog, refine):
    random_plane(size=17, refine=refine, run_dir=tmp_path)
    before = {path: path.read_bytes() for path in written(tmp_path)}
    for chunks in (0, 5):
        stop_at(chunks)
        with pytest.raises(LandscapeCancelled):
            random_plane(size=33, run_dir=tmp_path)
    [journal] = [path for path in written(tmp_path) if path not in before]
    assert {path: path.read_bytes() for path in before} == before
    assert "landscape.npz holds a complete landscape, so it is not replaced by one with 65 of " in caplog.text
    assert f"these are saved in {journal}; the same call resumes from there" in caplog.text
    seen = stop_at(None)
    caplog.clear()
    whole = random_plane(size=33, run_dir=tmp_path)
    assert (caplog.messages, len(seen)) == ([], 63)
    assert LossGrid.load(tmp_path / "landscape" / "landscape.npz").z.tobytes() == whole.z.tobytes()
    assert not journal.exists()


@pytest.mark.usefixtures("no_matplotlib")
def test_of_several_directions_each_that_is_complete_is_known(tmp_path: Path, stop_at: Any) -> None:
    seen = stop_at(None)
    draw(size=9, directions="line")
    stop_at(len(seen) + 3)
    with pytest.raises(LandscapeCancelled) as stopped:
        draw(size=9, directions=("line", "random"), run_dir=tmp_path)
    partial = {name: grid.is_partial for name, grid in stopped.value.grids.items()}
    assert partial == {"line": False, "random": True}


@pytest.mark.usefixtures("no_matplotlib")
def test_a_journal_of_other_arguments_is_named_when_a_landscape_begins(tmp_path, stop_at, caplog):
    stop_at(3)
    with pytest.raises(LandscapeCancelled):
        random_plane(run_dir=tmp_path)
    [journal] = (tmp_path / "landscape").glob("journal-*.bin")
    stop_at(None)
    caplog.clear()
    random_plane(run_dir=tmp_path, batches=batches()[:2], evaluation=ds.Evaluation(stderr=True), resume=False)
    [message] = [message for message in caplog.messages if "other landscapes" in message]
    assert f"{journal.name} (data, evaluation)" in message
    assert "delete the file" in message
    assert journal.exists()


def test_losses_that_are_not_finite_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    limit = float(np.median(random_plane().z))

    def some(model: Any, batch: Any) -> float:
        loss = float(by_rows(model(batch[0]), batch[1]).mean())
        return loss if loss < limit else float("inf")

    grid = random_plane(batch_loss=some)
    bad = int(np.isinf(grid.z).sum())
    assert caplog.messages == [f"random: {bad} of 25 computed losses are not finite"]
    caplog.clear()
    draw(batch_loss=lambda model, batch: float("nan"), directions=("line", "random"))
    [message] = caplog.messages
    assert "line: not one of the 5 computed losses is finite; random: not one of the 25" in message


def test_a_grid_reports_where_it_was_computed_and_how_much_rounding_takes() -> None:
    grid = random_plane()
    assert "numpy" in grid.hardware
    assert set(grid.rounding) == {"x", "y"}
    assert all(0 <= share < 0.01 for share in grid.rounding.values())
    assert random_plane(engine=grid.engine).z.tobytes() == grid.z.tobytes()


@pytest.mark.usefixtures("one_picture")
def test_a_journal_of_another_engine_is_refused(tmp_path: Path, stop_at: Any) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 3)
    data = [(torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in batches()]
    arguments = {"size": 5, "run_dir": tmp_path, "workers": 0, "progress": False}
    parts = (model, torch.nn.CrossEntropyLoss(), data)
    stop_at(3)
    with pytest.raises(LandscapeCancelled):
        ds.landscape(*parts, **grouped(**arguments, engine="row"))
    stop_at(None)
    with pytest.raises(LandscapeError, match=r"begun with engine='torch-row', got 'torch-naive'"):
        ds.landscape(*parts, **grouped(**arguments, engine="naive"))
    assert ds.landscape(*parts, **grouped(**arguments)).engine == "torch-row"

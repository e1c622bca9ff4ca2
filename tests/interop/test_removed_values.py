"""TensorBoard and MindInsight show what stayed when old bulk values are removed; the former also live."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext

from distsummary.events.segments import segments
from distsummary.format.records import MINDSPORE, TENSORBOARD
from tests.bounded_files import STEPS, bulk_steps, events, write, writer
from tests.interop.views import ALL, data_server, differences, own_view, python_view, server_view
from tests.patience import wait_for
from tests.tools.mindinsight_check import check

pytestmark = pytest.mark.interop
EACH = [(step, pytest.approx(step / 3)) for step in range(1, STEPS + 1)]


def test_a_tensorboard_that_runs_and_one_that_starts_show_what_stayed(tmp_path: Path) -> None:
    run, found = tmp_path / "run", events()
    target = writer(run)
    write(target, found[:8])
    # As `tensorboard --load_fast=false` reads, without and with --reload_multifile.
    readers = [EventMultiplexer(tensor_size_guidance={"scalars": 0}) for _ in range(2)]
    readers.append(
        EventMultiplexer(tensor_size_guidance={"scalars": 0}, event_file_active_filter=lambda time_s: True)
    )
    for reader in readers:
        reader.AddRunsFromDirectory(str(tmp_path))
    with data_server(tmp_path, reload="1") as provider:

        def served() -> list[tuple[int, float]]:
            given = provider.read_scalars(
                RequestContext(), experiment_id="", plugin_name="scalars", downsample=ALL
            )
            return [(point.step, point.value) for point in given.get("run", {}).get("loss", ())]

        for at in range(8, len(found) + 8, 8):
            write(target, found[:at])
            # The second one is behind: it reads files of which most have been replaced.
            for reader in (*readers[:1], *readers[2:], *(readers[1:2] if at > len(found) - 8 else ())):
                reader.Reload()
            newest = max(one.step for one in found[:at] if one.step <= STEPS)
            wait_for(lambda newest=newest: served() == EACH[:newest])  # type: ignore[misc]
    target.close()
    for reader in readers:
        points = reader.Tensors("run", "loss")
        assert [(point.step, point.tensor_proto.float_val[0]) for point in points] == EACH
    assert len(segments(run, TENSORBOARD)) > 8
    view = own_view(tmp_path)
    assert [step for step, _ in view.histograms["run", "weight"]] == bulk_steps(run, TENSORBOARD)
    assert differences(python_view(tmp_path), view) == []
    assert differences(server_view(tmp_path), view) == []
    assert bulk_steps(run, MINDSPORE)[0] > 1


def test_mindinsight_shows_what_stayed(tmp_path: Path, mindinsight: Path) -> None:
    target = writer(tmp_path / "run")
    write(target, events()[1:])  # without the graph, which has no nodes
    target.close()
    verdict = check(tmp_path, mindinsight)
    assert verdict.complaints == []
    read = verdict.jobs["./run"]
    assert read["scalar"]["loss/scalar"]["points"] == STEPS
    assert 0 < read["histogram"]["weight/histogram"]["points"] == len(bulk_steps(tmp_path / "run")) < STEPS

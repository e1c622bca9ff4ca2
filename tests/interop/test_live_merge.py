"""TensorBoard's two readers follow a merged run that is appended while its ranks train."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from tests.interop.views import ALL, data_server, layouts, python_view, server_view
from tests.patience import wait_for
from tests.unit.aggregate.live_ranks import Ranks, tagged

pytestmark = pytest.mark.interop


def train(ranks: Ranks, live, steps, **values: float) -> None:
    """Both ranks record these steps, of which all but the newest one are then merged."""
    for rank in (0, 1):
        events = [tagged(step, {"loss": step + rank, **values}) for step in steps]
        ranks.write(rank, events)
    live.advance({0, 1}, float(steps[-1]))


def test_both_readers_see_what_was_appended_since_they_began(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    live = ranks.live()
    train(ranks, live, [1, 2, 3])
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    with data_server(tmp_path, reload="1") as provider:

        def served() -> list[tuple[int, float]]:
            found = provider.read_scalars(
                RequestContext(), experiment_id="", plugin_name="scalars", downsample=ALL
            )
            return [(point.step, point.value) for point in found.get(".", {}).get("loss", ())]

        expected = [(1, 1.5), (2, 2.5)]
        assert served() == expected
        for newest in (4, 5, 6):
            if newest == 5:  # the aggregator dies, and the next one continues in files of its own
                live.abandon()
                live = ranks.live()
            train(ranks, live, [newest])
            expected.append((newest - 1, newest - 0.5))
            multiplexer.Reload()
            assert [(point.step, point.value) for point in multiplexer.Scalars(".", "loss")] == expected
            wait_for(lambda: served() == expected)
    live.close()
    ranks.close()


def test_a_later_attempt_takes_the_place_of_the_steps_that_it_repeats(tmp_path: Path) -> None:
    first = Ranks(tmp_path, 2)
    live = first.live()
    train(first, live, list(range(1, 9)), acc=0.5)
    live.close()
    first.close()
    second = Ranks(tmp_path, 2, attempt=1)
    live = second.live()
    train(second, live, [4, 5, 6, 7], acc=0.75)
    expected = [(step, 0.5) for step in (1, 2, 3)] + [(step, 0.75) for step in (4, 5, 6)]
    assert python_view(tmp_path).scalars[".", "acc"] == expected
    assert server_view(tmp_path).scalars[".", "acc"] == expected
    live.close()
    second.close()


def test_the_newest_of_several_layouts_is_shown(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    live = ranks.live()
    train(ranks, live, [1, 2], lr=1.0)
    train(ranks, live, [3, 4], lr=1.0, learning_rate=1.0)
    live.close()
    ranks.close()
    for found in layouts(tmp_path, "."):
        titles = [chart.title for category in Layout.FromString(found).category for chart in category.chart]
        of = sorted(title.partition(":")[0] for title in titles if "median" in title)
        assert of == ["learning_rate", "loss", "lr"]

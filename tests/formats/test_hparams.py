"""TensorBoard's own code for the page HPARAMS finds each run, with its settings and last metrics."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

import distsummary as ds
from distsummary.aggregate.role_description import settings_values
from distsummary.format.own_tags import is_own
from distsummary.format.pb.tensorboard_hparams_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from distsummary.rundir.states import AttemptState, RankState


def train(
    path: Path, config: Any, *, ranks: int = 1, error: type[BaseException] | None = None, **options: Any
) -> None:
    for rank in range(ranks):
        ending = pytest.raises(error) if error is not None and rank == ranks - 1 else nullcontext()
        with ending, ds.init(path, rank=rank, world_size=ranks, config=config, **options) as run:
            for step in run.steps(range(3)):
                run.log(loss=1.0 / (step + 1))
                if error is not None and rank == ranks - 1 and step == 1:
                    raise error
            with run.eval() as evaluation:
                evaluation.log(accuracy=0.5)
    if ranks > 1:
        ds.merge_run(path)


def sessions(logdir: Path) -> dict[str, Any]:
    """Run -> its settings, status and metrics, as the page shows them."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(logdir))))
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE]
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100, allowed_statuses=statuses)
    found = Handler(RequestContext(), context, "", request).run().session_groups
    return {
        group.name: (
            {name: value.string_value or value.number_value for name, value in group.hparams.items()},
            api_pb2.Status.Name(group.sessions[0].status),
            {one.name.tag: one.value for one in group.metric_values if not one.name.group},
        )
        for group in found
    }


def test_each_run_is_a_session_with_its_own_settings_and_metrics(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path / "a", {"lr": 0.5, "opt": {"name": "adam"}})
    train(nasty_tmp_path / "b", {"lr": 0.25, "amp": True}, ranks=2)
    train(nasty_tmp_path / "none", None)
    found = sessions(nasty_tmp_path)
    assert found.keys() == {"a", "b"}  # no session for a rank, nor for a run without settings
    assert found["a"][:2] == ({"lr": 0.5, "opt.name": "adam"}, "STATUS_SUCCESS")
    assert found["b"][:2] == ({"lr": 0.25, "amp": "True"}, "STATUS_SUCCESS")
    for _, _, metrics in found.values():
        assert (metrics["loss"], metrics["eval/accuracy"]) == (pytest.approx(1 / 3), 0.5)
        assert [*metrics][:3] == ["eval/accuracy", "loss", next(filter(is_own, metrics))]


@pytest.mark.parametrize(
    ("error", "status"), [(ZeroDivisionError, "STATUS_FAILURE"), (KeyboardInterrupt, "STATUS_UNKNOWN")]
)
def test_of_a_training_that_was_stopped_the_end_and_the_metrics_so_far_are_shown(
    nasty_tmp_path: Path, error: type[BaseException], status: str
) -> None:
    train(nasty_tmp_path / "a", {"lr": 0.5}, error=error)
    train(nasty_tmp_path / "b", {"lr": 0.5}, error=error, ranks=2)
    found = sessions(nasty_tmp_path)
    assert found["a"][:2] == found["b"][:2] == ({"lr": 0.5}, status)
    assert found["a"][2]["loss"] == 0.5


@pytest.mark.parametrize(
    ("others", "end"),
    [
        (["finished"], [STATUS_SUCCESS]),
        (["failed"], [STATUS_FAILURE]),
        (["failed", "interrupted"], [STATUS_FAILURE]),
        (["failed", "running"], [STATUS_FAILURE]),  # a peer that was killed because of the failure
        (["interrupted"], []),
        (["running"], []),
        (["unknown"], []),
        (["lost"], [STATUS_FAILURE]),
    ],
)
def test_one_failed_rank_is_the_failure_of_the_training(others: list[str], end: list[int]) -> None:
    states = ["finished", *others]
    ranks = tuple(RankState(role="train", rank=n, attempt=0, state=state) for n, state in enumerate(states))
    attempt = AttemptState(
        role="train", attempt=0, state="", world_size=len(ranks), started=1.0, ranks=ranks, missing=(),
        failure=None,
    )  # fmt: skip
    _, *ends = settings_values({"lr": 0.5}, attempt, 2.0)
    assert [value.data.session_end_info.status for value in ends] == end


def test_a_host_whose_name_is_no_text_is_merged(tmp_path: Path) -> None:
    train(tmp_path, {"lr": 0.5}, ranks=2, aggregate=False)
    manifest = tmp_path / "rank_00000" / "manifest.json"
    stored = json.loads(manifest.read_text())
    stored["attempts"][0]["host"] = "node\ud800"
    manifest.write_text(json.dumps(stored))
    ds.merge_run(tmp_path)
    assert any("node?" in str(text) for text in ds.open_run(tmp_path).merged.text()["value"])

"""The tab "Ranks" in TensorBoard's own server, which checks what it sends; and what its other pages show."""

import logging
import shutil
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import plugin_event_multiplexer
from werkzeug.test import Client

import distsummary as ds
from distsummary.format.own_tags import is_own
from distsummary.view import report
from distsummary.view.tensorboard_tab import RanksPlugin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of what TensorBoard brings along
    from tensorboard.backend import application

HERE = "/data/plugin/distsummary_ranks"


@pytest.fixture(autouse=True)
def bundle(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path_factory.mktemp("bundle")
    for name in ("page.js", "graph.js", "page.css"):
        (directory / name).write_text(f"/* {name} */\n")
    monkeypatch.setattr(report, "BUNDLE", directory)


def train(path: Path, ranks: int = 2) -> None:
    for rank in range(ranks):
        with ds.init(path, rank=rank, world_size=ranks, aggregate=False, quiet=True) as run:
            for step in run.steps(range(3)):
                run.log({"loss": 1.0 / (step + 1 + rank), "Zeta/x": 2.0, "_private": 1.0})
    if ranks > 1:
        ds.merge_run(path)


def tensorboard(logdir: Path | str) -> Client:
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    flags = Namespace(
        logdir=str(logdir), samples_per_plugin={}, window_title="", path_prefix="", generic_data="false"
    )
    app = application.TensorBoardWSGIApp(flags, [RanksPlugin], deprecated_multiplexer=multiplexer)
    return Client(app)


def test_the_tab_shows_the_pages_of_the_runs(nasty_tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logdir = nasty_tmp_path / "runs"
    train(logdir / "a")
    browser = tensorboard(logdir)
    with caplog.at_level(logging.WARNING):
        listed = browser.get("/data/plugins_listing").get_json()["distsummary_ranks"]
        entry = browser.get("/data/plugin_entry.html?name=distsummary_ranks").get_data(as_text=True)
        script = browser.get(f"{HERE}/tab.js")
        page = browser.get(f"{HERE}/page")
        runs = browser.get(f"{HERE}/runs")
        data = browser.get(f"{HERE}/data?run=a")
        assert [browser.get(f"{HERE}/{name}").status_code for name in ("page.js", "page.css")] == [200, 200]
        seen = browser.get(f"{HERE}/data?run=a", headers={"If-None-Match": data.headers["ETag"]})
        posted = browser.post(f"{HERE}/labels?run=a", json={"name": "x"})
    assert (listed["enabled"], listed["tab_name"]) == (True, "Ranks")
    assert 'import("./tab.js")' in entry
    assert b'new URL("page", import.meta.url)' in script.data
    assert b'<script src="page.js"></script>' in page.data
    assert runs.headers["Content-Encoding"] == "gzip"
    assert (data.status_code, seen.status_code, seen.data, posted.status_code) == (200, 304, b"", 405)
    # TensorBoard warns of what its policy does not allow: other sources, missing types.
    assert [record.message for record in caplog.records if "security" in record.name] == []
    assert not [record for record in caplog.records if "will become an error" in record.message]


@pytest.mark.parametrize("name", ["../b", "..", "/etc", "", "b/../../b", "link"])
def test_nothing_outside_of_the_log_directory_is_read(name: str, tmp_path: Path) -> None:
    train(tmp_path / "runs" / "a", ranks=1)
    train(tmp_path / "b", ranks=1)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "b")
    answer = tensorboard(tmp_path / "runs").get(f"{HERE}/data", query_string={"run": name})
    assert (answer.status_code, b"there is no run" in answer.data) == (404, True)


def test_without_a_run_the_tab_is_not_active(tmp_path: Path) -> None:
    browser = tensorboard(tmp_path)
    assert browser.get("/data/plugins_listing").get_json()["distsummary_ranks"]["enabled"] is False
    train(tmp_path / "deep" / "er", ranks=1)
    assert browser.get("/data/plugins_listing").get_json()["distsummary_ranks"]["enabled"] is True
    for logdir in ("", "gs://bucket/runs", str(tmp_path / "none")):
        browser = tensorboard(logdir)
        assert browser.get("/data/plugins_listing").get_json()["distsummary_ranks"]["enabled"] is False
        assert browser.get(f"{HERE}/runs").status_code == 503


def test_tensorboard_starts_without_what_reads_runs() -> None:
    code = (
        "import sys, distsummary.view.tensorboard_tab; "
        "print({'distsummary.view.page', 'distsummary.runs', 'torch', 'ray'}.intersection(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_training_of_several_ranks_is_one_run_and_the_users_tags_come_first(tmp_path: Path) -> None:
    train(tmp_path / "t0", ranks=4)
    for number in range(1, 16):
        shutil.copytree(tmp_path / "t0", tmp_path / f"t{number}")
    shown = plugin_event_multiplexer.EventMultiplexer()
    shown.AddRunsFromDirectory(str(tmp_path))
    shown.Reload()
    assert {*shown.Runs()} == {f"t{number}" for number in range(16)}
    tags = shown.Runs()["t0"]["tensors"]
    # By code points, as HPARAMS and MindInsight, and with "_" before letters, as TensorBoard's other pages.
    for order in (str, lambda tag: [(letter.isalpha(), letter.lower()) for letter in tag]):
        first = sorted(tags, key=order)[:3]
        assert not any(map(is_own, first)), first

"""The file of a page: one, whole, inert, and without a bundle a line that says how to build it."""

import base64
import hashlib
import html
import json
import os
import re

import pytest

import distsummary as ds
from distsummary.cli.main import main
from distsummary.errors import InvalidValueError, MissingExtraError, MissingFileError, RunDirError
from distsummary.format.records import Value
from distsummary.view.report import report
from tests.unit.runs.recording import record

NASTY = "</script><script>window.hacked=1</script>\"'&\u2028é" + "x" * 950


@pytest.mark.usefixtures("bundle")
def test_a_run_becomes_one_file_whose_texts_cannot_leave_their_place(tmp_path):
    run = tmp_path / "<b>run"
    record(run, values=lambda step, rank: [Value("scalar", NASTY, step)])
    path = report(run, out=tmp_path / "page.html")
    text = path.read_text()
    assert text.count("</script>") == 3
    assert "<title>&lt;b&gt;run</title>" in text
    assert "://" not in text.replace(html.escape(str(run)), "")
    [data] = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    assert [curve["tag"] for curve in json.loads(data)["curves"]] == [NASTY]
    for source in ("'use strict'", "body{}"):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in text
    assert [*tmp_path.glob("*.html")] == [path]


@pytest.mark.usefixtures("bundle")
def test_a_name_that_is_no_utf_8_has_a_page_and_every_verb_prints_it(tmp_path, monkeypatch, capsys):
    run = tmp_path / os.fsdecode(b"r\xff\x9b")
    with ds.init(run, aggregate=False, quiet=True) as training:
        for _ in training.steps(range(2)):
            training.log(loss=1.0)
    monkeypatch.chdir(tmp_path)
    for verb, *paths in (("report", run), ("show", run), ("status", run), ("runs", tmp_path)):
        assert main([verb, *map(str, paths)]) == 0
        assert r"r\udcff\udc9b" in capsys.readouterr().out
    [path] = tmp_path.glob("*.html")
    assert path.name == f"{run.name}.html"
    assert "<title>r??</title>" in path.read_text(encoding="utf-8")


def test_without_a_front_end_one_line_says_how_to_build_it(tmp_path, bundle):
    record(tmp_path / "run")
    (bundle / "page.js").unlink()
    with pytest.raises(MissingExtraError, match=r"page.js is missing\); run: make front"):
        report(tmp_path / "run", out=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.usefixtures("bundle")
def test_a_notebook_shows_the_page_in_a_frame_that_holds_it(tmp_path):
    record(tmp_path / "<b>run")
    run = ds.open_run(tmp_path / "<b>run")
    shown = run.page(height=300)._repr_html_()
    found = re.fullmatch(
        r'<iframe src="data:text/html;charset=utf-8;base64,([\w+/=]+)" style="[^"<>]*"></iframe>', shown
    )
    assert "height: 300px" in shown
    text = base64.b64decode(found[1]).decode()
    assert text.startswith("<!doctype html>")
    assert "<title>&lt;b&gt;run</title>" in text
    with pytest.raises(InvalidValueError, match="height must be"):
        run.page(height=10)


@pytest.mark.usefixtures("bundle")
def test_the_command_names_the_file_and_its_size(tmp_path, monkeypatch, capsys):
    record(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "run.html: 0.0 MB\n"
    assert main(["report", "run", "-o", "other.html", "--tag", "loss", "--rank", "0", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported == {"file": "other.html", "bytes": (tmp_path / "other.html").stat().st_size}
    record(tmp_path / "second")
    assert main(["report", "run", "--with", "second", "-o", "both.html"]) == 0
    assert '"compare":{"runs":[{"name":"run"' in (tmp_path / "both.html").read_text()
    capsys.readouterr()
    assert main(["report", "run", "--tag", "los"]) == 2
    assert "got 'los'; the nearest are loss" in capsys.readouterr().err
    assert main(["report", "run", "--rank", "7"]) == 2
    assert "--rank must be one of 0, got 7" in capsys.readouterr().err
    assert main(["report", "none"]) == 2
    assert "there is no none; name the directory of a run" in capsys.readouterr().err


@pytest.mark.usefixtures("bundle")
def test_what_cannot_be_shown_leaves_no_file(tmp_path):
    record(tmp_path / "run")
    with pytest.raises(InvalidValueError, match="the nearest are loss"):
        report(tmp_path / "run", out=tmp_path / "page.html", tags=["los"])
    with pytest.raises(MissingFileError, match="there is no"):
        report(tmp_path / "none", out=tmp_path / "page.html")
    with pytest.raises(RunDirError, match="it is a directory"):
        report(tmp_path / "run", out=tmp_path / "run")
    assert not (tmp_path / "page.html").exists()

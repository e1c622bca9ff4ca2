"""A front end that is one line: what is tested here is around it; tests/ui has the real one."""

from pathlib import Path

import pytest

from distsummary.view import report


@pytest.fixture
def bundle(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its directory."""
    directory = tmp_path_factory.mktemp("bundle")
    for name in ("page.js", "graph.js"):
        (directory / name).write_text("'use strict'\n")
    (directory / "page.css").write_text("body{}\n")
    monkeypatch.setattr(report, "BUNDLE", directory)
    return directory

"""The page of a run as one HTML file that needs nothing but a browser and sends no requests."""

import base64
import hashlib
import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_int
from distsummary.base.publish import check_writable, refuse_unlike_files, replacing
from distsummary.errors import MissingExtraError
from distsummary.runs.recorded_run import RecordedRun, open_run
from distsummary.view.compared_runs import refuse_others
from distsummary.view.packing import embedded
from distsummary.view.page import page

BUNDLE = Path(__file__).parent / "bundle"

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {script_hashes}; \
style-src '{style_hash}'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"><p>Reading the run ...</p><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="data">{data}</script>
<script type="application/octet-stream" id="block">{block}</script>
{scripts}
</body>
</html>
"""


def report(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    ranks: Sequence[int] = (),
    tags: Sequence[str] | None = None,
    others: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Write the page of a run, see `page`; returns its path.

    An older file of that name is replaced when the new one is whole.

    Args:
        run: the run dir, or a directory with event files.
        out: the file; None: the name of the run with .html, in the current directory.
        ranks: those that have curves of their own in any case, see `page`.
        tags: the scalars to show; None: all.
        others: runs to show next to it: what differs, and their curves on top of each other.

    Raises MissingExtraError if the front end is not built, RunDirError if the file cannot be written, and the
    errors of `open_run` and `page`.
    """
    built("page.js")
    refuse_others(Path(run), [Path(other) for other in others])
    opened = open_run(run)
    path = Path(out if out is not None else f"{opened.path.resolve().name}.html")
    # What cannot be written is refused before the run is read, which may take long.
    refuse_unlike_files(path)
    check_writable(path.parent)
    text = _html_of(opened, ranks=ranks, tags=tags, others=[open_run(other) for other in others])
    with replacing(path, is_durable=False) as temporary:
        # A name of a file that is not UTF-8 contains code points which cannot be encoded.
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    return path


class NotebookPage:
    """The page of a run, which a notebook shows in a frame; see `RecordedRun.page`.

    Args:
        run: the run. height: of the frame, in pixels, from 200 to 5000.

    Raises MissingExtraError if the front end is not built, InvalidValueError for another height, and
    MissingFileError if the run was removed.
    """

    def __init__(self, run: RecordedRun, *, height: int = 800) -> None:
        check_int("height", height, low=200, high=5000)
        self._height, self._html = height, _html_of(run)

    def _repr_html_(self) -> str:
        # Its address is its content, so that the links of the page, which end in #, stay within it.
        content = base64.b64encode(self._html.encode(errors="replace")).decode("ascii")
        source = f"data:text/html;charset=utf-8;base64,{content}"
        return f'<iframe src="{source}" style="width: 100%; height: {self._height}px; border: 0"></iframe>'


def _html_of(opened: RecordedRun, **arguments: Any) -> str:  # those of `page`
    script, style = (built(name) for name in ("page.js", "page.css"))
    found = page(opened, **arguments)
    # The code that lays out a graph is only where there is one.
    scripts = [*([built("graph.js")] if found["graph"] else []), script]
    data, block = embedded(found)
    return _HTML.format(
        title=html.escape(opened.path.resolve().name),
        script_hashes=" ".join(f"'{_hash(one)}'" for one in scripts),
        style_hash=_hash(style),
        scripts="\n".join(f"<script>{one}</script>" for one in scripts),
        style=style,
        data=data,
        block=block,
    )


def built(name: str) -> str:
    """A file of the front end; raises MissingExtraError if it was not built."""
    path = BUNDLE / name
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise MissingExtraError(
            f"the front end of the pages is not built ({path} is missing); "
            "run: make front, in a checkout of distsummary (wheels have it)"
        ) from error


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"

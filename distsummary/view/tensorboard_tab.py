"""TensorBoard's tab "Ranks": our pages of the runs below its log directory, from its own server.

TensorBoard imports this module at its start; what reads runs is imported with the first look at the tab.
"""

import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

from distsummary.errors import DistSummaryError, InvalidValueError
from distsummary.rundir.run_dir import MANIFEST, RunDir

if TYPE_CHECKING:
    from distsummary.view.serve import Pages

_LOOKED_AT, _DEPTH = 1000, 4  # directories in which a run is looked for, to show the tab as active
# TensorBoard puts the tab into a frame and calls `render` there.
_TAB = b'export const render = () => location.replace(new URL("page", import.meta.url))\n'
_SNIFF = (("X-Content-Type-Options", "nosniff"),)
Start = Callable[[str, list[tuple[str, str]]], object]


class RanksPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """The tab. It reads below the log directory alone; one that is not local (gs://...) has no runs for it.

    Args:
        context: TensorBoard's, with the log directory.
    """

    plugin_name = "distsummary_ranks"

    def __init__(self, context: Any) -> None:  # Any: TensorBoard has no types
        self._logdir, self._has_runs, self._lock = context.logdir or "", False, Lock()

    def get_plugin_apps(self) -> dict[str, Callable[..., Iterable[bytes]]]:
        """The WSGI app of all paths of the tab."""
        return {"/*": self.answer}

    def is_active(self) -> bool:
        """Whether there is a run of distsummary near the top; TensorBoard asks again and again."""
        self._has_runs = self._has_runs or (bool(self._logdir) and _holds_run(Path(self._logdir)))
        return self._has_runs

    def frontend_metadata(self) -> Any:  # Any: TensorBoard has no types
        """The name of the tab and the script that shows it; the page renews itself."""
        return base_plugin.FrontendMetadata(es_module_path="/tab.js", tab_name="Ranks", disable_reload=True)

    def answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer a request for the script, the page, or what the page asks for."""
        from distsummary.view.serve import WsgiHandler

        name = environ["PATH_INFO"].rpartition("/")[2]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Content-Type", "text/plain"), *_SNIFF])
            return [b"runs can only be read here"]
        if name == "tab.js":
            start("200 OK", [("Content-Type", "text/javascript; charset=utf-8"), *_SNIFF])
            return [_TAB]
        try:
            with self._lock:
                pages = self._pages
        except (DistSummaryError, OSError) as error:
            start(
                "503 Service Unavailable",
                [("Content-Type", "text/plain"), ("X-Content-Type-Options", "nosniff")],
            )
            return [str(error).encode(errors="replace")]
        handler = WsgiHandler(pages, "" if name == "page" else name, environ)
        handler.do_GET()
        start(handler.status, handler.sent)
        return [handler.body]

    @cached_property
    def _pages(self) -> "Pages":
        from distsummary.view.serve import Pages
        from distsummary.view.served import Served

        if not self._logdir:
            raise InvalidValueError("the tab needs a local --logdir; --logdir_spec has none")
        return Pages(Served(self._logdir))


def _holds_run(top: Path) -> bool:
    looked_at, level = 0, [top]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for directory in level:
            looked_at += 1
            if looked_at > _LOOKED_AT:
                return False
            if (directory / MANIFEST).is_file() or RunDir(directory).rank_dirs():
                return True
            try:
                with os.scandir(directory) as entries:
                    below += [directory / one.name for one in entries if one.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # of what cannot be read, TensorBoard shows nothing either
        level = sorted(below)
    return False

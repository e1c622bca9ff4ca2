"""One browser for all tests: Debian's chromium; what a page reports or asks for fails its test."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
AXE = ROOT / "distsummary/view/front/node_modules/axe-core/axe.min.js"
VIOLATIONS = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 150)).join(" | ")}`))"""


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


def made(tmp_path_factory, module: str, *names: str) -> Path:
    """The directory in which a module of this folder has written runs and their pages."""
    directory = tmp_path_factory.mktemp(module)
    command = [PYTHON, "-m", f"tests.ui.{module}", directory, *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return directory


def violations(page) -> list[str]:
    """What axe-core finds to be a serious obstacle on a page."""
    if not page.evaluate("window.axe !== undefined"):
        page.evaluate(f"{AXE.read_text()}; undefined")
    return page.evaluate(VIOLATIONS)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Pages of runs of 1 to 1,000 ranks with hostile names, and of a comparison."""
    return made(tmp_path_factory, "recorded")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Eight prepared runs and their pages."""
    return made(tmp_path_factory, "prepared")


@pytest.fixture
def opened(browser):
    """Opens a file in a new page; at the end, console output or a request to a server fails the test."""
    reported: list[str] = []

    def opened(path: Path, hash: str = "", width: int = 1400, height: int = 900, **settings):
        page = browser.new_page(viewport={"width": width, "height": height}, **settings)
        page.on("console", lambda message: reported.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: reported.append(f"error: {error}"))
        page.on("request", lambda request: reported.append(f"request: {request.url[:99]}"))
        page.goto(path.as_uri() + hash)
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(200)  # charts are drawn when they come into sight
        return page

    yield opened
    allowed = ("request: file:///", "request: data:", "request: blob:")
    assert [one for one in reported if not one.startswith(allowed)] == []

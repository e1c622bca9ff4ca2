"""One browser for all tests: Debian's chromium; what a page reports or asks for fails its test."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
AXE = ROOT / "distsummary/view/front/node_modules/axe-core/axe.min.js"
FRAMES = 6
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


MAKERS = {"recorded": [], "prepared": ["healthy", "slow", "stalls", "hung", "nan", "lost", "restarted"],
          "thousand": ["thousand"]}  # fmt: skip


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The directory in which one of MAKERS has written runs and their pages; all of them work at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = {}
    for name, runs in MAKERS.items():
        directory = tmp_path_factory.mktemp(name)
        module = "recorded" if name == "recorded" else "prepared"
        command = [PYTHON, "-m", f"tests.ui.{module}", directory, *runs]
        found[name] = directory, subprocess.Popen(command, cwd=ROOT, env=environment)

    def made(name: str) -> Path:
        directory, process = found[name]
        assert process.wait(600) == 0
        return directory

    yield made
    for _, process in found.values():
        process.kill()
        process.wait()


def settled(page) -> None:
    """Wait until what came into sight is drawn: charts and views take a frame each to notice it."""
    page.evaluate(
        """left => new Promise((done) => {
          const next = () => (left-- ? requestAnimationFrame(next) : done())
          next()
        })""",
        FRAMES,
    )


def violations(page) -> list[str]:
    """What axe-core finds to be a serious obstacle on a page."""
    if not page.evaluate("window.axe !== undefined"):
        page.evaluate(f"{AXE.read_text()}; undefined")
    return page.evaluate(VIOLATIONS)


@pytest.fixture(scope="session")
def pages(made):
    """Pages of runs of 1 to 64 ranks with hostile names, and of a comparison."""
    return made("recorded")


@pytest.fixture(scope="session")
def prepared(made):
    """The page of one of eight prepared runs."""
    return lambda name: made("thousand" if name == "thousand" else "prepared") / f"{name}.html"


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
        settled(page)
        return page

    yield opened
    allowed = ("request: file:///", "request: data:", "request: blob:")
    assert [one for one in reported if not one.startswith(allowed)] == []

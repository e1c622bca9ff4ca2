"""The served pages in Chromium: the list; a page that follows its run and keeps what was chosen."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ui.conftest import violations

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
RECORD = """
import sys
from pathlib import Path
from tests.ui.recorded import slow
from tests.unit.runs.recording import record
path, ranks, first, end = Path(sys.argv[1]), *map(int, sys.argv[2:])
for rank in range(ranks):
    record(path, rank=rank, ranks=ranks, steps=range(first, end), first_seq=first, values=slow)
"""
MANY = """
import sys
from pathlib import Path
from distsummary.format.records import Value
from tests.unit.runs.recording import record
values = [Value("scalar", f"layer{number}", number) for number in range(200)]
record(Path(sys.argv[1]), values=lambda step, rank: values)
"""
ENDED = 30_000  # milliseconds: so long may an update take on a machine that does other things too


def record(path: Path, ranks: int, first: int, end: int) -> None:
    command = [PYTHON, "-c", RECORD, path, str(ranks), str(first), str(end)]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)


def record_many(path: Path) -> None:
    subprocess.run([PYTHON, "-c", MANY, path], cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A directory with two runs."""
    directory = tmp_path_factory.mktemp("recorded")
    for name, ranks in (("slow", 20), ("alone", 1)):
        record(directory / name, ranks, 1, 401)
        (directory / name / "run.json").write_text("{}")  # it is listed as one, and said to be unreadable
    return directory


@pytest.fixture
def served(browser, tmp_path, recorded):
    """(runs, page): a copy of these runs, and their list in the browser."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    command = [PYTHON, "-m", "distsummary", "serve", tmp_path, "--port", "0", "--json"]
    pending: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        try:
            url = json.loads(process.stdout.readline())["url"]
            page.on("console", lambda message: pending.append(f"console: {message.text}"))
            page.on("pageerror", lambda error: pending.append(f"error: {error}"))
            page.on("request", lambda request: pending.append(f"request: {request.url[:99]}"))
            page.goto(url)
            page.wait_for_selector("html[data-ready]")
            yield tmp_path, page
        finally:
            page.close()
            process.terminate()
            process.wait(60)
    allowed = (f"request: {url}", "request: data:", "console: Failed to load resource: the server responded")
    assert [one for one in pending if not one.startswith(allowed)] == []


def steps(page) -> str:
    return page.locator("header .quiet").inner_text().split(" · ")[1]


def opened(page, name: str):
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_selector("html[data-ready] .chart canvas")


def test_the_list_is_sorted_filtered_and_worked_by_keys(served):
    _, page = served
    names = "[...document.querySelectorAll('.runs tbody th a')].map((one) => one.textContent)"
    page.get_by_role("button", name="name", exact=True).click()
    assert page.evaluate(names) == ["alone", "slow"]
    page.get_by_role("button", name="name", exact=True).click()
    assert page.evaluate(names) == ["slow", "alone"]
    page.keyboard.press("/")
    page.keyboard.type("name ~ 'LO")
    page.locator("[role=alert]", has_text="the quote is not closed").wait_for(timeout=ENDED)
    page.keyboard.type("W'")
    page.locator("#summary", has_text="1 of 2 runs").wait_for(timeout=ENDED)
    assert page.evaluate(names) == ["slow"]
    assert violations(page) == []
    page.locator("#filter").fill("")
    page.get_by_role("button", name="2 with findings").click()
    page.get_by_label("group by").select_option("state")
    row = page.locator(".groups tbody tr", has_text="state unreadable")
    assert row.locator("td.number").first.inner_text() == "2"
    row.get_by_role("button", name="state unreadable").click()
    page.locator("#summary", has_text="2 runs").wait_for(timeout=ENDED)
    assert page.locator("#filter").input_value() == "(level or is_healthy == false) and state == 'unreadable'"
    page.locator("#filter").fill("name == 'slow'")
    page.locator("#summary", has_text="1 of 2 runs").wait_for(timeout=ENDED)
    page.locator(".runs tbody th a").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-route=answer]")
    assert page.locator("h1").inner_text().startswith("slow")


def test_a_page_follows_its_run_and_keeps_what_was_chosen(served):
    runs, page = served
    opened(page, "slow")
    assert steps(page) == "400 steps"
    page.keyboard.press("2")
    page.locator("#filter").fill("loss")
    page.get_by_label("put any rank on top").fill("2")
    page.get_by_label("put any rank on top").press("Enter")
    plot = page.locator(".chart .u-over")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=5)
    page.mouse.up()
    page.locator("#filter").focus()
    url, top = page.url, page.locator(".chart").bounding_box()["y"]
    record(runs / "slow", 20, 401, 801)
    page.locator("header .quiet", has_text="800 steps").wait_for(timeout=ENDED)
    assert page.url == url
    assert "undefined" not in page.locator("main").inner_text()
    assert page.evaluate("document.activeElement.id") == "filter"
    assert page.locator("#filter").input_value() == "loss"
    assert page.locator(".chart .tag").all_inner_texts() == ["loss"]
    assert "rank 2" in page.locator(".chart .legend").inner_text()
    assert abs(page.locator(".chart").bounding_box()["y"] - top) < 2
    page.mouse.move(box["x"] + 5, box["y"] + 45)  # the left edge of what is zoomed in on
    page.mouse.move(box["x"] + 6, box["y"] + 45)
    step = int(re.search(r"step (\d+)", page.locator(".tip").inner_text())[1])
    assert 85 < step < 120


def test_a_tag_that_the_page_does_not_hold_is_asked_for(served):
    runs, page = served
    record_many(runs / "many")
    (runs / "many" / "run.json").write_text("{}")
    page.goto(f"{page.url}?run=many#metrics?q=layer199")
    chart = page.locator(".chart", has_text="layer199")
    chart.locator("canvas").wait_for(timeout=ENDED)
    assert chart.locator(".newest").inner_text() == "199"


def test_a_step_that_the_page_does_not_hold_is_asked_for(served):
    _, page = served
    page.goto(f"{page.url}?run=slow#ranks?step=203&rank=7")
    page.locator(".anatomy .tag", has_text="step 203").wait_for(timeout=ENDED)
    assert "nearest" not in page.locator(".anatomy figcaption").inner_text()
    assert page.locator(".anatomy .bar-row button").first.inner_text() == "rank 7"


def test_a_run_that_is_removed_stays_as_it_was_and_that_is_said(served):
    runs, page = served
    opened(page, "alone")
    shutil.rmtree(runs / "alone")
    said = page.locator("header .said")
    said.filter(has_text="was").wait_for(timeout=ENDED)
    assert "was removed while it was read; this is what there was before" in said.inner_text()
    assert steps(page) == "400 steps"
    assert page.locator(".chart canvas").count() > 0


def test_runs_that_are_chosen_in_the_list_are_compared(served):
    _, page = served
    page.get_by_label("compare slow").check()
    assert page.get_by_role("link", name="compare 2 runs").count() == 0
    page.get_by_label("compare alone").check()
    page.get_by_role("link", name="compare 2 runs").click()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("h1").inner_text() == "slow"
    assert page.locator("[data-view=compare] tbody").first.locator(".key .name").all_inner_texts() == [
        "slow",
        "alone",
    ]
    assert "alone" in page.locator("#compared .legend").first.inner_text()


def test_groups_of_the_list_are_compared_as_bands(served):
    _, page = served
    page.get_by_label("group by").select_option("state")
    page.get_by_label("compare the runs of state unreadable").check()
    page.get_by_role("link", name="compare 2 runs").click()
    page.wait_for_selector("html[data-ready] #compared canvas")
    assert page.locator("#compared .legend").inner_text() == "state unreadable (2 runs)"
    for kind in ("time", "step"):
        page.get_by_role("button", name=kind, exact=True).click()
        assert page.locator("#compared .chart canvas").first.is_visible()
    page.locator("main").get_by_label("group by").select_option("")
    page.wait_for_selector("html[data-ready] #compared canvas")
    assert page.locator("#compared .legend span").all_inner_texts() == ["alone", "slow"]


def test_the_tab_of_tensorboard_is_as_dark_as_tensorboard_and_leads_back_to_its_list(browser, recorded):
    command = [PYTHON, "-m", "tensorboard.main", "--logdir", recorded, "--port", "0", "--load_fast=false"]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="light")
        try:
            [url] = next(filter(None, (re.findall(r"http://\S+", line) for line in process.stdout)))
            page.goto(f"{url}?darkMode=true#distsummary_ranks")
            tab = page.frame_locator("iframe")
            tab.get_by_role("link", name="alone", exact=True).click(timeout=ENDED)
            tab.locator("html[data-theme=dark] .chart canvas").first.wait_for(timeout=ENDED)
            tab.locator("nav .back a").click()
            tab.get_by_role("link", name="slow", exact=True).wait_for(timeout=ENDED)
        finally:
            page.close()
            process.terminate()
            process.wait(60)

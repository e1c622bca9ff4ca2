"""The page of a run in Chromium: it draws, asks no server for anything, and what was recorded stays text.

Run by `make test-ui`, in a virtual environment of its own that has Playwright and nothing of distsummary.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
# A canvas that shows something has more than one colour.
COLORS = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
  return new Set(new Uint32Array(data.buffer)).size
}"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("pages")
    subprocess.run(
        [PYTHON, "-m", "tests.ui.recorded", directory],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=170,
    )
    return directory


@pytest.fixture
def show(browser, pages):
    """Opens the page of a run; at the end, console output or a request to a server fails the test."""
    reported: list[str] = []

    def opened(name: str, **settings):
        page = browser.new_page(viewport={"width": 1400, "height": 900}, **settings)
        page.on("console", lambda message: reported.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: reported.append(f"error: {error}"))
        page.on("request", lambda request: reported.append(f"request: {request.url[:99]}"))
        page.goto((pages / name).as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(200)  # charts are drawn when they come into sight
        return page

    yield opened
    left = [
        one
        for one in reported
        if not one.startswith(("request: file:///", "request: data:", "request: blob:"))
    ]
    assert left == []


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.smoke), 64, 1000])
def test_every_view_is_drawn_and_nothing_is_asked_for(show, ranks):
    page = show(f"{ranks}.html")
    assert page.locator("h1").inner_text().startswith(f"run{ranks}")
    page.locator("#curves canvas").first.wait_for()
    for view in ("timeline", "curves") if ranks == 1 else ("heat", "timeline", "curves"):
        page.locator(f"#{view}").scroll_into_view_if_needed()
    maps = page.locator("#heat canvas[role=img]")
    assert maps.count() == (0 if ranks == 1 else 4)
    for number in range(maps.count()):
        maps.nth(number).scroll_into_view_if_needed()
        assert maps.nth(number).evaluate(COLORS) > 5
    for view in ("curves", "norms", "histograms", "landscape"):
        drawn = page.locator(f"#{view} canvas").first
        drawn.scroll_into_view_if_needed()
        page.wait_for_timeout(100)
        assert drawn.evaluate(COLORS) > 5, view
    image = page.locator("#media img").first
    image.scroll_into_view_if_needed()
    assert image.evaluate("one => one.complete && one.naturalWidth") == 40
    assert (pages_size := page.evaluate("document.documentElement.scrollWidth")) <= 1400, pages_size


@pytest.mark.smoke
def test_recorded_texts_are_inert_and_shown_whole(show):
    page = show("4.html")
    tags = page.locator("#curves .tag").all_inner_texts()
    assert any(tag.startswith("</script><img src=x") and "<b>x</b>" in tag for tag in tags)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img:not([src^='data:image/png']), b:has-text('x')").count() == 0


@pytest.mark.smoke
def test_the_slow_rank_is_found_by_its_verdict_and_in_the_heat_map(show):
    page = show("4.html")
    row = page.locator("tr.link")
    assert row.locator("td").all_inner_texts()[:4] == ["rank 2", "data", "warning", "300 on"]
    row.press("Enter")
    assert page.evaluate("location.hash") == "#heat"
    figure = page.locator("#heat figure", has_text="Own time")
    box = figure.locator("canvas[role=img]").bounding_box()
    figure.locator("canvas[role=img]").hover(position={"x": box["width"] * 0.8, "y": box["height"] * 0.55})
    said = figure.locator(".readout").inner_text()
    assert said.startswith("rank 2, step")
    assert "times the median" in said
    assert "verdict: data, steps 300 on" in said


def test_norms_report_parameter_step_and_value_and_lead_to_the_first_nan(show):
    page = show("64.html")
    view = page.locator("#norms")
    assert "First NaN or infinite at step 15: the gradient of layers.100.bias" in view.inner_text()
    map = view.locator("canvas[role=img]")
    view.get_by_role("button", name="show").press("Enter")
    assert view.locator(".readout").first.inner_text().endswith("layers.100.bias at step 15")
    view.get_by_label("gradient norm").check()
    view.get_by_label("ratio to the median of its row").check()
    map.focus()
    page.keyboard.press("ArrowDown")
    said = view.locator(".readout").all_inner_texts()
    assert said[0].startswith("layers.1.* (2 parameters), steps 1 to ")
    assert "times the median of its row, layers.1." in said[0]
    assert said[1].startswith("of the row, lowest 1 at step ")
    assert map.evaluate(COLORS) > 20


def test_histograms_report_step_share_and_the_rank_that_recorded_them(show):
    page = show("4.html")
    figure = page.locator("#histograms figure").first
    caption = figure.locator("figcaption").inner_text()
    assert "weight recorded by rank 1, 120 of 800 steps" in caption
    assert "NaN or infinite values, first at step 14 of those shown" in caption
    map = figure.locator("canvas[role=img]")
    map.focus()
    page.keyboard.press("ArrowRight")
    said = figure.locator(".readout").inner_text()
    assert said.startswith("step 8: none of 100 values from 767 to 800")
    assert said.endswith("lowest -8, median between -0.727 and 0.727, highest 8")
    assert map.evaluate(COLORS) > 20
    page.get_by_label("filter histograms").fill("<b>x</b>")
    assert page.locator("#histograms figure").count() == 1


def test_images_and_texts_follow_a_slider_and_stay_images_and_texts(show):
    page = show("4.html")
    figure = page.locator("#media figure").first
    assert "input 3 ranks, 100 of 160 steps" in figure.locator("figcaption").inner_text()
    images = figure.locator("img")
    assert images.count() == 3
    assert images.first.get_attribute("alt") == "input, rank 0, step 800"
    assert images.first.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 8]
    before = images.first.get_attribute("src")
    slider = page.get_by_label("step of input")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "step 795"
    assert figure.locator("img").first.get_attribute("src") != before
    text = page.locator("#media pre").first
    assert text.inner_text().startswith("step 800 </script><img src=x")
    assert text.locator("*").count() == 0


def test_values_that_are_not_finite_are_reported(show):
    page = show("4.html")
    assert "1 value NaN or infinite, first at step 500" in page.locator("#curves figure").first.inner_text()


def test_it_is_worked_by_keys_alone_and_is_dark_or_light(show):
    page = show("64.html", color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("d")
    assert page.evaluate(background) != dark
    page.keyboard.press("3")
    assert page.evaluate("document.activeElement.id") == "heat"
    page.keyboard.press("/")
    page.keyboard.type("own")
    assert page.locator("#curves .tag").all_inner_texts() == ["zz_perf/own_ms"]
    page.locator("#heat canvas[role=img]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator("#heat .readout").first.inner_text().startswith("rank 1, step")


def test_settings_are_as_they_were_given_and_keys_report_bars_and_the_points_of_a_curve(show):
    page = show("real.html")
    config = page.locator("#overview div", has=page.get_by_role("heading", name="Config")).last
    settings = dict(row.split("\t") for row in config.locator("tr").all_inner_texts())
    assert (settings["seed"], settings["lr"], settings["single"]) == ("20260131", "1.5e-7", "0.05")
    page.locator("#timeline canvas[role=img]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#timeline .readout").inner_text().startswith("rank 0, attempt 0 (train) on ")
    figure = page.locator("#curves figure", has_text="loss").first
    figure.locator(".u-over").focus()
    for key, step, value in (("Right", 1, 1), ("Right", 2, 0.5), ("Right", 3, 0.33333), ("Left", 2, 0.5)):
        page.keyboard.press(f"Arrow{key}")
        assert figure.locator(".u-legend .u-value").all_inner_texts()[:2] == [f"{step}", f"{value}"]


def test_any_rank_is_put_on_top_of_the_band(show):
    page = show("64.html")
    legend = page.locator("#curves figure").first.locator(".u-legend")
    assert "rank" not in legend.inner_text().replace("highest", "").replace("lowest", "")
    page.get_by_role("button", name="2", exact=True).click()
    assert "rank 2" in legend.inner_text()
    page.get_by_label("log values").check()
    page.get_by_label("log steps").check()
    assert page.locator("#curves canvas").first.evaluate(COLORS) > 5


def test_a_rank_without_a_line_of_its_own_is_that_of_the_heat_map_and_smoothing_is_said(show):
    page = show("64.html")
    chips = page.locator("#curves [aria-label='ranks on top'] button").all_inner_texts()
    rank = next(number for number in range(64) if f"{number}" not in chips)
    field = page.get_by_label("put any rank on top")
    field.fill("1000")
    field.press("Enter")
    said = page.locator("#curves [role=status]")
    assert said.inner_text() == "there is no rank 1000; the run has 64 ranks, 0 to 63"
    field.fill(f"{rank}")
    field.press("Enter")
    loss = page.locator("#curves figure").first
    assert f"rank {rank}, as in the heat map" in loss.locator(".u-legend").inner_text()
    assert "each point the highest of about 2 steps" in loss.inner_text()
    page.get_by_label("smoothing").fill("0.9")
    assert "median, smoothed 0.9" in loss.locator(".u-legend").inner_text()
    assert "an exponential moving average with the factor 0.9" in page.locator("#curves").inner_text()
    page.get_by_label("filter tags").fill("<b>x</b>")
    tag = page.locator("#curves figure")
    tag.locator("canvas").first.wait_for()
    assert f"rank {rank} is not in this file: distsummary report --rank {rank}" in tag.inner_text()


def test_a_landscape_has_contours_the_path_and_both_losses(show):
    page = show("4.html")
    place = page.locator("#landscape")
    place.scroll_into_view_if_needed()
    assert place.locator("figcaption .tag").inner_text() == "<b>x<b>'é"
    surface = place.locator("canvas[role=img]")
    assert surface.evaluate(COLORS) > 50
    surface.focus()
    page.keyboard.press("ArrowRight")
    said = place.locator(".readout")
    assert said.inner_text() == "point 0.3333, 0: loss 12"
    page.keyboard.press("ArrowUp")
    assert said.inner_text() == "point 0.3333, 2: loss 22"
    place.locator("summary", has_text="Checkpoints (3)").click()
    assert place.locator("details td").all_inner_texts()[-8:-4] == ["5", "2.25", "2", "20 %"]
    place.locator("select").select_option("other")
    assert place.locator("figcaption .tag").inner_text() == "other"
    assert show("real.html").locator("#landscape").count() == 0


def test_runs_are_next_to_each_other_and_a_row_leads_to_its_curves(show):
    page = show("compared.html")
    place = page.locator("#compare")
    names = place.locator("tbody").first.locator(".key .name")
    assert names.all_inner_texts() == ["run4", "<i>other", "run64"]
    row = place.locator("tr.link", has_text="zz_perf/own_ms").first
    row.press("Enter")
    assert page.evaluate("location.hash") == "#curves"
    assert page.locator("#curves .tag").all_inner_texts() == ["zz_perf/own_ms"]
    figure = page.locator("#curves figure").first
    figure.locator("canvas").first.wait_for()
    assert "<i>other" in figure.locator(".u-legend").inner_text()
    page.locator("#curves [aria-label=runs] button", has_text="<i>other").click()
    assert "<i>other" not in figure.locator(".u-legend").inner_text()
    assert page.locator("i:not(.swatch)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    assert show("4.html").locator("#compare").count() == 0

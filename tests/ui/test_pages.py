"""The page of a run in Chromium: each route is drawn, nothing is asked for, and what was recorded stays text.

Run by `make test-ui`, in a virtual environment of its own that has Playwright and nothing of distsummary.
"""

import re

import pytest

from tests.ui.conftest import settled, violations

pytestmark = pytest.mark.interop

# A canvas that shows something has more than one colour.
COLORS = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
  return new Set(new Uint32Array(data.buffer)).size
}"""
ROUTES = ("answer", "metrics", "ranks", "model", "media", "landscape", "system", "config")


def go(page, route: str) -> None:
    page.evaluate("hash => { location.hash = hash }", f"#{route}")
    page.locator(f"main[data-route={route.partition('?')[0]}]").wait_for()
    settled(page)


@pytest.fixture
def show(opened, pages):
    return lambda name, **settings: opened(pages / name, **settings)


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.smoke), 64, 1000])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_every_route_is_drawn_and_nothing_is_asked_for(opened, pages, prepared, ranks, width, scheme):
    path = prepared("thousand") if ranks == 1000 else pages / f"{ranks}.html"
    page = opened(path, width=width, color_scheme=scheme)
    assert page.locator("header .quiet").inner_text().startswith(f"{ranks:,} rank")
    for route in ROUTES:
        go(page, route)
        drawn = page.locator("main canvas:visible")
        is_empty = page.locator("nav a.empty[aria-current]").count()
        if not is_empty and route not in ("media", "system", "config") and (route, ranks) != ("ranks", 1):
            drawn.first.scroll_into_view_if_needed()
            settled(page)
            assert drawn.first.evaluate(COLORS) > 4, route
        assert page.evaluate("document.documentElement.scrollWidth") <= width, route
        assert "undefined" not in page.locator("main").inner_text()
        if ranks == 4:
            assert violations(page) == [], route
        if route == "media" and not is_empty:
            image = page.locator("[data-view=media] img").first
            assert image.evaluate("one => one.complete && one.naturalWidth") == 40


# Page -> the routes of which it has what no other page has.
PAGES = {
    "hostile": (*ROUTES, "model?tab=graph", "model?tab=histograms", "metrics?q=layer"),
    "empty": ("answer", "ranks", "model", "system", "config"),
    "apart": ("answer?x=wall", "ranks?x=relative", "system", "config"),
    "graph": ("answer", "model?tab=graph"),
    "compared": ("answer", "compare", "metrics"),
}
CONTROLS = (
    "/(?![\\t\\n])[\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e]/.test(document.querySelector('main').innerText)"
)


@pytest.mark.parametrize("name", PAGES)
def test_whatever_was_recorded_no_page_is_broken(show, name):
    page = show(f"{name}.html", width=390 if name == "hostile" else 1400)
    for route in PAGES[name]:
        go(page, route)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main a:not([href^='#']), main svg script, main iframe").count() == 0, route
        assert "undefined" not in page.locator("main").inner_text()
        assert not page.evaluate(CONTROLS), route
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), route
        assert violations(page) == [], route


def test_of_five_thousand_tags_all_are_found(show):
    page = show("hostile.html", hash="#metrics")
    assert page.locator("nav li", has_text="Metrics").inner_text().endswith("5,001")
    page.get_by_label("search all tags").fill("layer4999")
    assert "layer4999" in page.locator("main").inner_text()


@pytest.mark.smoke
def test_recorded_texts_are_inert_and_shown_whole(show):
    page = show("4.html")
    go(page, "metrics")
    tags = page.locator(".chart .tag").all_inner_texts()
    assert any(tag.startswith("</script><img src=x") and "<b>x</b>" in tag for tag in tags)
    for route in ROUTES:
        go(page, route)
        assert page.evaluate("window.hacked") is None
        assert (
            page.locator("img:not([src^='data:image/png']), b:text-is('x'), main a[href^=http]").count() == 0
        )


@pytest.mark.smoke
def test_the_tags_are_a_tree_and_searched_pinned_and_kept_in_the_link(show):
    page = show("64.html")
    go(page, "metrics")
    assert "zz_perf/own_ms" not in page.locator(".chart .tag").all_inner_texts()
    page.locator("aside button", has_text="zz_perf/").click()
    assert page.locator(".chart .tag").all_inner_texts() == [
        "zz_perf/own_ms", "zz_perf/step_ms", "zz_perf/wait_ms"
    ]  # fmt: skip
    page.keyboard.press("/")
    page.keyboard.type("loss")
    assert page.locator(".chart .tag").all_inner_texts() == ["loss"]
    page.locator(".menu summary").click()
    page.get_by_role("button", name="pin", exact=True).click()
    page.get_by_label("search all tags").fill("own")
    assert page.locator(".chart .tag").all_inner_texts() == ["loss", "zz_perf/own_ms"]
    again = show("64.html", hash=f"#{page.url.partition('#')[2]}")
    assert again.locator(".chart .tag").all_inner_texts() == ["loss", "zz_perf/own_ms"]


def test_a_chart_is_saved_as_csv_and_svg_and_png(show):
    page = show("4.html", hash="#metrics?q=loss")
    texts = {}
    for kind in ("PNG", "SVG", "CSV"):
        page.locator(".menu summary").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=f"save as {kind}").click()
        texts[kind] = download.value.path().read_bytes()
    assert texts["CSV"].startswith(b"step,line,value\n1,median,1.0")
    assert texts["SVG"].startswith(b"<svg ")
    assert texts["PNG"].startswith(b"\x89PNG")


def test_a_rank_is_put_on_top_of_the_band_and_an_absent_one_is_refused(show):
    page = show("64.html", hash="#metrics?q=loss")
    legend = page.locator(".chart .legend")
    assert legend.inner_text().split("\n")[-1] == "range of 64"
    page.locator("[aria-label='ranks on top'] button", has_text="2").first.click()
    assert "rank 2" in legend.inner_text()
    field = page.get_by_label("put any rank on top")
    field.fill("1000")
    field.press("Enter")
    refused = page.locator("[aria-label='ranks on top'] [role=status]")
    assert refused.inner_text() == "there is no rank 1000; the run has 64 ranks, 0 to 63"
    assert "1 value NaN or infinite, first at step 500" in page.locator(".chart").inner_text()


def test_norms_report_parameter_step_and_value_and_lead_to_the_first_nan_and_to_a_parameter(show):
    page = show("64.html", hash="#model")
    view = page.locator("[data-view=norms]")
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
    assert said[1].startswith("of the row, lowest 1.0001 at step ")
    map.click(position={"x": 700, "y": 12})
    assert page.locator("h2").inner_text() == "layers.0.*"
    assert page.locator(".chart .tag").all_inner_texts()[:2] == ["gradient norm", "weight norm"]
    page.get_by_role("button", name="all parameters").click()
    assert view.count() == 1


def test_histograms_report_step_share_and_the_rank_that_recorded_them(show):
    page = show("4.html", hash="#model?tab=histograms")
    figure = page.locator("[data-view=histograms] figure").first
    caption = figure.locator("figcaption").inner_text()
    assert "recorded by rank 1, 120 of 800 steps" in caption
    assert "NaN or infinite values, first at step 14 of those shown" in caption
    map = figure.locator("canvas[role=img]")
    map.focus()
    page.keyboard.press("ArrowRight")
    said = figure.locator(".readout").inner_text()
    assert said.startswith("step 8: none of 100 values from 767 to 800")
    assert said.endswith("lowest -8, median between -0.727 and 0.727, highest 8")
    assert map.evaluate(COLORS) > 20
    page.get_by_label("steps as ridges").check()
    ridges = figure.get_by_label("histograms of weight: 12 steps, one below the other")
    settled(page)
    assert ridges.evaluate(COLORS) > 4
    page.get_by_label("filter histograms").fill("<b>x</b>")
    assert page.locator("[data-view=histograms] figure").count() == 1


def test_images_and_texts_follow_a_slider_and_stay_images_and_texts(show):
    page = show("4.html", hash="#media")
    figure = page.locator("[data-view=media] figure").first
    assert "3 ranks, 100 of 160 steps" in figure.locator("figcaption").inner_text()
    images = figure.locator("img")
    assert images.count() == 3
    assert images.first.get_attribute("alt") == "input, rank 0, step 800"
    before = images.first.get_attribute("src")
    slider = page.get_by_label("step of input")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "step 795"
    assert figure.locator("img").first.get_attribute("src") != before
    small = images.first.bounding_box()["width"]
    figure.get_by_role("button", name="enlarge input, rank 0").click()
    assert images.first.bounding_box()["width"] > 2 * small
    page.keyboard.press("Enter")
    assert images.first.bounding_box()["width"] == small
    text = page.locator("[data-view=media] .text").first
    assert text.inner_text().startswith("step 800 </script><img src=x")
    assert text.locator(":not(p, div)").count() == 0
    page.get_by_role("button", name="as it was recorded").first.click()
    assert text.locator("pre").inner_text().startswith("step 800 </script>")


@pytest.mark.parametrize("route", ["media", "config"])
def test_what_was_removed_of_old_values_is_said_where_they_were(show, route):
    said = show("bounded.html", hash=f"#{route}").locator("main p.card.quiet").first.inner_text()
    assert re.search(r"2\d bulk values up to step 2\d \(\d+\.\d MB\) were removed", said), said


def test_it_is_worked_by_keys_alone_and_is_dark_or_light(show):
    page = show("64.html", color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("d")
    assert page.evaluate(background) != dark
    page.keyboard.press("3")
    page.locator("main[data-route=ranks]").wait_for()
    page.locator(".heat canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text().startswith("rank 2, ")
    page.keyboard.press("/")
    page.wait_for_timeout(300)
    page.keyboard.type("own")
    assert page.locator(".chart .tag").all_inner_texts() == ["zz_perf/own_ms"]
    plot = page.locator(".u-over")
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".tip").inner_text().startswith("step 2")


def test_settings_are_as_they_were_given_and_bars_are_reported(show):
    page = show("real.html", hash="#config")
    rows = page.locator(".facts", has=page.get_by_role("heading", name="Settings")).locator("tr")
    settings = dict(row.split("\t") for row in rows.all_inner_texts())
    assert (settings["seed"], settings["lr"], settings["single"]) == ("20260131", "1.5e-7", "0.05")
    go(page, "system")
    page.locator("[data-view=timeline] canvas[role=img]").focus()
    page.keyboard.press("ArrowDown")
    assert (
        page.locator("[data-view=timeline] .readout").inner_text().startswith("rank 0, attempt 0 (train) on ")
    )
    go(page, "landscape")
    assert "No loss landscape was made" in page.locator("main").inner_text()


def test_a_landscape_has_contours_the_path_and_both_losses(show):
    place = show("4.html", hash="#landscape").locator("[data-view=landscape]")
    assert place.locator("figcaption .tag").inner_text() == "<b>x<b>'é"
    surface = place.locator("canvas[role=img]")
    assert surface.evaluate(COLORS) > 50
    surface.press("ArrowRight")
    said = place.locator(".readout")
    assert said.inner_text() == "point 0.3333, 0: loss 12"
    surface.press("ArrowUp")
    assert said.inner_text() == "point 0.3333, 2: loss 22"
    place.locator("summary", has_text="Checkpoints (3)").click()
    assert place.locator("details td").all_inner_texts()[-8:-4] == ["5", "2.25", "2", "20 %"]
    place.locator("select").select_option("other")
    assert place.locator("figcaption .tag").inner_text() == "other"


def test_a_graph_is_drawn_searched_and_opened(show):
    page = show("graph.html", hash="#model?tab=graph")
    page.get_by_role("button", name="open encoder").click()
    assert page.get_by_role("button", name="encoder/linear Linear").count() == 1
    page.get_by_label("search the graph").fill("norm")
    assert page.locator("g.found").count() == 1
    assert show("4.html").locator("script", has_text="distsummaryLayout=").count() == 0


def test_runs_are_next_to_each_other_and_a_row_leads_to_its_curves(show):
    page = show("compared.html", hash="#compare")
    place = page.locator("[data-view=compare]")
    names = place.locator("tbody").first.locator(".key .name")
    assert names.all_inner_texts() == ["run4", "<i>other", "run64"]
    place.locator("tr.link", has_text="zz_perf/own_ms").first.press("Enter")
    assert page.locator("#compared .tag").all_inner_texts() == ["zz_perf/own_ms"]
    assert "<i>other" in page.locator("#compared .legend").inner_text()
    assert page.locator("main i:not(.swatch, .cross, .legend i, .tip i)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400

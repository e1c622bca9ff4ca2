"""The first screen of eight prepared runs: is it well, who is it, since when, what it cost, what to do."""

import pytest

pytestmark = pytest.mark.interop

# Name -> the badge and its colour, what the sentence says, and whether there is a page on what to do.
SCREENS = {
    "healthy": ("finished", "good", ["All 4 ranks trained alike", "nothing was dropped"], False),
    "slow": ("finished · slow", "warn", ["Rank 2 held up the run in steps 200 to 419", "75 s of 4 min 8 s"],
             True),
    "stalls": ("finished · slow", "warn", ["Rank 1 held up the run in steps 20 to 600", "cost 10.2 s"], True),
    "hung": ("interrupted · hung", "bad", ["Rank 2 hung at step 400", "It cost 95 s", "train.py:91"], True),
    "nan": ("finished · NaN", "bad", ["Rank 1", "at step 310", "291 of 600 steps have"], True),
    "lost": ("interrupted · rank lost", "bad", ["Rank 3 was lost", "newest checkpoint is of step 300"], True),
    "restarted": ("finished · slow · restarted", "warn",
                  ["cost 75 s", "0 failed on rank 0 at step 259: Runtime", "again cost 29 s"], True),
    "thousand": ("finished · slow", "warn", ["Rank 2 held up the run", "It cost 7.5 s"], True),
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
def test_five_questions_are_answered_without_scrolling(opened, prepared, name):
    text, kind, said, has_guide = SCREENS[name]
    page = opened(prepared(name))
    badge = page.locator("header .badge")
    assert (badge.inner_text(), kind in badge.get_attribute("class")) == (text, True)
    sentence = page.locator(".sentence")
    for part in said:
        assert part in sentence.inner_text()
    for width, height, shown in ((1400, 900, "main > figure.card, .three figure"), (390, 844, ".tile")):
        page.set_viewport_size({"width": width, "height": height})
        last = page.locator(shown).last.bounding_box()
        assert last["y"] + last["height"] <= height
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    button = page.get_by_role("button", name="what to do")
    assert button.count() == has_guide
    if has_guide:
        button.first.click()
        assert page.locator(".guide").get_by_text("What to do", exact=True).count() == 1


def test_all_charts_have_one_crosshair_and_one_zoom_which_are_in_the_link(opened, prepared):
    page = opened(prepared("slow"))
    plots = page.locator(".three .u-over")
    box = plots.first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    lefts = page.locator(".cross").evaluate_all(
        "all => all.map((one) => one.hidden ? 9 : parseFloat(one.style.left) / one.parentElement.clientWidth)"
    )
    assert len(lefts) == 3
    assert all(abs(left - 0.5) < 0.01 for left in lefts)
    assert page.locator(".above").inner_text().startswith("step 30")
    tip = page.locator(".three .tip:visible")
    assert tip.count() == 1
    assert tip.locator(".of-ranks i").count() == 4
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url("**zoom=300_449**")  # the address follows by itself
    page.get_by_role("button", name="time", exact=True).click()
    again = opened(prepared("slow"), hash=f"#{page.url.partition('#')[2]}")
    assert again.get_by_role("button", name="time", exact=True).get_attribute("aria-pressed") == "true"
    again.get_by_role("button", name="steps 30").click()
    assert "zoom" not in again.url


def test_the_evidence_opens_the_ranks_at_the_step_with_its_phases(opened, prepared):
    page = opened(prepared("slow"))
    page.get_by_role("link", name="the evidence").click()
    assert page.locator("main").get_attribute("data-route") == "ranks"
    rows = page.locator(".anatomy .bar-row")
    assert rows.first.get_by_role("button").inner_text() == "rank 2"
    assert rows.first.get_by_role("img").get_attribute("aria-label").startswith("data 6 ms, forward 53")
    table = page.locator(".phases")
    assert table.locator("tr", has_text="forward").locator("td").last.inner_text().startswith("+34")
    canvas = page.locator(".heat canvas")
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    said = page.locator(".readout").inner_text()
    assert said.startswith("rank ")
    assert "median of the ranks" in said
    page.keyboard.press("Enter")
    assert "step=" in page.url
    assert page.get_by_role("button", name="the measured step after").count() == 1


def test_a_thousand_ranks_are_folded_with_the_worst_first(opened, prepared):
    page = opened(prepared("thousand"), hash="#ranks")
    canvas = page.locator(".heat canvas")
    assert canvas.bounding_box()["height"] < 700
    canvas.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".readout").inner_text().startswith("rank 2, ")
    for _ in range(40):
        page.keyboard.press("ArrowDown")
    assert page.locator(".readout").inner_text().startswith("968 others, ")

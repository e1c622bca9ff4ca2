"""The README's picture of the page of the demo's run.

`.venv-ui/bin/python -m tests.ui.picture runs/demo.html docs/report.png`. Chromium takes pictures of the tops
of some views; one below the other, in 256 colours, they are the picture.
"""

import shutil
import sys
from io import BytesIO
from pathlib import Path

WIDTH, GAP = 1200, 12
VIEWS = {"curves": 490, "heat": 290, "landscape": 656}  # the pixels of each, from its top


def main(page: Path, picture: Path) -> None:
    """Take the pictures and put them together."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        shown.wait_for_selector("html[data-ready]")
        taken = [shown.locator("header").screenshot()]
        for name, height in VIEWS.items():
            view = shown.locator(f"section#{name}")
            view.scroll_into_view_if_needed()
            shown.evaluate("name => document.getElementById(name).scrollIntoView()", name)
            shown.wait_for_timeout(500)  # charts are drawn when they come into sight
            shown.evaluate("document.querySelector('header').style.position = 'static'")
            box = view.bounding_box()
            clip = {"x": 0, "y": box["y"] + shown.evaluate("scrollY"), "width": WIDTH, "height": height}
            taken.append(shown.screenshot(full_page=True, clip=clip))
        browser.close()
    parts = [Image.open(BytesIO(part)).convert("RGB") for part in taken]
    height = sum(part.height + GAP for part in parts)
    whole = Image.new("RGB", (WIDTH, height), parts[1].getpixel((2, 2)))
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height + GAP
    whole.quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

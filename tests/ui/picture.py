"""The pictures of the guides: `.venv-ui/bin/python -m tests.ui.picture PAGE.html PICTURE.png [HASH]`.

README has the first screen of a prepared run: `.venv/bin/python -m tests.ui.prepared DIR slow`.
Chromium takes it; with 256 colours it is small.
"""

import shutil
import sys
from io import BytesIO
from pathlib import Path

WIDTH, LEAST, MOST, PART = 1200, 300, 1000, 560


def main(page: Path, picture: Path, hash: str = "") -> None:
    """Take the picture, as high as the page."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": LEAST}, color_scheme="light")
        shown.goto(page.resolve().as_uri() + hash)
        shown.wait_for_selector("html[data-ready]")
        bottom = shown.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
        shown.set_viewport_size({"width": WIDTH, "height": int(max(LEAST, min(MOST, bottom)))})
        shown.wait_for_timeout(800)
        # Of another page than the first, what it shows is enough, without its frame.
        box = shown.locator("main").bounding_box()
        part = {**box, "height": min(box["height"], PART)}
        taken = shown.screenshot(clip=part) if hash else shown.screenshot()
        browser.close()
    image = Image.open(BytesIO(taken)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

"""When a page paints first: `.venv-ui/bin/python -m benchmarks.pages.first_paint PAGE.html [--count 9]`.

Needs what `make test-ui` needs. Prints one JSON line: milliseconds from the begin of the navigation to the
first contentful paint, median and largest, and the median until all views are made.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path

from playwright.sync_api import sync_playwright

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    """Open the page so many times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--count", type=int, default=9)
    asked = parser.parse_args()
    painted, ready = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(asked.count):
            page = browser.new_page()
            page.goto(asked.page.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            ready.append(page.evaluate("performance.now()"))
            painted.append(page.wait_for_function(PAINT).json_value())
            page.close()
        browser.close()
    figures = {"median": statistics.median(painted), "largest": max(painted), "all": statistics.median(ready)}
    print(json.dumps({"count": asked.count} | {name: round(ms) for name, ms in figures.items()}))


if __name__ == "__main__":
    main()

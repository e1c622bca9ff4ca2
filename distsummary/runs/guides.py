"""Guides: the pages on the causes of verdicts: what a cause means, and what to do."""

from pathlib import Path


def page_of(cause: str) -> Path:
    """The page about a cause: a wheel has them next to this package, a checkout in docs."""
    package = Path(__file__).parents[1]
    installed = package / "verdicts" / f"{cause}.md"
    return installed if installed.exists() else package.parent / "docs/verdicts" / installed.name


def guide_of(cause: str) -> str:
    """The text of that page, in Markdown; empty for a cause of another version, which has none."""
    page = page_of(cause)
    return page.read_text(encoding="utf-8") if page.is_file() else ""

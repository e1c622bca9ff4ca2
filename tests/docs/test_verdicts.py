"""Each cause of a verdict has a page that says what it means, what usually causes it, and what to do."""

import re

import pytest

from distsummary.diagnosis.verdict import CAUSES, NOTICES
from distsummary.runs.guides import page_of
from tests.docs.documents import ROOT, links

PAGES = ROOT / "docs/verdicts"
WITH_A_PAGE = [cause for cause in CAUSES if cause not in NOTICES]


@pytest.mark.parametrize("cause", WITH_A_PAGE)
def test_each_cause_has_a_page_that_is_linked(cause: str) -> None:
    page = page_of(cause).read_text()
    assert page.startswith(f"# {cause}: ")
    assert re.findall("^## (.+)$", page, re.MULTILINE) == ["What usually causes it", "What to do", "How sure"]
    assert f"verdicts/{cause}.md" in links((ROOT / "docs/ranks.md").read_text())


def test_each_page_is_about_a_cause() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(WITH_A_PAGE)

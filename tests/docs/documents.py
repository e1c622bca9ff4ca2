"""What the documents of the repository say that can be checked: code blocks, commands, links."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block; `line` is where its code begins, counted from 1."""

    language: str
    code: str
    line: int


def documents() -> list[Path]:
    """README and its like, and everything under docs/ and cluster/."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return found + sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "cluster").rglob("*.md"))


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a document."""
    return [
        Block(match["language"], match["code"], text[: match.start("code")].count("\n") + 1)
        for match in FENCE.finditer(text)
    ]


def commands(text: str) -> list[str]:
    """The lines of shell blocks and of inline code, comments and prompts taken off."""
    shell = [block.code for block in blocks(text) if block.language in ("", "sh", "bash", "shell", "console")]
    lines = [line for code in shell for line in code.splitlines()]
    lines += INLINE.findall(FENCE.sub("", text))
    return [re.sub(r"\s+#.*", "", line).strip().removeprefix("$ ") for line in lines]


def links(text: str) -> list[str]:
    """Targets of links that do not leave the repository."""
    targets = LINK.findall(FENCE.sub("", text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

"""The text of the project says report, receive, continue, again and is missing, as its field does."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.documents import ROOT

NOT_OURS = re.compile(
    r"(?<![a-z])(tell|tells|told|telling|hear|hears|heard|hearing|anew|lack|lacks|lacking|lacked|goes on"
    r"|go on|heed|heeds|heeded|nobody|whence)(?![a-z])"
)
MOST = 3  # of 10,000 words: names of other libraries (`file.tell`), and where the plain word is meant


ROOMS = ("distsummary", "tests", "docs", "benchmarks", "examples", "cluster")


def texts() -> Iterator[Path]:
    """The project's own code and documents."""
    yield from ROOT.glob("*.md")
    for room in ROOMS:
        for ending in ("*.py", "*.md", "*.js", "*.ts", "*.tsx"):
            yield from (ROOT / room).rglob(ending)


def test_verbs_of_speech_are_rare():
    words, found = 0, []
    for path in texts():
        if path.name.endswith(("_pb2.py", "test_words.py")) or {"bundle", "node_modules"} & {*path.parts}:
            continue
        split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", path.read_text()).replace("_", " ").lower()
        for number, line in enumerate(split.splitlines(), 1):  # names are split into words
            words += len(re.findall("[a-z]+", line))
            found += [f"{path}:{number}: {match[0]}" for match in NOT_OURS.finditer(line)]
    assert words > 100_000
    assert 10_000 * len(found) <= MOST * words, "\n".join(found)

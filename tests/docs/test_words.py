"""The text of the project says report, receive, continue, again and is missing, as its field does."""

import re
import subprocess

from tests.docs.documents import ROOT

NOT_OURS = re.compile(
    r"(?<![a-z])(tell|tells|told|telling|hear|hears|heard|hearing|anew|lack|lacks|lacking|lacked|goes on|go on"
    r"|heed|heeds|heeded|nobody|whence)(?![a-z])"
)
MOST = 3  # of 10,000 words: names of other libraries (`file.tell`), and where the plain word is meant


def text_of(path: str) -> str:
    """A file's text in lower case; names are split into words."""
    text = (ROOT / path).read_text()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower()


def test_verbs_of_speech_are_rare():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words, found = 0, []
    for path in listed.split():
        if path.endswith((".py", ".md", ".js")) and not path.endswith(("_pb2.py", "test_words.py")):
            for number, line in enumerate(text_of(path).splitlines(), 1):
                words += len(re.findall("[a-z]+", line))
                found += [f"{path}:{number}: {match[0]}" for match in NOT_OURS.finditer(line)]
    assert words > 100_000
    assert 10_000 * len(found) <= MOST * words, "\n".join(found)

"""Commands that are printed to be copied hold for paths with spaces."""

import re
from pathlib import Path

import distsummary
from distsummary.base.columns import quoted

PATH = re.compile(
    r"(?:distsummary [a-z]+|--logdir|--summary-base-dir)(?: --[a-z]+)? \{(?!quoted\()(\w+(?:\.\w+)*)"
)
QUOTED = {"path"}  # of a variable that is quoted where it is set


def test_every_path_in_a_printed_command_is_quoted() -> None:
    package = Path(distsummary.__file__).parent
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    found = {
        f"{path.name}: {one[0]}"
        for path, text in texts.items()
        for one in PATH.finditer(text)
        if one[1] not in QUOTED and "{" + one[1] + "}" in text and "argparse" not in text
    }
    assert found == set()


def test_a_quoted_path_is_one_word() -> None:
    assert quoted("runs/a") == "runs/a"
    assert quoted(Path("my runs/ü's")) == "'my runs/ü'\"'\"'s'"

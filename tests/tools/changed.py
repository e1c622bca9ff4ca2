"""The test files that a change touches, for `make test-changed`: python -m tests.tools.changed BASE

A module is touched if it differs from the commit BASE or imports one that is, over any number of imports.
A test file is touched if it or a helper that it imports changed, or names a touched module, be it in the text
of a program.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp

import distsummary
from distsummary.cli import main as command_line

ROOT = Path(__file__).resolve().parents[2]
OF_ALL = re.compile(r"(pyproject\.toml|tests/(conftest|parallel|leftovers)\.py|distsummary/__init__\.py)$")
NAMES = re.compile(
    r"distsummary(?:\.\w+)+|from distsummary(?:\.\w+)* import [\w, ()\n]+|\bds\.\w+|distsummary\b"
)
HELPERS = re.compile(r"from (tests(?:\.\w+)*) import ([\w, ()\n]+)|import (tests(?:\.\w+)+)")
PROGRAM = re.compile(r'with_name\("distsummary"\)|"distsummary"|-m", "distsummary')


def changed_files(base: str) -> set[str]:
    """Paths that differ from the commit, committed or not, relative to the root."""
    commands = ("git", "diff", "--name-only", base), ("git", "ls-files", "--others", "--exclude-standard")
    return {
        line
        for command in commands
        for line in subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
    }


def touched_modules(files: set[str]) -> set[str]:
    """The modules of the package that changed, and all that import them."""
    graph = grimp.build_graph("distsummary", include_external_packages=False)
    changed = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in files
        if path.startswith("distsummary/") and path.endswith(".py")
    }
    there = changed & graph.modules
    return there.union(*(graph.find_downstream_modules(name) for name in there))


@cache
def named_modules(path: Path) -> frozenset[str]:
    """The modules of the package that a file of tests names, and those that its helpers name."""
    text = path.read_text()
    found = set()
    for name in NAMES.findall(text):
        if name.startswith("ds."):
            found.add(distsummary._MODULE_OF.get(name[3:], f"distsummary.{name[3:]}"))
        elif name.startswith("from"):
            module, _, imported = name[5:].partition(" import ")
            found |= {module, *(f"{module}.{one}" for one in re.findall(r"\w+", imported))}
            found |= {distsummary._MODULE_OF.get(one, "") for one in re.findall(r"\w+", imported)}
        else:
            found.add(name)
    if PROGRAM.search(text):
        found.add(command_line.__name__)
    return frozenset(found).union(*(named_modules(helper) for helper in helpers(path)))


def helpers(path: Path) -> set[Path]:
    """The files of tests that a file imports."""
    found = set()
    for package, names, module in HELPERS.findall(path.read_text()):
        modules = (
            [module] if module else [package, *(f"{package}.{one}" for one in re.findall(r"\w+", names))]
        )
        found |= {ROOT / f"{one.replace('.', '/')}.py" for one in modules}
    return {one for one in found if one.exists() and one != path and one.name != "conftest.py"}


def main() -> None:
    """Print the files."""
    files = changed_files(sys.argv[1])
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    if not any(OF_ALL.search(path) for path in files):
        modules = touched_modules(files)
        changed = {ROOT / path for path in files}
        has_docs = any(path.endswith((".md", ".toml", "Makefile")) or "examples/" in path for path in files)
        tests = [
            path
            for path in tests
            if path in changed
            or helpers(path) & changed
            or named_modules(path) & modules
            or (has_docs and path.parent.name == "docs")
        ]
    print("\n".join(str(path.relative_to(ROOT)) for path in tests) or "tests/docs/test_words.py")


if __name__ == "__main__":
    main()

"""Counts the structure of the code: python -m benchmarks.house [--check]

Lines, rooms (the folders of the package), arrows between them (a room imports from another one), floors (the
longest chain of such arrows). Then the lines of each room next to its budget, which is in budget.toml;
`--check` prints the rooms above theirs alone, and fails if there are any.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "distsummary"
BUDGET = Path(__file__).with_name("budget.toml")


def sources(folder: Path) -> Iterator[Path]:
    """The Python files below a folder that people write."""
    return (path for path in sorted(folder.rglob("*.py")) if "pb" not in path.parts)


def room_of(name: str) -> str:
    """The room of a dotted module name, such as "collect" of distsummary.collect.session."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def arrows() -> set[tuple[str, str]]:
    """The pairs of rooms of which the first imports from the second, in functions too."""
    found = set()
    for path in sources(PACKAGE):
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distsummary"):
                names = [node.module or ""]
                if node.module == "distsummary":
                    names = [f"distsummary.{alias.name}" for alias in node.names]
                found |= {(own, room_of(name)) for name in names}
    rooms = {path.stem for path in PACKAGE.iterdir()}
    return {(one, other) for one, other in found if one != other and other in rooms and one != "__init__"}


def floors(pairs: set[tuple[str, str]]) -> int:
    """The rooms on the longest chain of arrows."""

    @cache
    def below(room: str) -> int:
        return 1 + max((below(other) for one, other in pairs if one == room), default=0)

    return max(below(room) for room, _ in pairs)


def lines_of_rooms() -> dict[str, int]:
    """Lines of Python by room: each folder of the package, "modules" (loose in it), tests, benchmarks."""
    found: Counter[str] = Counter()
    for top in (PACKAGE, ROOT / "tests", ROOT / "benchmarks"):
        for path in sources(top):
            parts = path.relative_to(top).parts
            room = top.name if top != PACKAGE else parts[0] if len(parts) > 1 else "modules"
            found[room] += path.read_text().count("\n")
    return dict(found)


def check() -> None:
    """Fail if a room has more lines than its budget, or none."""
    budget = tomllib.loads(BUDGET.read_text())["lines"]
    above = [
        f"{room}: {lines:,} lines, budget {budget.get(room, 0):,}"
        for room, lines in sorted(lines_of_rooms().items())
        if lines > budget.get(room, 0)
    ]
    if above:
        place = BUDGET.relative_to(ROOT)
        remedy = (
            f"Make the room simpler, or raise its number in {place}: a commit of its own, with the reason."
        )
        sys.exit("\n".join([*above, remedy]))


def main() -> None:
    """Print one line for each count, and one for each room."""
    if sys.argv[1:] == ["--check"]:
        check()
        return
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pairs, lines = arrows(), lines_of_rooms()
    counts = {
        "lines of source": sum(lines.values()) - lines["tests"] - lines["benchmarks"],
        "modules loose in the package": len([*PACKAGE.glob("*.py")]),
        "rooms": len(lines) - len(("modules", "tests", "benchmarks")),
        "layers of the contract": len(contracts[0]["layers"]),
        "floors": floors(pairs),
        "arrows between rooms": len(pairs),
    }
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:{width}}  {count:>8,}")
    budget = tomllib.loads(BUDGET.read_text())["lines"]
    print(f"\n{'lines of a room':{width}}  {'':>8}    budget")
    for room, count in sorted(lines.items()):
        print(f"{room:{width}}  {count:>8,}  {budget.get(room, 0):>8,}")


if __name__ == "__main__":
    main()

"""The rounds of a level that are over, kept in a file: a level that is called again continues behind them."""

import json
from dataclasses import asdict
from pathlib import Path

from tests.torture.judge import Verdict


class Rounds:
    """The verdicts of the rounds of a level by their numbers; `root` is the level's directory."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._file = root / "rounds.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._verdicts = {one["number"]: Verdict(**one["verdict"]) for one in map(json.loads, lines)}

    def __contains__(self, number: int) -> bool:
        return number in self._verdicts

    def add(self, number: int, verdict: Verdict) -> None:
        """Keep the verdict of a round that is over."""
        self._verdicts[number] = verdict
        with self._file.open("a") as file:
            file.write(json.dumps({"number": number, "verdict": asdict(verdict)}) + "\n")

    def total(self) -> Verdict:
        """All verdicts together."""
        total = Verdict()
        for verdict in self._verdicts.values():
            total.add(verdict)
        return total

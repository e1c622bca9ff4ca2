"""Alerts: what alerts.jsonl says, the verdicts that were told while the ranks trained."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from distsummary.run_dir import RunDir

Key = tuple[int, int, str, int]


def read_alerts(
    run_dir: RunDir, tell: Callable[[int, Exception], None] | None = None
) -> list[dict[str, Any]]:
    """The alerts of a run: "time", "attempt" and what `Verdict.as_json` gives; the last line of each counts.

    A line that is no alert, such as one that was not written whole, is left out; `tell` is called with its
    number, from 1, and what is wrong with it. Raises OSError if the file is there and cannot be read.
    """
    found: dict[Key, dict[str, Any]] = {}
    try:
        lines = run_dir.alerts_path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines, 1):
        try:
            alert = json.loads(line)
            if alert["until_step"] is not None:
                int(alert["until_step"])
            found[key_of(alert)] = alert
        except (ValueError, KeyError, TypeError) as error:
            if tell is not None:
                tell(number, error)
    return [*found.values()]


def key_of(alert: Mapping[str, Any]) -> Key:
    """What an alert is about; equal for the lines that say the same verdict."""
    attempt = int(alert.get("attempt", 0))
    return attempt, int(alert["rank"]), str(alert["cause"]), int(alert["since_step"])

"""The results of the zoo as text: one line a cell, and the table of docs/evidence/verdicts.md."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.zoo import costs, hangs
from benchmarks.zoo.plans import CAUSES, COLLECTING
from benchmarks.zoo.trainings import TRAININGS, WORKERS

Row = dict[str, Any]
Rows = dict[str, Row]
BEGIN, END = (
    "<!-- python -m benchmarks.zoo table --into docs/evidence/verdicts.md -->",
    "<!-- end of the table -->",
)
OWN_MS = 12.0  # the least CPU time of a step for which the table is meant
MISSING = "-"
SMALL = {"slow-10": "10 %", "stalls": "single steps"}


def line(row: Row) -> str:
    """What a cell found, in a line."""
    family = row["cell"].split("/")[0]
    if family == "size":
        return f"batches of {row['size']}"
    if family == "hang":
        names = ("rank_right", "collective_right", "line_right", "why_right")
        reported = ", ".join(f"{name} {row[name]}" for name in names)
        return f"{reported}; {row['delay_s']} s, {len(row['others'])} others"
    if family == "cost":
        return f"{row['thread_us']} + {row['others_us']} us of {row['step_us']} us: {row['share']:.2%}"
    if "right" in row:
        return f"{row['right']} of {row['count']}"
    reported = Counter(episode["outcome"] for episode in row["episodes"])
    found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(reported.items())) or "no episodes"
    return (
        f"{found}; {row['false_intervals']} false in {row['clean_steps']} clean steps; "
        f"own {min(row['own_ms']):.1f} to {max(row['own_ms']):.1f} ms of {row['wall_ms']:.0f} ms"
    )


def table(rows: Rows) -> str:
    """The table of docs/evidence/verdicts.md, without the results that are missing."""
    parts = [
        _head(rows),
        _trainings(rows),
        _causes(rows),
        _small(rows),
        _hangs(rows),
        _sick(rows),
        _costs(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def put_into(path: Path, text: str) -> None:
    """Replace the table in a document; raises ValueError if it has no place for it."""
    document = path.read_text()
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} needs two lines, {BEGIN} and {END}, between which the table is put")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _head(rows: Rows) -> str:
    if not rows:
        return "Nothing is measured yet."
    commits = Counter(row["commit"] for row in rows.values())
    dates = sorted(row["date"] for row in rows.values())
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    others = max(row["other_cores"] for row in rows.values())
    machines = ", ".join(sorted({row["machine"] for row in rows.values()}))
    return (
        f"Measured {when} at {', '.join(commits)} on {machines}; other work used up to {others:.1f} cores "
        "when a measurement began."
    )


def _markdown(head: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    titles = list(head)
    text = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    text += [f"| {' | '.join(map(str, cells))} |" for cells in lines]
    return "\n".join(text)


def _own(row: Row) -> str:
    least = min(row["own_ms"])
    return f"{least:.0f}" + " (short)" * (least < OWN_MS)


def _trainings(rows: Rows) -> str:
    """Of each training: its steps, the false verdicts without and between episodes, and the outcomes."""
    lines = []
    total: Counter[str] = Counter()
    for name in TRAININGS:
        clean, slow = rows.get(f"clean/{name}"), rows.get(f"slow/{name}")
        if clean is None and slow is None:
            continue
        cells: list[object] = [name, _own(clean or slow)]
        cells.append(f"{(clean or slow)['wall_ms']:.0f}")
        cells += _false(clean, total, "clean")
        cells += _outcomes(slow, total)
        cells += [MISSING if slow is None else slow["false_intervals"]]
        total["between"] += slow["false_intervals"] if slow else 0
        for family in ("busy-clean", "busy-slow"):
            busy = rows.get(f"{family}/{name}")
            if family == "busy-clean":
                cells += _false(busy, total, "busy")[1:]
            else:
                cells.append(_busy(busy, total))
        lines.append(cells)
    if not lines:
        return ""
    lines.append(
        [
            "**all**", "", "", total["clean steps"], total["clean false"], total["clean abstained"],
            f"{total['right']} of {total['episodes']}", total["late"], total["missed"], total["wrong"],
            total["between"], total["busy false"], total["busy abstained"],
            f"{total['busy reported']} of {total['busy episodes']}, rank right {total['busy rank']}",
        ]
    )  # fmt: skip
    head = (
        "training", "own ms", "step ms", "clean steps", "false", "abstained", "right", "late", "missed",
        "wrong", "false between", "busy: false", "busy: abstained", "busy: reported",
    )  # fmt: skip
    return _markdown(head, lines)


def _false(row: Row | None, total: Counter[str], which: str) -> list[object]:
    if row is None:
        return [MISSING] * 3
    abstained = row["abstained"]
    total[f"{which} steps"] += row["clean_steps"]
    total[f"{which} false"] += row["false_intervals"]
    total[f"{which} abstained"] += abstained or 0
    return [row["clean_steps"], row["false_intervals"], MISSING if abstained is None else abstained]


def _outcomes(row: Row | None, total: Counter[str]) -> list[object]:
    if row is None:
        return [MISSING] * 4
    reported = Counter(episode["outcome"] for episode in row["episodes"])
    total.update(reported)
    total["episodes"] += len(row["episodes"])
    return [
        f"{reported['right']} of {len(row['episodes'])}",
        reported["late"],
        reported["missed"],
        reported["wrong"],
    ]


def _busy(row: Row | None, total: Counter[str]) -> str:
    if row is None:
        return MISSING
    found = [episode for episode in row["episodes"] if episode["outcome"] != "missed"]
    right = sum(episode["is_rank_right"] for episode in found)
    total["busy episodes"] += len(row["episodes"])
    total["busy reported"] += len(found)
    total["busy rank"] += right
    return f"{len(found)} of {len(row['episodes'])}, rank right {right}"


def _causes(rows: Rows) -> str:
    """Of each cause: the outcomes in all trainings; and of each training: how many are right."""
    causes = [*CAUSES, COLLECTING]
    lines, mine = [], []
    for cause in causes:
        found = [one for name in TRAININGS if (row := rows.get(f"slow/{name}")) for one in _of(row, cause)]
        if found:
            reported = Counter(one["outcome"] for one in found)
            delays = [one["delay"] for one in found if one["delay"] is not None]
            times = f"{statistics.median(delays):g}, {max(delays)}" if delays else MISSING
            right = f"{reported['right']} of {len(found)}"
            lines.append(
                [", ".join(cause), right, reported["late"], reported["missed"], reported["wrong"], times]
            )
    for name in TRAININGS:
        if (row := rows.get(f"slow/{name}")) is not None:
            mine.append([name, *(_cause(row, cause) for cause in causes)])
    if not lines:
        return ""
    head = ("fault of 25 %", "right", "late", "missed", "wrong", "steps until reported: median, most")
    inside = ", ".join(name for name, count in WORKERS.items() if count)
    note = (
        f"Data, sleep: of {inside} within the loader's processes. In brackets: the most steps until reported."
    )
    names = ["training", *(", ".join(cause) for cause in causes)]
    return "\n\n".join((_markdown(head, lines), _markdown(names, mine), note))


def _of(row: Row, cause: tuple[str, str]) -> list[dict[str, Any]]:
    return [one for one in row["episodes"] if (one["place"], one["how"]) == cause]


def _cause(row: Row, cause: tuple[str, str]) -> str:
    found = _of(row, cause)
    right = [one for one in found if one["outcome"] == "right"]
    steps = f" ({max(one['delay'] for one in right)})" if right else ""
    return f"{len(right)} of {len(found)}{steps}" if found else MISSING


def _small(rows: Rows) -> str:
    """Faults of 10 %, those of single steps, and what was lost on two ranks."""
    lines = []
    for cell, row in rows.items():
        family, _, name = cell.partition("/")
        if family in SMALL:
            reported = Counter(one["outcome"] for one in row["episodes"])
            right = f"{reported['right']} of {len(row['episodes'])}"
            lines.append(
                [
                    f"{SMALL[family]}: {name}",
                    right,
                    reported["late"],
                    reported["missed"],
                    reported["wrong"],
                    row["false_intervals"],
                ]
            )
    text = (
        _markdown(("other faults", "right", "late", "missed", "wrong", "false between"), lines)
        if lines
        else ""
    )
    ratios = defaultdict[str, list[float]](list)
    for cell, row in rows.items():
        for one in row.get("episodes", ()):
            if one["how"] == "sleep" and one["lost_s"] is not None and one["total_s"]:
                ratios[cell.partition("/")[0]].append(one["lost_s"] / one["total_s"])
    names = {"lost": "two ranks", "slow": "four ranks", "busy-slow": "four ranks beside busy processes"}
    lost = [
        [
            names[family],
            len(found),
            f"{statistics.median(found):.2f}",
            f"{min(found):.2f} to {max(found):.2f}",
        ]
        for family, found in ratios.items()
        if family in names
    ]
    head = ("`lost_s` by seconds slept", "episodes", "median", "range")
    return "\n\n".join(part for part in (text, _markdown(head, lost) if lost else "") if part)


def _hangs(rows: Rows) -> str:
    lines: list[list[object]] = []
    total = [0] * 6
    for kind in hangs.KINDS:
        found = [row for cell, row in rows.items() if cell.startswith(f"hang/{kind}/")]
        if not found:
            continue
        delays = [row["delay_s"] for row in found if row["delay_s"] is not None]
        counts = [
            len(found),
            *(sum(bool(row[f"{name}_right"]) for row in found) for name in ("rank", "collective")),
        ]
        line = sum(bool(row["line_right"]) for row in found) if kind in hangs.WITH_LINE else MISSING
        after = sum(row["why_right"] for row in found)
        others = sum(len(row["others"]) for row in found)
        times = f"{statistics.median(delays):.1f}, {max(delays):.1f}" if delays else MISSING
        lines.append([kind, *counts, line, after, times, others])
        for place, count in enumerate((*counts, after, others)):
            total[place] += count
    if not lines:
        return ""
    lines.append(["**all**", *total[:3], "", total[3], "", total[4]])
    head = ("hang", "episodes", "rank", "collective", "line", "`why`", "median, largest s", "other alerts")
    return _markdown(head, lines)


def _sick(rows: Rows) -> str:
    found = defaultdict[str, list[int]](lambda: [0, 0])
    for cell, row in rows.items():
        family, _, rest = cell.partition("/")
        if family in ("sick",):
            kind = rest.partition("/")[0]
            found[kind][0] += row["right"]
            found[kind][1] += row["count"]
    if not found:
        return ""
    return _markdown(
        ("sick", "right"), [[kind, f"{right} of {count}"] for kind, (right, count) in found.items()]
    )


def _costs(rows: Rows) -> str:
    lines = [
        [what, f"{row['step_us'] / 1e3:.1f}", row["thread_us"], row["others_us"], f"{row['share']:.2%}"]
        for what, ms in costs.CASES
        if (row := rows.get(f"cost/{what}-{ms}")) is not None
    ]
    head = ("cost of", "CPU ms of a step", "us more in its thread", "us more in others", "together")
    return _markdown(head, lines) if lines else ""

"""The judge: a process of its own, without distsummary, that compares ledgers with what the files hold.

    python -m tests.torture.judge DIR [--tensorboard]

judges every directory below DIR that has a case.json, removes those without a fault, and prints a Verdict
as JSON.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.ledger import Account, read_account
from tests.torture.reader import Found, decode, files_of, lineage_number, records, strays
from tests.torture.workload import DIALECTS, MINDSPORE, RANKED_TAGS, SCALAR, TENSORBOARD, event, ranked_event

ROOT = Path(__file__).resolve().parents[2]
MANY = 20_000  # events in TensorBoard's dialect above which its reader only counts records
PRINTED = (
    "kills", "faults", "acked", "acked_missing", "duplicates", "torn_middle", "orphans", "longest_block_s",
)  # fmt: skip
SHOWN = 5  # numbers named in a complaint


@dataclass(slots=True)
class Verdict:
    """What was done and found; `violations` say in words what is wrong."""

    kills: int = 0
    faults: int = 0
    acked: int = 0
    acked_missing: int = 0
    duplicates: int = 0
    torn_middle: int = 0
    orphans: int = 0
    longest_block_s: float = 0.0
    cases: int = 0
    mended: int = 0  # torn tails that a later writer cut
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Verdict") -> None:
        """Add up; the longest block is the longer one."""
        for name, value in asdict(other).items():
            if name == "longest_block_s":
                self.longest_block_s = max(self.longest_block_s, value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def line(self, level: str, seed: int) -> str:
        """The line of JSON that a run ends with."""
        counted = {name: value for name, value in asdict(self).items() if name in PRINTED}
        return json.dumps({"level": level, "seed": seed} | counted)


@dataclass(slots=True)
class Recovered:
    """What the files of one dialect hold: number of an event -> tag -> fingerprint."""

    events: dict[int, dict[str, str]] = field(default_factory=dict)
    duplicates: int = 0
    torn_middle: int = 0
    violations: list[str] = field(default_factory=list)


def run_judge(root: Path, *, tensorboard: bool) -> Verdict:
    """Judge all cases below `root` in a new process."""
    command = [sys.executable, "-m", "tests.torture.judge", str(root), *["--tensorboard"][: int(tensorboard)]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the judge failed: {done.stderr}")
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


class Expected:
    """What the files must hold of each event, computed once; a peer sends the scalar alone."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        self._known: dict[tuple[int, str], dict[str, str]] = {}

    def values(self, n: int, dialect: str) -> dict[str, str]:
        """Tag -> fingerprint of event n."""
        if (n, dialect) not in self._known:
            facts = self._facts
            expected = event(facts["seed"], n, facts["bulk"], facts.get("tags", 0)).expected(dialect)
            if "peer" in self._facts:
                expected = {SCALAR: expected[SCALAR]} if SCALAR in expected else {}
            self._known[n, dialect] = expected
        return self._known[n, dialect]


def judge_case(place: Path, *, tensorboard: bool) -> Verdict:
    """The verdict on one directory with case.json, ledger and events/."""
    facts = json.loads((place / "case.json").read_text())
    if "ranks" in facts:
        return judge_run(place, facts)
    account = read_account(place / "ledger")
    required = account.synced if facts.get("level") == "synced" else account.acked
    verdict = Verdict(acked=len(required), longest_block_s=account.longest_block_s, cases=1)
    expected = Expected(facts)
    missing: set[int] = set()
    for dialect in facts.get("dialects", DIALECTS):
        recovered = recover(place / "events", dialect, facts)
        missing |= _missing(required, recovered, dialect, expected)
        verdict.duplicates += recovered.duplicates
        verdict.torn_middle += recovered.torn_middle
        verdict.violations += [f"{place.name}: {dialect}: {what}" for what in recovered.violations]
        verdict.violations += [f"{place.name}: {w}" for w in _unsent(account, recovered, dialect, expected)]
        is_whole = not facts.get("damage_allowed") and not recovered.torn_middle
        if dialect == TENSORBOARD and tensorboard and is_whole:
            verdict.violations += [
                f"{place.name}: {w}" for w in _ask_tensorboard(place / "events", recovered)
            ]
    missing |= _missing_lineage(place / "events", required, facts)
    verdict.acked_missing = len(missing)
    if missing:
        verdict.violations.append(f"{place.name}: acked and not in the files: {_some(missing)}")
    verdict.mended = sum(1 for _ in (place / "events").glob("torn-*.bin"))
    for path in strays(place / "events"):
        verdict.orphans += 1
        verdict.violations.append(f"{place.name}: left behind: {path.name}")
    return verdict


def judge_run(place: Path, facts: dict[str, Any]) -> Verdict:
    """The verdict on a run of several ranks: each has a ledger and a directory."""
    verdict = Verdict(
        cases=1,
        orphans=facts["orphans"],
        violations=[f"{place.name}: {what}" for what in facts["complaints"]],
    )
    for rank in range(facts["ranks"]):
        account = read_account(place / f"ledger_{rank}")
        directory = place / "disk" / "run" / f"rank_{rank:05d}"
        verdict.acked += len(account.acked)
        verdict.longest_block_s = max(verdict.longest_block_s, account.longest_block_s)
        if not account.acked:
            continue
        found = [one for dialect in DIALECTS if (one := recover_rank(directory, dialect)).events]
        if not found:
            found = [Recovered()]
        missing: set[int] = set()
        complaints = [what for one in found for what in one.violations]
        for n in account.sent:
            values = ranked_event(facts["seed"], rank, n).expected(TENSORBOARD)
            for one in found:
                held = {tag: value for tag, value in one.events.get(n, {}).items() if tag in RANKED_TAGS}
                if values.items() - held.items() and n in account.acked:
                    missing.add(n)
                if tensorless(held).items() - values.items():
                    complaints.append(
                        f"step {n} holds what was not sent: {sorted(held.items() - values.items())}"
                    )
        for one in found:
            unsent = {n for n in one.events if n not in account.sent and one.events[n].keys() & RANKED_TAGS}
            complaints += [f"recovered and never sent: {_some(unsent)}"] * bool(unsent)
            verdict.duplicates += one.duplicates
            verdict.torn_middle += one.torn_middle
        if missing:
            complaints.append(f"acked and not in the files: {_some(missing)}")
        verdict.acked_missing += len(missing)
        verdict.violations += [f"{place.name}: rank {rank}: {what}" for what in complaints[:SHOWN]]
    return verdict


def tensorless(held: dict[str, str]) -> dict[str, str]:
    """Without tensors, for which TensorBoard's dialect has no place."""
    return {tag: value for tag, value in held.items() if not value.startswith("tensor")}


def recover_rank(directory: Path, dialect: str) -> Recovered:
    """The steps in the files of a rank that did not choose its numbers: several events may be of one step."""
    recovered, highest = Recovered(), {}
    for found in _events(directory, dialect, {"torn_tail_allowed": True}, recovered):
        if found.seq <= highest.get(found.attempt, 0):
            recovered.duplicates += 1
            recovered.violations.append(
                f"{dialect}: seq {found.seq} comes behind seq {highest[found.attempt]}"
            )
        highest[found.attempt] = found.seq
        held = recovered.events.setdefault(found.step, {})
        twice = held.keys() & found.values.keys() & RANKED_TAGS
        if twice:
            recovered.duplicates += 1
            recovered.violations.append(f"{dialect}: step {found.step} holds {sorted(twice)} twice")
        held |= found.values
    return recovered


def recover(directory: Path, dialect: str, facts: dict[str, Any]) -> Recovered:
    """Everything in the files of a dialect, and what is wrong with them."""
    recovered = Recovered()
    highest = 0
    for found in _events(directory, dialect, facts, recovered):
        if "peer" not in facts:
            highest = _check_identity(found, highest, facts, recovered)
        if found.step in recovered.events:
            recovered.duplicates += 1
            recovered.violations.append(f"event {found.step} is there twice")
        recovered.events[found.step] = found.values
    return recovered


def _events(directory: Path, dialect: str, facts: dict[str, Any], recovered: Recovered) -> Iterator[Found]:
    files = files_of(directory, dialect)
    for path in files:
        for record in records(path.read_bytes()):
            is_end = record.is_torn and path == files[-1] and facts.get("torn_tail_allowed", False)
            if record.payload is None:
                if not is_end and not facts.get("damage_allowed", False):
                    recovered.torn_middle += 1
                    what = "torn frame" if record.is_torn else "damage"
                    recovered.violations.append(f"{what} at byte {record.offset} of {path.name}")
                continue
            if not record.payload:
                recovered.violations.append(f"empty frame at byte {record.offset} of {path.name}")
                continue
            try:
                found = decode(record.payload, dialect)
            except (ValueError, IndexError, KeyError) as error:
                recovered.violations.append(f"no event at byte {record.offset} of {path.name}: {error!r}")
                continue
            if found is not None:
                yield found


def _check_identity(found: Found, highest: int, facts: dict[str, Any], recovered: Recovered) -> int:
    """The highest seq so far; (run, attempt, seq) must grow from event to event."""
    if (found.run_id, found.attempt) != (facts["run_id"], facts.get("attempt", 0)):
        recovered.violations.append(f"event {found.step} belongs to {found.run_id}, attempt {found.attempt}")
    if found.seq <= highest and not facts.get("damage_allowed", False):
        recovered.violations.append(f"seq {found.seq} comes behind seq {highest}")
    if facts.get("seq_is_number", True) and found.seq != found.step:
        recovered.violations.append(f"event {found.step} has seq {found.seq}")
    return max(highest, found.seq)


def _missing(required: set[int], recovered: Recovered, dialect: str, expected: Expected) -> set[int]:
    """The required events that are absent or have another content."""
    missing = set()
    for n in required:
        found = recovered.events.get(n, {})
        if any(found.get(tag) != value for tag, value in expected.values(n, dialect).items()):
            missing.add(n)
    return missing


def _unsent(account: Account, recovered: Recovered, dialect: str, expected: Expected) -> Iterator[str]:
    unsent = recovered.events.keys() - account.sent
    if unsent:
        yield f"{dialect}: recovered and never sent: {_some(unsent)}"
    for n in recovered.events.keys() & account.sent:
        other = recovered.events[n].items() - expected.values(n, dialect).items()
        if other:
            yield f"{dialect}: event {n} holds what was not sent: {sorted(other)}"


def _missing_lineage(directory: Path, required: set[int], facts: dict[str, Any]) -> set[int]:
    """The last required lineage, if the lineage file holds an older one or none."""
    if "peer" in facts:
        return set()
    ours = [n for n in required if event(facts["seed"], n, facts["bulk"]).values[0].plugin == "lineage"]
    files = files_of(directory, MINDSPORE, lineage=True)
    held = lineage_number(files[-1]) if files else 0
    return {max(ours)} if ours and held < max(ours) else set()


def _ask_tensorboard(directory: Path, recovered: Recovered) -> Iterator[str]:
    """TensorBoard's own reader sees every event that we see."""
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]  # it has no types
        event_accumulator,
        event_file_loader,
    )

    expected = {n: values for n, values in recovered.events.items() if SCALAR in values}
    if len(expected) > MANY:
        files = files_of(directory, TENSORBOARD)
        ours = sum(1 for path in files for record in records(path.read_bytes()) if record.payload)
        seen = sum(1 for path in files for _ in event_file_loader.RawEventFileLoader(str(path)).Load())
        if seen != ours:
            yield f"TensorBoard reads {seen} records of {ours}"
        return
    accumulator = event_accumulator.EventAccumulator(
        str(directory), size_guidance={"scalars": 0, "tensors": 0}
    )
    accumulator.Reload()
    tags = accumulator.Tags()
    steps = []
    if SCALAR in tags["scalars"]:
        steps = [scalar.step for scalar in accumulator.Scalars(SCALAR)]
    elif SCALAR in tags["tensors"]:
        steps = [tensor.step for tensor in accumulator.Tensors(SCALAR)]
    if steps != list(expected):
        yield f"TensorBoard shows {len(steps)} events of {len(expected)}"


def _some(numbers: Any) -> str:  # Any: a set or a view of keys
    named = sorted(numbers)
    return f"{len(named)} ({', '.join(map(str, named[:SHOWN]))}{', ...' if len(named) > SHOWN else ''})"


def main() -> int:
    """Judge, print the verdict, and keep only the cases with a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--tensorboard", action="store_true")
    options = parser.parse_args()
    total = Verdict()
    for facts in sorted(options.root.rglob("case.json")):
        verdict = judge_case(facts.parent, tensorboard=options.tensorboard)
        total.add(verdict)
        if not verdict.violations:
            shutil.rmtree(
                facts.parent, ignore_errors=True
            )  # what is left of the job may be removing its files
        else:
            facts.rename(facts.with_name("judged.json"))
    assert "distsummary" not in sys.modules, "the judge must not see with the eyes of the judged"
    print(json.dumps(asdict(total)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

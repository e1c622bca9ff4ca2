"""The judge sees what it is there for: each fault planted in a good case is found and named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture.client import RUN_ID, Client
from tests.torture.judge import Verdict, judge_case
from tests.torture.ledger import ACKED, SENT, Ledger
from tests.torture.mutate import framed
from tests.torture.reader import files_of, records
from tests.torture.workload import MINDSPORE, TENSORBOARD

EVENTS = 12
BULK = 10
Change = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A case in which nothing is wrong."""
    place = tmp_path / "case"
    (place / "events").mkdir(parents=True)
    (place / "case.json").write_text(json.dumps({"seed": 4, "bulk": BULK, "run_id": RUN_ID}))
    Client(place, seed=4, total=EVENTS, bulk=BULK).run()
    return place


def judged(place: Path) -> Verdict:
    return judge_case(place, tensorboard=False)


def change_last(place: Path, dialect: str, change: Change) -> None:
    """Rewrite the payloads of the dialect's last file, in right frames."""
    path = files_of(place / "events", dialect)[-1]
    payloads = [record.payload for record in records(path.read_bytes()) if record.payload is not None]
    path.write_bytes(b"".join(framed(payload) for payload in change(payloads)))


def test_a_good_case_is_good(case: Path) -> None:
    verdict = judge_case(case, tensorboard=True)
    assert verdict.violations == []
    assert verdict.acked == EVENTS


@pytest.mark.parametrize(
    ("dialect", "change", "missing", "duplicates", "said"),
    [
        (MINDSPORE, lambda p: p[:-1], 1, 0, ""),
        (TENSORBOARD, lambda p: p[:-1], 1, 0, ""),
        (MINDSPORE, lambda p: [*p[:-1], p[-1].replace(b"loss", b"lost")], 1, 0, "holds what was not sent"),
        (TENSORBOARD, lambda p: [*p, p[-1]], 0, 1, ""),
        (MINDSPORE, lambda p: [*p[:-2], p[-1], p[-2]], 0, 0, "comes behind"),
    ],
    ids=["lost", "lost", "changed", "twice", "in another order"],
)
def test_what_was_done_to_an_event_is_named(case, dialect, change, missing, duplicates, said):
    change_last(case, dialect, change)
    verdict = judged(case)
    assert (verdict.acked_missing, verdict.duplicates) == (missing, duplicates)
    assert said in " ".join(verdict.violations)


def test_an_event_that_was_never_sent_is_named(case: Path) -> None:
    ledger = (case / "ledger").read_text()
    kept = [line for line in ledger.splitlines() if not line.endswith(f" {EVENTS}")]
    (case / "ledger").write_text("\n".join(kept) + "\n")
    assert "never sent" in " ".join(judged(case).violations)


@pytest.mark.parametrize("keep", [3, 30])
def test_a_torn_last_frame_after_a_clean_end_is_torn(case: Path, keep: int) -> None:
    path = files_of(case / "events", MINDSPORE)[-1]
    with path.open("ab") as file:
        file.write(framed(b"x" * 50)[:keep])
    assert judged(case).torn_middle == 1


def test_a_hole_is_damage_and_the_frames_behind_it_are_found(case: Path) -> None:
    path = files_of(case / "events", MINDSPORE)[-1]
    data = path.read_bytes()
    second = list(records(data))[1].offset
    path.write_bytes(data[: second + 4] + bytes(10) + data[second + 14 :])
    verdict = judged(case)
    assert (verdict.torn_middle, verdict.acked_missing) == (1, 1)


def test_a_temporary_file_is_left_behind(case: Path) -> None:
    (case / "events" / ".tmp-1").touch()
    assert judged(case).orphans == 1


def test_a_ledger_of_more_than_was_written_is_missed(case: Path) -> None:
    ledger = Ledger(case / "ledger")
    ledger.enter(SENT, EVENTS + 1, EVENTS + 3)
    ledger.enter(ACKED, EVENTS + 1, EVENTS + 3)
    ledger.close()
    assert judged(case).acked_missing == 3

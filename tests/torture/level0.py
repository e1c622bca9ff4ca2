"""L0: in one process, every operation on the disk fails once in every way, and the power is cut at each."""

import errno
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from distsummary.events.spec import Limits
from distsummary.format.records import SYNCED, WRITTEN
from tests.torture.async_client import AsyncClient
from tests.torture.client import RUN_ID, Client, StuckError
from tests.torture.disk import Crash, Disk, Fault, FaultyFiles, quiet_crashes
from tests.torture.judge import Verdict, run_judge
from tests.torture.ledger import Ledger
from tests.torture.workload import DIALECTS

EVENTS = 20
AFTER_POWER_CUT = 5  # events more, so that something is always written on top
BULK = 1500  # elements: a few sectors
JUDGED_TOGETHER = 400  # cases for one judge process

KINDS = (
    Fault(at=1, kind="error", number=errno.ENOSPC),
    Fault(at=1, kind="error", number=errno.EIO),
    Fault(at=1, kind="error", number=errno.EIO, power=True),
    Fault(at=1, kind="error", number=errno.EIO, lasts=7),
    Fault(at=1, kind="error", number=errno.EROFS, lasts=25),
    Fault(at=1, kind="error", number=errno.ENOSPC, lasts=9, only=("create", "write", "writev")),
    Fault(at=1, kind="error", number=errno.EIO, lasts=30, only=("sync",)),
    Fault(at=1, kind="error", number=errno.EIO, lasts=30, power=True, only=("sync", "truncate")),
    Fault(at=1, kind="short"),
    Fault(at=1, kind="short_error", number=errno.ENOSPC, lasts=1),
    Fault(at=1, kind="short_error", number=errno.EIO, lasts=4),
    Fault(at=1, kind="short_error", number=errno.EIO, lasts=4, power=True),
    Fault(at=1, kind="crash_before"),
    Fault(at=1, kind="crash_within"),
    Fault(at=1, kind="crash_after"),
    Fault(at=1, kind="crash_before", power=True),
    Fault(at=1, kind="crash_within", power=True),
    Fault(at=1, kind="crash_after", power=True),
)


def sweep(root: Path, seeds: range, events: int = EVENTS) -> Verdict:
    """All faults at all operations of the runs of `seeds`; the directories of cases that pass are removed."""
    logging.getLogger("distsummary").setLevel(logging.CRITICAL)  # it rightly warns thousands of times
    quiet_crashes()
    total = Verdict()
    waiting = 0
    for number, (place, seed, fault) in enumerate(_cases(root, seeds, events)):
        total.faults += run_case(place, seed, fault, events, total)
        waiting += 1
        if waiting == JUDGED_TOGETHER:
            total.add(run_judge(root, tensorboard=number % 4 == 3))
            waiting = 0
    total.add(run_judge(root, tensorboard=True))
    return total


def _cases(root: Path, seeds: range, events: int) -> Iterator[tuple[Path, int, Fault]]:
    """Fault after fault at operation 1, 2, ... until a run ends before its fault."""
    for seed in seeds:
        operations = count_operations(root / f"s{seed}-none", seed, events)
        for at in range(1, operations + 1):
            for kind in KINDS:
                fault = replace(kind, at=at)
                yield root / f"s{seed}-{fault}-{at:03d}", seed, fault


def count_operations(place: Path, seed: int, events: int) -> int:
    """The disk operations of a run without a fault; the run is a case, too."""
    disk = Disk(None)
    open_case(place, seed)
    _live(place, seed, events, disk)
    return disk.operations


def run_case(place: Path, seed: int, fault: Fault, events: int, verdict: Verdict) -> int:
    """One run with one fault, restarted after a crash; returns how many operations failed."""
    disk = Disk(fault, seed * 1_000_003 + fault.at)
    open_case(place, seed, damage_allowed=fault.power)
    try:
        crashed = _live(place, seed, events, disk)
        power_cut = fault.power and (crashed or disk.reached)
        if power_cut:
            _cut_power(place, disk)
        if crashed or power_cut:
            verdict.kills += 1
            again = _live(
                place, seed, events + AFTER_POWER_CUT * power_cut, disk, resume_from_files=power_cut
            )
            assert not again, "one fault crashed twice"
    except (StuckError, Exception) as error:  # a finding like any other, with its place
        verdict.violations.append(f"{place.name}: the client got {type(error).__name__}: {error}")
    return disk.injected


def _live(place: Path, seed: int, events: int, disk: Disk, *, resume_from_files: bool = False) -> bool:
    """One life of the client; whether it crashed."""
    try:
        client_of(seed)(
            place, seed=seed, total=events, files=FaultyFiles(disk), options=options_of(seed), bulk=BULK,
            resume_from_files=resume_from_files,
        ).run()  # fmt: skip
    except Crash:
        return True
    return False


def client_of(seed: int) -> type[Client] | type[AsyncClient]:
    """Every third seed sends through an AsyncWriter."""
    return AsyncClient if seed % 3 == 2 else Client


def options_of(seed: int, rotate_bytes: int = 2500) -> dict[str, Any]:
    """What kind of writer a seed has: dialects, whether its files rotate, how far events are delivered."""
    dialects = (DIALECTS, DIALECTS, DIALECTS[:1], DIALECTS[1:])[seed % 4]
    limits = Limits(rotate_bytes=rotate_bytes) if seed % 2 else Limits()
    return {"formats": dialects, "limits": limits, "delivery": SYNCED if seed % 5 == 3 else WRITTEN}


def open_case(place: Path, seed: int, **more: Any) -> None:
    """Make the directory of a case, with what the judge has to know."""
    shutil.rmtree(place, ignore_errors=True)  # of a call that was interrupted
    place.mkdir(parents=True)
    (place / "events").mkdir()
    dialects = options_of(seed)["formats"]
    facts = {"seed": seed, "bulk": BULK, "run_id": RUN_ID, "dialects": dialects}
    facts |= {"seq_is_number": client_of(seed) is Client} | more
    (place / "case.json").write_text(json.dumps(facts))


def _cut_power(place: Path, disk: Disk) -> None:
    """Cut it, and keep the disk as that left it, to be judged by what was synced."""
    disk.cut_power()
    ledger = Ledger(place / "ledger")
    ledger.enter_power_cut()
    ledger.close()
    image = place.with_name(f"{place.name}-image")
    shutil.copytree(place, image)
    facts = json.loads((image / "case.json").read_text())
    (image / "case.json").write_text(json.dumps(facts | {"level": "synced", "torn_tail_allowed": True}))

"""The account kept outside the system: what was sent, acknowledged and made durable."""

import os
from dataclasses import dataclass, field
from pathlib import Path

SENT, ACKED, SYNCED, BLOCKED, POWER_CUT = "S", "A", "Y", "B", "P"


class Ledger:
    """Appends lines with one write(2) each: what a killed process entered stays entered."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._longest_block_s = 0.0

    def enter(self, kind: str, first: int, last: int) -> None:
        """Enter the events `first` to `last`."""
        os.write(self._descriptor, f"{kind} {first} {last}\n".encode())

    def enter_block(self, seconds: float) -> None:
        """Enter how long the training stood in a call, if it never stood longer."""
        if seconds > self._longest_block_s:
            self._longest_block_s = seconds
            os.write(self._descriptor, f"{BLOCKED} {seconds:.6f}\n".encode())

    def enter_power_cut(self) -> None:
        """Enter that the power was cut: what was acknowledged and not durable may be gone."""
        os.write(self._descriptor, f"{POWER_CUT}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@dataclass(slots=True)
class Account:
    """A ledger read back: sets of event numbers, and the longest block in seconds."""

    sent: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    synced: set[int] = field(default_factory=set)
    longest_block_s: float = 0.0

    @property
    def next_number(self) -> int:
        """The first number that was never sent."""
        return max(self.sent, default=0) + 1


def read_account(path: Path) -> Account:
    """The account of a ledger; a torn last line was never entered."""
    account = Account()
    sets = {SENT: account.sent, ACKED: account.acked, SYNCED: account.synced}  # changed in place only
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    for line in lines:
        kind, *numbers = line.split()
        if kind in sets:
            sets[kind].update(range(int(numbers[0]), int(numbers[1]) + 1))
        elif kind == POWER_CUT:
            account.acked &= account.synced
        else:
            account.longest_block_s = max(account.longest_block_s, float(numbers[0]))
    return account


def first_missing(numbers: set[int]) -> int:
    """The lowest number from 1 on that is not among them."""
    return next(n for n in range(1, len(numbers) + 2) if n not in numbers)

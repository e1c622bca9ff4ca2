"""FiniteCheck: finds logged numbers that are NaN, infinite or too large for the files."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from distsummary.base.failures import Failures
from distsummary.errors import NonFiniteError
from distsummary.format.own_tags import NONFINITE_TAGS
from distsummary.frameworks.base import Pending, framework_of, tensors_in
from distsummary.training.values import Scalar, resolve

WARN, STOP, IGNORE = "warn", "stop", "ignore"
ON_NAN = (WARN, STOP, IGNORE)
# If there are more tags, all are forgotten and may be named again, so that memory stays bounded.
MAX_TAGS = 1 << 10
LARGEST = 3.4028235677973366e38  # numbers from here on are infinite in the files, which hold float32
LOWEST = -LARGEST
INPUTS = 8  # batches that are looked at because a logged number is not finite


class FiniteCheck:
    """Counts NaN and infinite numbers by tag, with step and rank of the first; logs the first of each kind.

    Of a run that is judged while it trains (`is_judged`), an alert reports the first one instead; tags that
    were never finite are then only counted.

    Numbers on a device are checked when a background thread has received them, so that the training never
    waits for the device.

    Args:
        on_nan: "warn"; "stop": `error` is set as well, for the run to raise; or "ignore".
        failures: returns what counts the numbers. Numbers beyond float32 are counted for any `on_nan`.
    """

    def __init__(self, on_nan: str, rank: int, failures: Callable[[], Failures]) -> None:
        self.error: NonFiniteError | None = None
        # True when a callback has raised, such as LossMonitor, which names the loss itself.
        self.is_over = False
        self.is_judged = False  # then nothing is logged here
        self.rank = rank
        self._on_nan, self._failures = on_nan, failures
        self._reasons: dict[tuple[str, bool], str] = {}  # by tag, and whether the number is finite
        self._inputs = INPUTS
        self._logged: set[bool] = set()  # whether a number is infinite, of those that were logged

    def look(self, step: int, numbers: Mapping[str, Scalar]) -> None:
        """Check those numbers of a step that are on the host.

        Raises NonFiniteError once if these, or numbers that have arrived from a device, stop the training.
        """
        for tag, number in numbers.items():
            if isinstance(number, float):
                self.check(step, tag, number)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def input_of(self, batch: object, numbers: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Whether a step with a number that is not finite had such an input; at few steps.

        Returns the number of the first such tensor of the batch, from 0, under its tag for the judge of the
        ranks; empty if all are finite. A batch on a device is waited for.
        """
        if not self._inputs or not any(
            isinstance(number, float) and not math.isfinite(number) for number in numbers.values()
        ):
            return {}
        self._inputs -= 1
        for number, tensor in enumerate(tensors_in(batch)):
            try:
                array = framework_of(tensor).to_numpy(tensor)
            except Exception as error:
                # Some tensors have no values to look at.
                self._failures().count(f"whether the input was finite: {type(error).__name__}: {error}")
                continue
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                # One input that is not finite answers the question for this run: no other batch is looked at.
                self._inputs = 0
                return {NONFINITE_TAGS["input"]: float(number)}
        return {}

    def check(self, step: int, tag: str, number: float) -> None:
        """Check one number; may be called from any thread."""
        if LOWEST < number < LARGEST or self.is_over:
            return
        is_finite = math.isfinite(number)
        found = f"{tag!r} is {number:g} at step {step} on rank {self.rank}"
        if is_finite:
            self._count(
                (tag, True), f"{found}; files hold float32, in which it is infinite; log its logarithm"
            )
        else:
            self.report(tag, found, is_infinite=math.isinf(number))

    def report(self, what: str, found: str, *, is_infinite: bool = False) -> bool:
        """Report numbers that are not finite; returns whether `found` is named, which it is once for `what`.

        Args:
            what: a tag, or another name of the numbers.
            found: says where they are, at which step and on which rank. May be called from any thread.
            is_infinite: and not NaN.
        """
        if self._on_nan == IGNORE or self.is_over:
            return False
        is_new = self._count((what, False), found, logs=not (self.is_judged or is_infinite in self._logged))
        self._logged.add(is_infinite)
        if self._on_nan == STOP and self.error is None:
            self.error = NonFiniteError(f"{found}; the training stops because of on_nan={STOP!r}")
        return is_new

    def _count(self, key: tuple[str, bool], found: str, *, logs: bool = True) -> bool:
        """Count under the first reason that was found for `key`; returns whether it is this one."""
        if len(self._reasons) > MAX_TAGS:
            self._reasons.clear()
        reason = self._reasons.setdefault(key, found)
        self._failures().count(reason, logs=logs)
        return reason is found


class Checked:
    """A pending number that a FiniteCheck checks once it is known."""

    __slots__ = ("_check", "_is_checked", "_pending", "_tag", "step")

    def __init__(
        self, pending: Pending, check: Callable[[int, str, float], None], step: int, tag: str
    ) -> None:
        self._pending, self._check = pending, check
        self.step, self._tag, self._is_checked = step, tag, False

    @property
    def nbytes(self) -> int:
        """The bytes that the pending number holds."""
        return self._pending.nbytes

    def result(self) -> float:
        """Wait for the number, check it and return it."""
        number = resolve(self._pending)
        if not self._is_checked:
            self._is_checked = True
            self._check(self.step, self._tag, number)
        return number

"""DeviceTimes: how long the phases of a step took on a device, by events that are never waited for."""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Protocol

MAX_PENDING = 16  # steps whose events the device has not reached; further ones are not measured


class DeviceEvent(Protocol):
    """A point in the work of a device, as torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None:
        """The point is after all that the device has been asked to do so far."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from here to another point; both have been reached."""


class DeviceTimes:
    """The time on the device between the marks of phases; any thread of a training may enter a phase.

    Args:
        make_event: makes a DeviceEvent.
        is_captured: whether what the device is asked to do now is only written down, such as for a CUDA
            graph; then no event is recorded.
    """

    def __init__(self, make_event: Callable[[], DeviceEvent], is_captured: Callable[[], bool]) -> None:
        self.current = ""
        self._make_event, self._is_captured = make_event, is_captured
        self._marks: list[tuple[str, DeviceEvent]] = []  # of this step: phase, and where it begins
        self._pending: deque[list[tuple[str, DeviceEvent]]] = deque()
        self._free: list[DeviceEvent] = []
        self._found: Mapping[str, float] = {}

    def begin(self, phase: str) -> None:
        """A step that is marked begins in `phase`."""
        self._free += [event for _, event in self._marks]
        self._marks = []
        self.current = ""
        self.enter(phase)

    def enter(self, phase: str) -> None:
        """The current phase ends, and `phase` begins."""
        if phase == self.current or self._is_captured():
            return
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        self._marks.append((phase, event))
        self.current = phase

    def was(self, phase: str) -> None:
        """The current phase was this one from its begin."""
        if self._marks:
            self._marks[-1] = (phase, self._marks[-1][1])
            self.current = phase

    def take(self, then: str) -> Mapping[str, float]:
        """A step ends, and `then` begins. Returns the ms of each phase of the newest step that is done.

        That is mostly the one before; {} until one is done.
        """
        self.current = ""
        self.enter(then)
        # The mark just entered ends the last phase of this step.
        if self._marks and len(self._pending) < MAX_PENDING:
            self._pending.append(self._marks)
            self._marks = []
        # Only steps whose last event the device has reached are read, so that it is never waited for.
        while self._pending and self._pending[0][-1][1].query():
            marks = self._pending.popleft()
            found: dict[str, float] = {}
            for (phase, begun), (_, ended) in pairwise(marks):
                found[phase] = found.get(phase, 0.0) + begun.elapsed_time(ended)
            self._found = found
            self._free += [event for _, event in marks]
        self.begin(then)
        return self._found

"""OnAlert: calls the user's function, or posts to a URL, when a rank of the run is found slow, stuck or sick.

It follows alerts.jsonl in a thread of its own: a function that does not return delays neither the training
nor the heartbeats of its rank.
"""

import json
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from distsummary.diagnosis.alerts import Key, key_of, read_alerts
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.run_dir import RunDir
from distsummary.training.callbacks import Callback, RunContext

Alert = Mapping[str, Any]

LOOK_S = 1.0  # between two looks at alerts.jsonl
POST_S = 5.0  # a server that does not answer within it is tried again
TRIES = 3
CLOSE_S = 6.0  # at the end of the training, the last alerts have so long to be told


def check_on_alert(on_alert: object, *, aggregate: bool) -> None:
    """Raise InvalidTypeError or InvalidValueError for anything but None, a function and a URL."""
    if on_alert is None:
        return
    if not callable(on_alert):
        if not isinstance(on_alert, str):
            raise InvalidTypeError(f"on_alert must be a function or a URL, got {on_alert!r}")
        if not on_alert.startswith(("http://", "https://")):
            raise InvalidValueError(
                f"on_alert must be a function or a URL that begins with http:// or https://, got {on_alert!r}"
            )
    if not aggregate:
        raise InvalidValueError(
            "on_alert needs the aggregator, which judges the ranks while they train, got aggregate=False; "
            "leave aggregate out"
        )


class OnAlert(Callback):
    """Tells each alert of the run once, from the beginning of the training on; of one rank, that is rank 0.

    Args:
        run_dir: the run.
        on_alert: a function of an alert, or a URL to which it is posted as JSON. An alert has the fields of a
            line of alerts.jsonl, `run_dir`, and `text`, which says it in a sentence.
        fail: called with the reason if the function raises, or the server did not take it in three tries.
    """

    def __init__(
        self, run_dir: RunDir, on_alert: Callable[[Alert], object] | str, fail: Callable[[str], None]
    ) -> None:
        self._run_dir, self._on_alert, self._fail = run_dir, on_alert, fail
        self._told: set[Key] = set()
        self._size = 0
        self._waiting: list[
            tuple[Alert, int]
        ] = []  # what the server has not taken, and how often it was tried
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        """Begin to follow the file; what earlier attempts told is not told again, if it can be read."""
        if self._thread is None:
            try:
                self._told = {key_of(alert) for alert in read_alerts(self._run_dir)}
            except OSError as error:
                self._count(error)
            self._thread = threading.Thread(target=self._follow, name="distsummary-on-alert", daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _follow(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_stopped.wait(LOOK_S)
            try:
                self._look()
            except Exception as error:  # the disk; another look may succeed
                self._count(error)

    def _count(self, error: Exception) -> None:
        self._fail(f"on_alert: {type(error).__name__}: {error}")

    def _look(self) -> None:
        size = 0
        with suppress(FileNotFoundError):
            size = self._run_dir.alerts_path.stat().st_size
        if size != self._size:
            for found in read_alerts(self._run_dir):
                if key_of(found) not in self._told:
                    self._told.add(key_of(found))
                    text = f"distsummary: {sentence(Verdict.from_json(found))}"
                    self._waiting.append(({**found, "run_dir": str(self._run_dir.base), "text": text}, 0))
            self._size = size
        waiting, self._waiting = self._waiting, []
        for alert, tries in waiting:
            try:
                self._tell(alert)
            except Exception as error:  # whatever the user's function raises
                if isinstance(self._on_alert, str) and tries + 1 < TRIES:
                    self._waiting.append((alert, tries + 1))
                else:
                    self._count(error)

    def _tell(self, alert: Alert) -> None:
        if not isinstance(self._on_alert, str):
            self._on_alert(alert)
            return
        request = urllib.request.Request(
            self._on_alert,
            data=json.dumps(alert).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "distsummary"},
        )
        with urllib.request.urlopen(request, timeout=POST_S):
            pass

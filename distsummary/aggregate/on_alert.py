"""OnAlert: calls the user's function, or posts to a URL, for each alert of the run that is not held back.

It follows alerts.jsonl in a thread of its own: a function that does not return delays neither the training
nor the heartbeats of its rank.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from distsummary.base.at_exit import DaemonThread
from distsummary.base.redaction import redacted
from distsummary.base.termination import Terminated, on_termination
from distsummary.diagnosis.alert_sender import Alert, send
from distsummary.diagnosis.alerts import SMALL, Key, key_of, parsed
from distsummary.diagnosis.reporting import RATE, held_back
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.verdict import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    LOST,
    MESSAGE,
    WARNING,
    Verdict,
)
from distsummary.rundir.run_dir import RunDir
from distsummary.training.callbacks import Callback, RunContext, guarded_hooks

LOOK_S = 1.0
TRIES = 3
ENDED = (FINISHED, INTERRUPTED, FAILED, LOST)  # causes of the last alert of a training
CLOSE_S = 5.0


@guarded_hooks()
class OnAlert(Callback):
    """Passes each alert of the run on once, from the beginning of the training; of all ranks, rank 0 has it.

    Alerts that `ds.Diagnose` holds back are left out; of those that are too many within an hour, the count is
    passed on, once.

    Args:
        run_dir: the run.
        on_alert: a function of an alert, or a URL to which it is posted as `payload` makes it; a login in
            it is sent as Basic authentication, and redirects are not followed. An alert has
            the fields of a line of alerts.jsonl, `run_dir`, and `text`, which says it in a sentence.
        fail: called with the reason if the function raises, or the server did not take it in three tries.
        look_s: seconds between two looks at alerts.jsonl.
        close_s: how long the end of the training waits till the last alerts are passed on.
    """

    def __init__(
        self,
        run_dir: RunDir,
        on_alert: Callable[[Alert], object] | str,
        fail: Callable[[str], None],
        *,
        look_s: float = LOOK_S,
        close_s: float = CLOSE_S,
    ) -> None:
        self._run_dir, self._on_alert, self._fail = run_dir, on_alert, fail
        self._look_s, self._close_s = look_s, close_s
        self._known: set[Key] = set()
        self._read_to = 0  # bytes of the file
        # Alerts that were too many within an hour: how many, and the newest of them.
        self._held = 0
        self._newest: Alert = {}
        # What the user's function or server has not taken yet, and how often that was tried.
        self._waiting: list[tuple[Alert, int]] = []
        self._is_stopped, self._has_ended = threading.Event(), threading.Event()
        self._thread: DaemonThread | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def on_train_begin(self, run_context: RunContext) -> None:
        """Begin to follow the file; alerts of earlier attempts are not passed on, if they can be read."""
        if self._thread is None:
            try:
                self._known = {key_of(alert) for alert in self._new()}
            except OSError as error:
                self._count(error)
            self._thread = DaemonThread(self._follow, "distsummary-on-alert")
            self._thread.start()
            self._unsubscribe = on_termination(self._terminate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        self._close()

    def _terminate(self, error: Terminated) -> None:
        """Pass on how the run has ended, before a signal ends the process."""
        self._has_ended.wait(min(self._close_s, error.left_s))
        self._close()

    def _close(self) -> None:
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join(self._close_s)
            if self._thread.is_alive():
                self._fail(f"on_alert: the last alerts were not passed on within {self._close_s:g} s")

    def _follow(self) -> None:
        # How an alert may still be tried once the training has ended: the last one says how it ended.
        left = TRIES
        while left:
            is_last = self._is_stopped.wait(self._look_s)
            if left < TRIES:
                time.sleep(self._look_s)
            try:
                self._look(is_last=is_last)
            except Exception as error:
                # Mostly an error of the disk: another look may succeed.
                self._count(error)
            if is_last:
                left = left - 1 if self._waiting else 0

    def _count(self, error: Exception) -> None:
        self._fail(redacted(f"on_alert: {type(error).__name__}: {error}"))

    def _new(self) -> list[Alert]:
        """The alerts in the lines that were appended; raises OSError."""
        data = b""
        with suppress(FileNotFoundError):
            if self._run_dir.alerts_path.stat().st_size != self._read_to:
                with open(self._run_dir.alerts_path, "rb") as file:
                    file.seek(self._read_to)
                    data = file.read()
        # A last line without its newline is still being written: the next look takes it.
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return [alert for _, alert in parsed(whole) if not isinstance(alert, Exception)]

    def _look(self, *, is_last: bool) -> None:
        for alert in self._new():
            # What has cost little may cost more, which another line says.
            if key_of(alert) in self._known or alert.get("held") == SMALL:
                continue
            self._known.add(key_of(alert))
            if alert.get("cause") in ENDED:
                self._has_ended.set()
            if alert.get("held") is None:
                self._put(alert, sentence(Verdict.from_json(alert)))
            elif alert["held"] == RATE:
                self._held += 1
                self._newest = alert
        # No later alert will carry the count of those that were held back, so it is passed on alone.
        if is_last and self._held:
            self._put({**self._newest, "cause": MESSAGE, "level": WARNING, "evidence": held_back(self._held)})
        waiting, self._waiting = self._waiting, []
        for alert, tries in waiting:
            try:
                self._pass_on(alert)
            except Exception as error:
                # The user's function may raise anything; only a server is tried again, by later looks.
                if isinstance(self._on_alert, str) and tries + 1 < TRIES:
                    self._waiting.append((alert, tries + 1))
                else:
                    self._count(error)

    def _put(self, alert: Alert, text: str = "") -> None:
        """Pass an alert on with its text, and how many were held back before it."""
        said = [text] if text else []
        if self._held:
            said.append(held_back(self._held))
            self._held = 0
        more = {"run_dir": str(self._run_dir.base), "text": f"distsummary: {' '.join(said)}"}
        self._waiting.append(({**alert, **more}, 0))

    def _pass_on(self, alert: Alert) -> None:
        if isinstance(self._on_alert, str):
            send(self._on_alert, alert)
        else:
            self._on_alert(alert)

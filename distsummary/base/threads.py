"""DaemonThread: does its work in the thread that joins it, where no thread can be started.

Python 3.12 starts none once its main thread has ended, which is when a run that no one closed is closed.
"""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class DaemonThread(threading.Thread):
    """A thread that does not keep its process alive; if it cannot be started, `join` calls `run`.

    Attributes:
        is_deferred: whether `join` has still to call it.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self.is_deferred = False

    def start(self) -> None:
        """Start the thread, if the system and the interpreter allow another one."""
        try:
            super().start()
        except RuntimeError as error:
            self.is_deferred = True
            if threading.main_thread().is_alive():
                logger.warning("%s: %s; its work is done when the run is closed", self.name, error)

    def is_alive(self) -> bool:
        """Whether there is still work to do."""
        return self.is_deferred or super().is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the work, no longer than `timeout` seconds; without a thread, do it now."""
        if self.is_deferred:
            self.is_deferred = False
            self.run()
        elif self.ident is not None:
            super().join(timeout)

"""Make the log durable: one sync for all callers that wait for it (store behaviour 5)."""

from __future__ import annotations

import threading
import time

from store_core.engine.log import LogWriter


class Flusher:
    """Syncs the log. ``durable_phy_offset``: every record before it is on the disk. Several threads may call it."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._changed = threading.Condition()
        self._syncing = False
        self.durable_phy_offset = log.end_phy_offset
        self.syncs = 0

    def make_durable(self, phy_offset: int, timeout_seconds: float) -> bool:
        """Return True once every record before an offset is durable, False if another caller's sync takes longer than allowed.

        The first of several callers syncs for all that was written by then; the others wait for it. Raises OSError.
        """
        last = time.monotonic() + timeout_seconds
        with self._changed:
            while self._syncing and self.durable_phy_offset < phy_offset:
                if not self._changed.wait(max(last - time.monotonic(), 0)):
                    return self.durable_phy_offset >= phy_offset
            if self.durable_phy_offset >= phy_offset:
                return True
            self._syncing = True
        durable = 0
        try:
            durable = self._log.sync()
        finally:
            with self._changed:
                self._syncing = False
                self.syncs += 1
                self.durable_phy_offset = max(self.durable_phy_offset, durable)
                self._changed.notify_all()
        return True

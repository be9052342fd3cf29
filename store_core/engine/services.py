"""The threads of an open store: dispatch, asynchronous flush, checkpoint, the next segment (store behaviour 5, 6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from store_core.errors import StoreError

if TYPE_CHECKING:
    from store_core.engine.live_store import LiveStore

# A broker's defaults.
_DISPATCH_SECONDS: Final = 0.005
_FLUSH_SECONDS: Final = 0.5
_LEAST_FLUSH_BYTES: Final = 4 * 4096
_THOROUGH_FLUSH_SECONDS: Final = 10.0
_CHECKPOINT_SECONDS: Final = 1.0


class Services:
    """Context manager: two threads run inside it. An error that ends a thread is the store's: its next write is refused."""

    def __init__(self, live: LiveStore) -> None:
        self._live = live
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"rmqctl {loop.__name__}", daemon=True)
            for loop in (self.dispatch, self.flush)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._live.dispatch_wanted.set()
        for thread in self._threads:
            thread.join()

    def _run(self, loop: Callable[[], None]) -> None:
        with suppress(StoreError):
            loop()

    def dispatch(self) -> None:
        """Dispatch a little later than the first put of a run, so that a run has several records."""
        while not self._stopped.is_set():
            self._live.dispatch_wanted.wait()
            self._live.dispatch_wanted.clear()
            self._stopped.wait(_DISPATCH_SECONDS)
            self._live.dispatch(everything=False)

    def flush(self) -> None:
        """Sync what a broker's flush service would, keep the checkpoint at most a second old, and make the next segment."""
        live = self._live
        thorough = saved = time.monotonic()
        while not self._stopped.wait(_FLUSH_SECONDS):
            now = time.monotonic()
            if live.options.flush == "async":
                waits_bytes = live.log.end_phy_offset - live.durable_phy_offset
                if waits_bytes >= _LEAST_FLUSH_BYTES or now - thorough >= _THOROUGH_FLUSH_SECONDS:
                    live.make_durable()
                    thorough = now
            if now - saved >= _CHECKPOINT_SECONDS:
                live.save_checkpoint()
                saved = now
            live.make_segment_ahead()

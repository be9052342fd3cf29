"""Run a store without a broker: put, batches, transactions and reads, with the threads, statuses and files of a release."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from store_core.codec.record import Message
from store_core.engine import put as putting
from store_core.engine import transactions
from store_core.engine.live_store import LiveStore, WriteOptions, open_for_writing
from store_core.engine.message import NewMessage, PutResult
from store_core.engine.progress import commit_offset
from store_core.read.pull import open_queue
from store_core.read.pull import pull as pull_messages
from store_core.recovery.apply.apply import Applied, apply
from store_core.recovery.recover import recover as recover_plan
from store_core.storage.settings import Settings, load_settings
from store_core.storage.store import Store

Recover = Literal["broker", "keep"]


class MessageStore:
    """An open store, made by ``open``. Several threads may use it.

    ``recovered`` is the change that recovered the store at opening, which `rmqctl undo` takes back; None where there was nothing to recover.
    """

    def __init__(self, live: LiveStore, recovered: Applied | None) -> None:
        self._live = live
        self.recovered = recovered
        self._reading = threading.Lock()
        self._view: Store | None = None
        self._view_changes = 0

    @classmethod
    @contextmanager
    def open(
        cls,
        root: Path | str,
        release: str | None = None,
        *,
        recover: Recover | None = "broker",
        options: WriteOptions | None = None,
        settings: Settings | None = None,
    ) -> Iterator[Self]:
        """Yield the store with its lock held and its threads running; on leaving, everything is durable and ``abort`` is gone.

        Args:
            release: the release to imitate; None: the newest that may have written the store.
            recover: what to do with a store that was not stopped cleanly: what the release would do at its start, or `rmqctl recover`'s policy
                ``keep``; None refuses it.
            settings: of the broker; None: those that the store shows.

        Raises:
            NotAStoreError, StoreInUseError, UsageError, FailedError: as ``open_for_writing``.
        """
        settings = settings or load_settings(root=Path(root), broker_version=release)
        recovered = _recovered(settings, recover) if recover is not None else None
        with open_for_writing(settings, replace(options or WriteOptions(), with_threads=True)) as live:
            store = cls(live, recovered)
            try:
                yield store
            finally:
                store._close_view()

    @property
    def durable_phy_offset(self) -> int:
        """The offset before which every record is on the disk."""
        return self._live.durable_phy_offset

    @property
    def syncs(self) -> int:
        """The number of syncs of the log since it was opened."""
        return self._live.flusher.syncs

    @property
    def end_phy_offset(self) -> int:
        """The end of the log."""
        return self._live.log.end_phy_offset

    def put(self, message: NewMessage, *, create_topic: bool = False, half: bool = False) -> PutResult:
        """Store a message and return the broker's answer; see ``engine.put.put``."""
        return putting.put(self._live, message, create_topic=create_topic, half=half)

    def put_batch(self, messages: Sequence[NewMessage], *, create_topic: bool = False) -> list[PutResult]:
        """Store messages with one write and one sync, and return an answer for each; see ``engine.put.put_all``."""
        return putting.put_all(self._live, messages, create_topic=create_topic)

    def commit(self, half_phy_offset: int) -> PutResult:
        """Deliver a half message; see ``engine.transactions.commit``."""
        return transactions.commit(self._live, half_phy_offset)

    def rollback(self, half_phy_offset: int) -> PutResult:
        """Roll a half message back; see ``engine.transactions.rollback``."""
        return transactions.rollback(self._live, half_phy_offset)

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the progress of a consumer group; see ``engine.progress.commit_offset``."""
        commit_offset(self._live, group, topic, queue_id, queue_offset)

    def get(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return the message with a queue offset, also one that was put a moment ago; None where there is none."""
        with self.reading() as store:
            found = pull_messages(open_queue(store, topic, queue_id), topic, queue_id, queue_offset, limit=1)
            return found.messages[0] if found.messages else None

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Yield the store as it is now, for ``read``'s calls; what was put before is dispatched. One thread at a time."""
        with self._reading:
            self._live.refuse_closed()
            self._live.dispatch()
            changes = self._live.files.changes
            if self._view is None or changes != self._view_changes:
                self._close_view()
                self._view = Store.open(self._live.store.root, self._live.store.settings)
                self._view_changes = changes
            yield self._view

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None


def _recovered(settings: Settings, policy: Recover) -> Applied | None:
    """Recover a store that has ``abort``. Raises FailedError where the release would not start on it."""
    with Store.open(settings.root, settings) as store:
        if not store.aborted:
            return None
        plan = recover_plan(store, policy).plan
    return apply(plan, settings.root, writable_roots=settings.writable_outside_paths())

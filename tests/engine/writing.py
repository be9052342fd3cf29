"""Copies of golden stores that tests write to, and what must hold of them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from store_core.check.store import batch_topics, check_store
from store_core.engine.live_store import LiveStore, WriteOptions, open_for_writing
from store_core.engine.message import NewMessage, PutResult
from store_core.engine.put import put
from store_core.read.pull import open_queue
from store_core.read.pull import pull as pull_messages
from store_core.recovery.derived_files import Derivation
from store_core.storage.config_files import read_config
from store_core.storage.settings import Settings, load_settings
from store_core.storage.store import Store
from tests import stores


@dataclass(frozen=True)
class Written:
    """A writable copy of a golden store with the settings of the broker that wrote it."""

    name: str
    root: Path
    settings: Settings

    @classmethod
    def of(cls, name: str, root: Path, **changes: str) -> Written:
        values = {key: str(value) for key, value in stores.truth(name)["properties"].items()} | changes
        return cls(name, root, load_settings(root=root, values=values))

    def store(self) -> Store:
        return Store.open(self.root, self.settings)

    @contextmanager
    def live(self, **options: Any) -> Iterator[LiveStore]:
        with open_for_writing(self.settings, WriteOptions(**options)) as live:
            yield live

    def put(self, topic: str, body: bytes = b"body", queue_id: int = 0, **properties: str) -> PutResult:
        """One message, in a process's life of its own."""
        with self.live() as live:
            return put(live, NewMessage(topic, body, queue_id, properties))

    def problems(self) -> list[str]:
        """Findings of severity warning or error."""
        with self.store() as store:
            return [f"{f.code} {f.message}" for f in check_store(store).findings if f.severity != "info"]

    def not_as_derived(self) -> list[str]:
        """Queue and index files that are not byte for byte what the log says."""
        with self.store() as store, TemporaryDirectory() as scratch:
            topics = batch_topics(read_config(self.root))
            with Derivation(store, store, Path(scratch), batch_topics=topics) as derivation:
                changes = derivation.queue_changes(), derivation.index_changes()
                return [path for c in changes for path in [*(new.path for new in c.new), *c.removed]]

    def bodies(self, topic: str, queue_id: int, offset: int) -> list[bytes]:
        """Bodies that a consumer gets from an offset on."""
        with self.store() as store:
            queue = open_queue(store, topic, queue_id)
            return [m.body for m in pull_messages(queue, topic, queue_id, offset, limit=1000).messages]

    def end_of(self, topic: str, queue_id: int) -> int:
        with self.store() as store:
            queue = open_queue(store, topic, queue_id)
            return 0 if queue is None else queue.max_offset


Writable = Callable[..., Written]

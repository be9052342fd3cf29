"""Open a store for writing: a record goes to the log, then to queues, index and checkpoint, as in a broker.

From the first record until everything is durable ``abort`` exists, as while a broker runs. So the next program that opens the store detects a kill in
between, and `rmqctl recover` finishes the write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from store_core.broker.versions import Version, behaviour_of
from store_core.codec.hosts import host_bytes
from store_core.codec.message_id import format_offset_message_id
from store_core.codec.properties import DELAY, TAGS
from store_core.codec.record import encode_record
from store_core.codec.tags import index_texts, tags_code
from store_core.derive.delay import DelayTable, delay_table
from store_core.engine.checkpoint import CheckpointWriter
from store_core.engine.cluster import cluster_of
from store_core.engine.files import LiveFiles
from store_core.engine.index import IndexWriter
from store_core.engine.log import LogWriter
from store_core.engine.queues import NewEntry, QueueWriter, open_queue_writer
from store_core.engine.record import NewRecord, Stored
from store_core.engine.rules import PutRules, put_rules, writing_version
from store_core.engine.signals import uninterrupted
from store_core.engine.tail import RECOVER_FIRST, find_tail
from store_core.errors import FailedError, UsageError
from store_core.layout import paths, record
from store_core.read.log_files import refuse_missing_log, refuse_partial_log
from store_core.recovery.apply.finish_interrupted import Settled, changing, settle
from store_core.recovery.guards import refuse_dledger
from store_core.storage.config_files import ConfigFiles, read_config
from store_core.storage.failure import failed
from store_core.storage.settings import Settings
from store_core.storage.store import QueueKey, Store
from store_core.storage.syscalls import FileOps
from store_core.storage.writer import Writer

Flush = Literal["sync", "async"]
DEFAULT_PORT: Final = 10911
_LARGEST_PORT: Final = (1 << 16) - 1
_LOOPBACK: Final = f"127.0.0.1:{DEFAULT_PORT}"
_BATCH_QUEUE: Final = ("queue.type", "BatchCQ")
_NO_ENTRY: Final = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing.

    * ``flush`` sync: a record is on the disk when its put returns; async: when the store is closed.
    * ``store_host`` is ``a.b.c.d:port`` or ``[v6]:port``; None: the configuration's, else that of the newest record.
    * ``cluster`` is the broker's; None: the configuration's, else that of the newest records, else a broker's default.
    * ``now_ms`` is the clock.
    * ``ops`` are the file operations, for tests.
    """

    flush: Flush = "sync"
    store_host: str | None = None
    cluster: str | None = None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ops: FileOps | None = None


@contextmanager
def open_for_writing(
    settings: Settings,
    options: WriteOptions | None = None,
    on_settled: Callable[[Settled], None] = lambda settled: None,
) -> Iterator[LiveStore]:
    """Yield the store with its lock held, for as long as the context lasts.

    Opening only changes the store if an earlier change was interrupted: that is finished or undone, and ``on_settled`` gets the result.

    Raises:
        NotAStoreError: The root is no store.
        StoreInUseError: A broker or another rmqctl works on the store.
        UsageError: The log is outside the root and was not named.
        FailedError: The store was not stopped cleanly, or its end is damaged.
    """
    Store.open(settings.root, settings).close()
    options = options or WriteOptions()
    with changing(settings.root, settings.writable_outside_paths(), None, options.ops) as (writer, lock):
        settle(writer, lock, on_settled)
        with Store.open(settings.root, settings) as store:
            refuse_dledger(store)
            refuse_missing_log(store)
            refuse_partial_log(store)
            if store.aborted:
                raise FailedError(
                    "the store was not stopped cleanly", path=str(store.root / paths.ABORT), to_do=RECOVER_FIRST
                )
            live = LiveStore(store, writer, options)
            try:
                yield live
            finally:
                live.close()


class LiveStore:
    """An open store, made by ``open_for_writing``. ``rules`` are those of ``version``, the release to imitate.

    ``store`` is the store as listed at opening; it lacks files that were made since.
    """

    def __init__(self, store: Store, writer: Writer, options: WriteOptions) -> None:
        self.store = store
        self.files = LiveFiles(writer)
        self.version: Version = writing_version(store, store.settings)
        self.rules: PutRules = put_rules(self.version)
        self.config: ConfigFiles = read_config(store.root)
        self._options = options
        self._tail = find_tail(store, behaviour_of(self.version))
        self._log = LogWriter(store, self.files, self._tail.end_phy_offset, store.settings.writable_commitlog_paths)
        self._last_store_ms = self._tail.last_store_timestamp_ms
        self._queues: dict[QueueKey, QueueWriter] = {}
        self._began = False
        self._half_done = False
        self._unsure_phy_offset: int | None = None  # of a record that may be in the log in part

    # -- input of a message's checks ------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the clock's time, but never one before the newest record: store times do not go back."""
        return max(self._options.now_ms(), self._last_store_ms)

    @property
    def segment_size_bytes(self) -> int:
        return self._log.segment_size_bytes

    @property
    def largest_record_bytes(self) -> int:
        """The size of the largest record that fits into a segment."""
        return self._log.largest_record_bytes

    @cached_property
    def store_host(self) -> bytes:
        """The broker's address as stored in records. Raises UsageError for one that cannot be stored."""
        settings = self.store.settings
        text, last = self._options.store_host, self._tail.last
        if text is None and (address := settings.value("brokerIP1").strip()):
            port = settings.value("listenPort", str(DEFAULT_PORT)).strip()
            text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        if text is None and last is not None:
            return last.raw_store_host
        return self.host(text or _LOOPBACK)

    @cached_property
    def cluster(self) -> str | None:
        """The cluster that the broker adds to messages of producers; None where it adds none."""
        return cluster_of(self.store, self.rules, self._tail.newest, self._options.cluster)

    def host(self, text: str) -> bytes:
        """Return a host as stored in records. Raises UsageError for one that cannot be stored."""
        try:
            raw = host_bytes(text)
        except ValueError as error:
            raise UsageError(str(error), to_do="give a.b.c.d:port or [v6]:port") from error
        if (
            int.from_bytes(raw[-record.HOST_PORT_SIZE_BYTES :], "big") > _LARGEST_PORT
        ):  # no client could decode the record
            raise UsageError(f"{text!r} has a port beyond {_LARGEST_PORT}", to_do="give a.b.c.d:port or [v6]:port")
        if len(raw) == record.HOST_V6_SIZE_BYTES and not self.rules.v6_hosts:
            raise UsageError(f"broker {self.version} knows no IPv6 hosts", to_do="give an IPv4 address")
        return raw

    @cached_property
    def delays(self) -> DelayTable:
        """The delay of each level."""
        return delay_table(self.store)

    def is_batch(self, topic: str) -> bool:
        """Return True if a topic has batch queues."""
        configured = self.config.topic(topic)
        name, value = _BATCH_QUEUE
        if configured is not None:
            return bool(configured["attributes"].get(name) == value)
        return any(key.topic == topic for key in self.store.batch_queues)

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets. Raises FailedError where the queue's end is damaged."""
        return self._queue(QueueKey(topic, queue_id)).next_queue_offset

    def has_room(self, size_bytes: int) -> bool:
        """Return True if the disks have room for so many more bytes."""
        folders = (self.store.root, *self.store.settings.writable_commitlog_paths)
        return all(self.files.writer.ops.free_bytes(path) >= size_bytes for path in folders if path.is_dir())

    def encoded(self, new: NewRecord, queue_offset: int = 0, phy_offset: int = 0, store_ms: int = 0) -> bytes:
        """Return the record's bytes. Raises ValueError where a part is too long for its field."""
        return encode_record(
            topic=new.topic,
            body=new.body,
            properties=new.properties,
            queue_id=new.queue_id,
            queue_offset=queue_offset,
            phy_offset=phy_offset,
            born_timestamp_ms=new.born_timestamp_ms,
            born_host=new.born_host,
            store_timestamp_ms=store_ms,
            store_host=self.store_host,
            flag=new.flag,
            sys_flag=new.sys_flag,
            reconsume_times=new.reconsume_times,
            prepared_transaction_offset=new.prepared_transaction_offset,
            final_separator=self.rules.final_separator,
            property_crc=self.rules.property_crc and self.store.settings.flag("enabledAppendPropCRC"),
        )

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, new: NewRecord) -> Stored:
        """Store a record and dispatch it. Raises FailedError where the system refuses; the store then needs recover."""
        key = QueueKey(new.topic, new.queue_id)
        queued = new.transaction not in _NO_ENTRY
        queue_offset = self._queue(key).next_queue_offset if queued else 0
        _ = self._index, self._checkpoint  # their faults must be raised before the first byte is written
        if new.topic == paths.SCHEDULE_TOPIC:
            _ = self.delays
        size = len(self.encoded(new))
        with uninterrupted(), self._writing():
            self._begin()
            phy_offset = self._log.make_room(size)
            store_ms = self._last_store_ms = self.now_ms()
            self._unsure_phy_offset = phy_offset
            self._log.write(phy_offset, self.encoded(new, queue_offset, phy_offset, store_ms))
            if self._options.flush == "sync":
                self._log.sync()
            if queued:
                self._queue(key).append(
                    NewEntry(queue_offset, phy_offset, size, self._tags_code(new, store_ms), store_ms)
                )
            if self._index is not None:
                has_keys = new.transaction != record.TRANSACTION_ROLLBACK
                texts = index_texts(new.topic, new.properties, self._index.with_tags) if has_keys else []
                self._index.add(texts, phy_offset, store_ms, self._options.now_ms())
            self._checkpoint.move_on(
                log_ms=store_ms,
                queues_ms=store_ms if queued else 0,
                queues_phy_offset=phy_offset,
                index_ms=self._index.full_timestamp_ms if self._index is not None else 0,
            )
            self._unsure_phy_offset = None
        message_id = format_offset_message_id(self.store_host, phy_offset)
        return Stored(new.topic, new.queue_id, queue_offset, phy_offset, size, store_ms, message_id)

    @contextmanager
    def listed(self) -> Iterator[Store]:
        """Yield the store as it is now, with the segments and queues made since it was opened."""
        with Store.open(self.store.root, self.store.settings) as store:
            yield store

    def replace_config(self, name: str, text: str) -> None:
        """Replace a config file's text and keep the old text as its ``.bak``. Raises FailedError.

        A kill in between leaves the whole old or new text under the file's name.
        """
        path = self.store.root / name
        existing = next((file for file in self.config.files if file.name == name), None)
        if existing is not None and not existing.loads:
            raise FailedError("the file and its .bak are both damaged", path=str(path), to_do="put a good one there")
        with uninterrupted(), self._writing("the file is as it was, or as it was to be"):
            if existing is not None and existing.source == "main":
                self.files.replace(name + paths.BAK_SUFFIX, path.read_bytes())
            self.files.replace(name, text.encode())
            self.files.sync()
        self.config = read_config(self.store.root)

    def close(self) -> None:
        """Make everything durable and remove ``abort``; do nothing after a write that failed."""
        if not self._began or self._half_done:
            return
        with uninterrupted(), self._writing("all that was put is stored"):
            self.files.sync()
            self._checkpoint.queues_flushed()
            self.files.sync()
            self.files.remove(paths.ABORT)
            self.files.sync()
        self._began = False

    @contextmanager
    def _writing(self, otherwise: str = "it was not stored") -> Iterator[None]:
        """Raise FailedError for a failed write and keep ``abort``, if it exists. ``otherwise``: the state to report if no record is in doubt."""
        if self._half_done:
            raise FailedError("an earlier write failed", path=str(self.store.root), to_do=RECOVER_FIRST)
        self._half_done = True
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.store.root)
            raise self._failed(error, otherwise) from error
        self._half_done = False

    def _failed(self, error: OSError, otherwise: str) -> FailedError:
        at = self._unsure_phy_offset
        then = "run `rmqctl recover`" if self.store.aborted else "run the command again"
        if at is None:
            return failed(error, "cannot write", state=otherwise, then=then)
        then += f", then look with `rmqctl get {at}` before you send it again"
        failure = failed(error, "cannot write", state=f"it may be stored, at {at}", then=then)
        failure.phy_offset = at
        return failure

    def _begin(self) -> None:
        if self._began:
            return
        self._began = True
        process_id = str(os.getpid()).encode() if self.rules.abort_tells_process else b""
        self.files.make_file(paths.ABORT, data=process_id)
        if self._options.flush == "sync":
            self.files.sync_file(paths.ABORT)

    def _queue(self, key: QueueKey) -> QueueWriter:
        if key not in self._queues:
            self._queues[key] = open_queue_writer(self.store, self.files, key, batch=self.is_batch(key.topic))
        return self._queues[key]

    @cached_property
    def _index(self) -> IndexWriter | None:
        if not self.store.settings.flag("messageIndexEnable", True):
            return None
        return IndexWriter(self.store, self.files, self._log.end_phy_offset, tags_by_default=self.rules.index_tags)

    @cached_property
    def _checkpoint(self) -> CheckpointWriter:
        return CheckpointWriter(
            self.store,
            self.files,
            may_make=self._tail.last is None,
            keeps_queue_offset=self.rules.keeps_queue_offset,
        )

    def _tags_code(self, new: NewRecord, store_ms: int) -> int:
        """Return the delivery time of a delayed message, else the hash of its tag (6.2)."""
        level = new.properties.get(DELAY, "")
        if new.topic == paths.SCHEDULE_TOPIC and level.isdecimal() and int(level) > 0:
            return store_ms + self.delays.delay_ms(int(level))
        return tags_code(new.properties.get(TAGS))

"""Open a store for writing: a record goes to the log, then to queues, index and checkpoint, as in a broker.

From the first record until everything is durable ``abort`` exists, as while a broker runs. So the next program that opens the store detects a kill in
between, and `rmqctl recover` finishes the write.

Order of locks: that of the put, then the dispatcher's, then the flusher's. No thread waits for the disk while it holds the put's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Final, Literal

from store_core.broker.versions import Version, behaviour_of
from store_core.codec.config_parse import Shown
from store_core.codec.hosts import host_bytes
from store_core.codec.properties import DELAY
from store_core.codec.record import placed_record
from store_core.derive.delay import DelayTable, delay_table
from store_core.engine.checkpoint import CheckpointWriter
from store_core.engine.cluster import cluster_of
from store_core.engine.dispatch import Dispatcher, Row
from store_core.engine.files import LiveFiles
from store_core.engine.flush import Flusher
from store_core.engine.index import IndexWriter
from store_core.engine.log import LogWriter
from store_core.engine.queues import NewEntry, QueueWriter, open_queue_writer
from store_core.engine.record import NewRecord, Stored
from store_core.engine.rules import PutRules, put_rules, writing_version
from store_core.engine.services import Services
from store_core.engine.signals import SignalGuard
from store_core.engine.tail import RECOVER_FIRST, find_tail
from store_core.errors import FailedError, UsageError
from store_core.kernel.encode import Encoded, EncodeRules, Numbers, encode_record
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
_KNOWN_HOSTS: Final = 1024
_SYNC_TIMEOUT_MS: Final = 5000  # a broker's syncFlushTimeout
_NO_ENTRY: Final = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing.

    * ``flush`` sync: a record is on the disk when its put returns; async: some time later, at the latest when the store is closed.
    * ``with_threads``: dispatch, asynchronous flush, checkpoint and the next segment are left to threads, as in a broker; else each put dispatches.
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
    with_threads: bool = False


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
                with Services(live) if options.with_threads else nullcontext():
                    yield live
            finally:
                live.close()
            live.refuse_after_failure()


class LiveStore:
    """An open store, made by ``open_for_writing``. ``rules`` are those of ``version``, the release to imitate.

    ``store`` is the store as listed at opening; it lacks files that were made since. Several threads may append.
    """

    def __init__(self, store: Store, writer: Writer, options: WriteOptions) -> None:
        self.store = store
        self.files = LiveFiles(writer)
        self.version: Version = writing_version(store, store.settings)
        self.rules: PutRules = put_rules(self.version)
        self.config: ConfigFiles = read_config(store.root)
        self.options = options
        self._tail = find_tail(store, behaviour_of(self.version))
        self.log = LogWriter(store, self.files, self._tail.end_phy_offset, store.settings.writable_commitlog_paths)
        self.flusher = Flusher(self.log)
        self.dispatch_wanted = threading.Event()
        self.lock = threading.RLock()  # offsets, store times and bytes of the log grow together under it
        self._last_store_ms = self._tail.last_store_timestamp_ms
        self._queues: dict[QueueKey, QueueWriter] = {}
        self._next_queue_offset: dict[QueueKey, int] = {}
        self._topics: dict[str, Shown | None] = {}
        self.sound_topics: set[str] = set()  # those that passed the checks of a topic
        self._hosts: dict[str, bytes] = {}
        self._free_bytes = 0  # a lower bound, from the last look at the disks
        self._began = False
        self._failed_write = False
        self._failure = ""
        self._is_closed = False
        self._signals = SignalGuard()
        self._signals.install()
        self._sync_timeout_seconds = int(store.settings.value("syncFlushTimeout", str(_SYNC_TIMEOUT_MS))) / 1000
        self._encode_rules = EncodeRules(
            final_separator=self.rules.final_separator,
            property_crc=self.rules.property_crc and store.settings.flag("enabledAppendPropCRC"),
            property_map_size=self.rules.property_map_size,
            index_tags=False,
        )

    # -- input of a message's checks ------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the clock's time, but never one before the newest record: store times do not go back."""
        return max(self.options.now_ms(), self._last_store_ms)

    @property
    def segment_size_bytes(self) -> int:
        return self.log.segment_size_bytes

    @property
    def largest_record_bytes(self) -> int:
        """The size of the largest record that fits into a segment."""
        return self.log.largest_record_bytes

    @cached_property
    def longest_body_bytes(self) -> int:
        """The broker's maxMessageSize."""
        return self.store.settings.max_message_size_bytes or record.DEFAULT_MAX_MESSAGE_SIZE_BYTES

    @property
    def has_failed(self) -> bool:
        """True once a write has failed: nothing more is written."""
        return self._failed_write

    @property
    def durable_phy_offset(self) -> int:
        """The offset before which every record is on the disk."""
        return self.flusher.durable_phy_offset

    @cached_property
    def store_host(self) -> bytes:
        """The broker's address as stored in records. Raises UsageError for one that cannot be stored."""
        settings = self.store.settings
        text, last = self.options.store_host, self._tail.last
        if text is None and (address := settings.value("brokerIP1").strip()):
            port = settings.value("listenPort", str(DEFAULT_PORT)).strip()
            text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        if text is None and last is not None:
            return last.raw_store_host
        return self.host(text or _LOOPBACK)

    @cached_property
    def cluster(self) -> str | None:
        """The cluster that the broker adds to messages of producers; None where it adds none."""
        return cluster_of(self.store, self.rules, self._tail.newest, self.options.cluster)

    def host(self, text: str) -> bytes:
        """Return a host as stored in records. Raises UsageError for one that cannot be stored."""
        if (known := self._hosts.get(text)) is not None:
            return known
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
        if len(self._hosts) >= _KNOWN_HOSTS:
            self._hosts.clear()
        self._hosts[text] = raw
        return raw

    @cached_property
    def delays(self) -> DelayTable:
        """The delay of each level."""
        return delay_table(self.store)

    def topic(self, name: str) -> Shown | None:
        """Return the configuration of a topic, None without one."""
        if name not in self._topics:
            self._topics[name] = self.config.topic(name)
        return self._topics[name]

    def is_batch(self, topic: str) -> bool:
        """Return True if a topic has batch queues."""
        configured = self.topic(topic)
        name, value = _BATCH_QUEUE
        if configured is not None:
            return bool(configured["attributes"].get(name) == value)
        return any(key.topic == topic for key in self.store.batch_queues)

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets. Raises FailedError where the queue's end is damaged."""
        with self.lock:
            return self._open_queue(QueueKey(topic, queue_id))

    def has_room(self, size_bytes: int) -> bool:
        """Return True if the disks have room for so many more bytes; they are looked at again when the room known of is used up."""
        if size_bytes > self._free_bytes:
            folders = (self.store.root, *self.store.settings.writable_commitlog_paths)
            free = (self.files.writer.ops.free_bytes(path) for path in folders if path.is_dir())
            self._free_bytes = min(free, default=size_bytes)
        return self._free_bytes >= size_bytes

    def encoded(self, new: NewRecord) -> Encoded:
        """Return the record at place 0. Raises ValueError where a part is too long for its field."""
        _ = self._dispatcher  # the index decides about tags
        numbers = (
            new.queue_id,
            new.flag,
            0,
            0,
            new.sys_flag,
            new.born_timestamp_ms,
            0,
            new.reconsume_times,
            new.prepared_transaction_offset,
        )
        rules = self._encode_rules._replace(property_map_size=0) if new.is_ordered else self._encode_rules
        return encode_record(
            new.topic, new.body, new.properties, Numbers._make(numbers), new.born_host, self.store_host, rules
        )

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, new: NewRecord, encoded: Encoded | None = None) -> Stored:
        """Store a record and dispatch it. Raises FailedError where the system refuses; the store then needs recover.

        ``encoded``: the record at any place, if the caller has it.
        """
        (stored,) = self.append_all([(new, encoded or self.encoded(new))])
        return stored

    def append_all(self, records: Sequence[tuple[NewRecord, Encoded]]) -> list[Stored]:
        """Store records, each given with its bytes at any place; all are durable, if that is asked for, before this returns.

        Raises FailedError as ``append``. ``is_durable`` of the results is False if another caller's sync took too long.
        """
        self.refuse_closed()
        with self._signals:
            writing = _Writing(self)
            with self.lock:
                self.refuse_closed()
                self._prepare(records)
                with writing:
                    if self._began:
                        writing.unsure_phy_offset = self.log.end_phy_offset
                    else:
                        self._begin()
                    writing.unsure_phy_offset = self.log.make_room(len(records[0][1].data))
                    stored = self._write_all(records)
                end = self.log.end_phy_offset
            with writing:
                if self.options.flush == "sync" and not self.flusher.make_durable(end, self._sync_timeout_seconds):
                    stored = [one._replace(is_durable=False) for one in stored]
                if not self.options.with_threads:
                    self._dispatcher.run(end)
                elif not self.dispatch_wanted.is_set():
                    self.dispatch_wanted.set()
        return stored

    def dispatch(self, *, everything: bool = True) -> None:
        """Dispatch what was stored: all of it, or under synchronous flush what is durable. Raises FailedError."""
        limit = self.flusher.durable_phy_offset if self.options.flush == "sync" else self.log.end_phy_offset
        if self._began:
            with _Writing(self):
                self._dispatcher.run(limit, everything=everything)

    def make_durable(self) -> None:
        """Make everything durable that was stored by now. Raises FailedError."""
        with _Writing(self, otherwise="what was put may be stored"):
            self.flusher.make_durable(self.log.end_phy_offset, self._sync_timeout_seconds)

    def make_segment_ahead(self) -> None:
        """Make the next segment if there is room for it, so that no put waits for it. Raises FailedError."""
        if self._began and self.has_room(2 * self.segment_size_bytes):
            with _Writing(self, otherwise="all that was put is stored"):
                self.log.make_ahead()

    def save_checkpoint(self) -> None:
        """Make everything durable that was dispatched by now, then the checkpoint that names it. Raises FailedError."""
        if not self._began:
            return
        with _Writing(self, otherwise="all that was put is stored"):
            with self.lock:
                end, log_ms = self.log.end_phy_offset, self._last_store_ms
            self.flusher.make_durable(end, self._sync_timeout_seconds)
            self._dispatcher.run(self.flusher.durable_phy_offset)
            queued, full_ms = self._dispatcher.queued, self._index.full_timestamp_ms if self._index else 0
            self.files.sync()  # of the log, too: the record of ``queued`` may be newer than ``end``
            if self.flusher.durable_phy_offset >= end:
                self._checkpoint.save(
                    log_ms=log_ms,
                    queues_ms=queued.store_timestamp_ms if queued else 0,
                    queues_phy_offset=queued.phy_offset if queued else 0,
                    index_ms=full_ms,
                )

    @contextmanager
    def listed(self) -> Iterator[Store]:
        """Yield the store as it is now, with everything that was put, and the segments and queues made since it was opened."""
        self.dispatch()
        with Store.open(self.store.root, self.store.settings) as store:
            yield store

    def replace_config(self, name: str, text: str) -> None:
        """Replace a config file's text and keep the old text as its ``.bak``. Raises FailedError.

        A kill in between leaves the whole old or new text under the file's name.
        """
        self.refuse_closed()
        path = self.store.root / name
        existing = next((file for file in self.config.files if file.name == name), None)
        if existing is not None and not existing.loads:
            raise FailedError("the file and its .bak are both damaged", path=str(path), to_do="put a good one there")
        with self._signals, self.lock, _Writing(self, otherwise="the file is as it was, or as it was to be"):
            if existing is not None and existing.source == "main":
                self.files.replace(name + paths.BAK_SUFFIX, path.read_bytes())
            self.files.replace(name, text.encode())
            self.files.sync()
            self.config = read_config(self.store.root)
            self._topics.clear()
            self.sound_topics.clear()

    def close(self) -> None:
        """Make everything durable and remove ``abort``; do nothing after a write that failed."""
        with self.lock:  # who puts meanwhile has put, or is refused
            self._is_closed = True
        try:
            if self._began and not self._failed_write:
                with self._signals:
                    self.save_checkpoint()
                    with _Writing(self, otherwise="all that was put is stored"):
                        self.log.remove_unused()
                        self.files.sync()
                        self.files.remove(paths.ABORT)
                        self.files.sync()
                self._began = False
        finally:
            self._signals.remove()

    def _prepare(self, records: Iterable[tuple[NewRecord, Encoded]]) -> None:
        """Open what the records need: faults must be raised before the first byte is written."""
        for new, _ in records:
            if new.transaction not in _NO_ENTRY:
                self._open_queue(QueueKey(new.topic, new.queue_id))
            if new.topic == paths.SCHEDULE_TOPIC:
                _ = self.delays
        _ = self._checkpoint

    def _write_all(self, records: Sequence[tuple[NewRecord, Encoded]]) -> list[Stored]:
        """Write records to the log, those of one segment together, and list them for the dispatcher."""
        store_ms = self._last_store_ms = self.now_ms()
        stored: list[Stored] = []
        rows: list[Row] = []
        data: list[bytes] = []
        start = at = self.log.end_phy_offset
        for new, (unplaced, code, hashes) in records:
            size = len(unplaced)
            if size > self.log.largest_record_bytes - at % self.log.segment_size_bytes:
                if data:
                    self.log.write(start, b"".join(data))
                    data.clear()
                start = at = self.log.make_room(size)
            key = None if new.transaction in _NO_ENTRY else QueueKey(new.topic, new.queue_id)
            queue_offset = 0
            if key is not None:
                queue_offset = self._next_queue_offset[key]
                self._next_queue_offset[key] = queue_offset + 1
            data.append(
                placed_record(unplaced, queue_offset, at, store_ms, property_crc=self._encode_rules.property_crc)
            )
            rows.append(
                Row(key, NewEntry(queue_offset, at, size, self._tags_code(new, store_ms, code), store_ms), hashes)
            )
            stored.append(Stored(new.topic, new.queue_id, queue_offset, at, size, store_ms, self.store_host))
            at += size
            self._free_bytes -= size
        self.log.write(start, b"".join(data))
        for row in rows:
            self._dispatcher.add(row)
        return stored

    def refuse_after_failure(self) -> None:
        """Raise FailedError if a write has failed, in whichever thread."""
        if self._failed_write:
            what = f"an earlier write failed: {self._failure}"
            raise FailedError(what, path=str(self.store.root), to_do=RECOVER_FIRST)

    def refuse_closed(self) -> None:
        """Raise FailedError once the store is closed: its lock may be another program's by then."""
        if self._is_closed:
            raise FailedError("the store is closed", path=str(self.store.root), to_do="open it again")

    def failed(self, error: BaseException, at: int | None, otherwise: str) -> FailedError | None:
        """Refuse all later writes, and leave ``abort`` if it exists; return the error to raise for one of the system.

        ``at`` is the place of a record that may be in the log, ``otherwise`` the state to report if none is.
        """
        if not self._failed_write:
            self._failed_write, self._failure = True, str(error) or type(error).__name__
        if not isinstance(error, OSError):
            return None
        error.filename = error.filename or str(self.store.root)
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
        if self.options.flush == "sync":
            self.files.sync_file(paths.ABORT)

    def _open_queue(self, key: QueueKey) -> int:
        """Return the next queue offset of a queue, whose files are opened if they are not."""
        if key not in self._next_queue_offset:
            queue = open_queue_writer(self.store, self.files, key, batch=self.is_batch(key.topic))
            self._queues[key] = queue
            self._next_queue_offset[key] = queue.next_queue_offset
        return self._next_queue_offset[key]

    @cached_property
    def _dispatcher(self) -> Dispatcher:
        if self._index is not None:
            self._encode_rules = self._encode_rules._replace(index_tags=self._index.with_tags)
        return Dispatcher(self._queues.__getitem__, self._index, self.options.now_ms)

    @cached_property
    def _index(self) -> IndexWriter | None:
        if not self.store.settings.flag("messageIndexEnable", True):
            return None
        return IndexWriter(self.store, self.files, self.log.end_phy_offset, tags_by_default=self.rules.index_tags)

    @cached_property
    def _checkpoint(self) -> CheckpointWriter:
        return CheckpointWriter(
            self.store,
            self.files,
            may_make=self._tail.last is None,
            keeps_queue_offset=self.rules.keeps_queue_offset,
        )

    def _tags_code(self, new: NewRecord, store_ms: int, code: int) -> int:
        """Return the delivery time of a delayed message, else ``code``, the hash of its tag (6.2)."""
        if new.topic != paths.SCHEDULE_TOPIC:
            return code
        level = new.properties.get(DELAY, "")
        return store_ms + self.delays.delay_ms(int(level)) if level.isdecimal() and int(level) > 0 else code


class _Writing:
    """Context manager of a write: an error in it is the store's last, and one of the system becomes a FailedError.

    ``unsure_phy_offset``: the place of a record that may be in the log; ``otherwise``: the state to report while there is none.
    """

    __slots__ = ("_live", "_otherwise", "unsure_phy_offset")

    def __init__(self, live: LiveStore, otherwise: str = "it was not stored") -> None:
        self._live = live
        self._otherwise = otherwise
        self.unsure_phy_offset: int | None = None

    def __enter__(self) -> None:
        self._live.refuse_after_failure()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (failure := self._live.failed(error, self.unsure_phy_offset, self._otherwise)):
            raise failure from error

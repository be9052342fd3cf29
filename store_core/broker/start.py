"""Simulate a broker's start on a store, from loading to caught-up dispatch, without writing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.dispatch import QueueDispatcher
from store_core.broker.load import Loaded, batch_topics, load, loaded_queues, opening_fails
from store_core.broker.log_recovery import LogRecovery, LogRules, catch_up, recover_log
from store_core.broker.misnamed_queue_files import off_grid
from store_core.broker.pending_entries import EntrySpool
from store_core.broker.queue_recovery import QueueState
from store_core.closing import Closing
from store_core.codec.delay_levels import parse_delay_levels
from store_core.codec.lmq_topics import NoLists
from store_core.derive.delay import DelayTable
from store_core.derive.dispatch import DispatchRules, has_lmq
from store_core.errors import FailedError
from store_core.layout import paths, queue
from store_core.storage.remote_path import is_there

if TYPE_CHECKING:
    from store_core.broker.versions import Behaviour
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import QueueKey, Store


@dataclass(slots=True)
class Start(Closing):
    """The state in memory and on disk after a start. ``refusal``: why the broker does not start, "" if it does.

    A context manager, whose end removes the scratch file that its queues may use.
    """

    behaviour: Behaviour
    refusal: str
    loaded: Loaded
    log: LogRecovery = field(default_factory=LogRecovery)
    dispatcher: QueueDispatcher | None = None

    def close(self) -> None:
        """Discard the queues' entries."""
        if self.dispatcher is not None:
            self.dispatcher.close()

    @property
    def ends_cut(self) -> bool:
        """True if loading fails only after log and queues are recovered and cut."""
        return self.dispatcher is not None and bool(self.loaded.refusal) and not self.log.refusal

    @property
    def queues(self) -> list[QueueState]:
        """Every queue in order of topic and queue id, batch queues after the others."""
        if self.dispatcher is None:
            return []
        plain = sorted(self.dispatcher.queues.items())
        return [*(state for _, state in plain), *(state for _, state in sorted(self.dispatcher.batch_queues.items()))]


def start_broker(
    store: Store,
    behaviour: Behaviour,
    *,
    on_table: Callable[[FrameTable], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Start:
    """Simulate a start; read the log that the broker would scan and the queue files it reads.

    Args:
        on_table: gets every table of records that recovery accepts; plain records that are not dispatched come as one row.

    Raises:
        FailedError: the queues are in RocksDB, or a file cannot be read.
    """
    if store.queues_in_rocksdb:
        raise FailedError(
            "the queues are kept in a RocksDB database",
            path=str(store.root / store.queue_database),
            to_do="what a broker makes of such queues is not predicted",
        )
    loaded = load(store, behaviour)
    if not loaded.recovers:
        return Start(behaviour, loaded.refusal, loaded)
    dispatcher = _dispatcher(store, behaviour, loaded)
    for state in (*dispatcher.queues.values(), *dispatcher.batch_queues.values()):
        if refusal := state.recover():
            dispatcher.close()
            return Start(behaviour, refusal, loaded)
    rules = LogRules.of(store, behaviour)
    log = recover_log(store, loaded, rules, dispatcher, on_table=on_table, on_progress=on_progress)
    if not log.refusal:
        log.refusal = _indexing_fails(store, loaded) or _correct_min(dispatcher, log)
    if loaded.refusal:
        return Start(behaviour, loaded.refusal, loaded, log, dispatcher)
    if not log.refusal and rules.catches_up:
        catch_up(store, log, rules, dispatcher)
        log.refusal = log.refusal or _indexing_fails(store, loaded) or _correct_min(dispatcher, log)
    if dispatcher.failed:
        log.notes.append(
            f"{dispatcher.failed}: a broker tries for up to a minute to make it, then no queue gets an entry until its next start,"
            " and it takes no messages"
        )
    if not log.refusal and behaviour.abort_tells_process:
        log.refusal = opening_fails(store, paths.ABORT) or opening_fails(store, paths.ABORT_BAK)
    return Start(behaviour, log.refusal, loaded, log, dispatcher)


def _indexing_fails(store: Store, loaded: Loaded) -> str:
    """Return why the first dispatched record ends the start, or "": ``index`` is not a folder, but an index file is needed."""
    if not loaded.index.files or (store.root / paths.INDEX).is_dir() or not is_there(store.root / paths.INDEX):
        return ""
    return f"{paths.INDEX} is no folder, and no index file can be made in it (IllegalMonitorStateException)"


def _correct_min(dispatcher: QueueDispatcher, log: LogRecovery) -> str:
    """Find every queue's min; return why a queue ends the start, or ""."""
    for state in (*dispatcher.queues.values(), *dispatcher.batch_queues.values()):
        if refusal := state.correct_min(log.min_phy_offset):
            return refusal
    return ""


def _dispatcher(store: Store, behaviour: Behaviour, loaded: Loaded) -> QueueDispatcher:
    size = _file_size(store.settings.queue_file_size_bytes, store.queues, queue.DEFAULT_FILE_SIZE_BYTES)
    batch_size = _file_size(
        store.settings.batch_queue_file_size_bytes, store.batch_queues, queue.DEFAULT_BATCH_FILE_SIZE_BYTES
    )
    # Without light queues no field about them is read, so that releases which differ in these alone take one path.
    lists = _dispatches_light_queues(store) and behaviour.multi_dispatch
    rules = DispatchRules(
        DelayTable(parse_delay_levels(store.settings.delay_levels or paths.DEFAULT_DELAY_LEVELS)),
        batch_topics(loaded) if behaviour.batch_queues else frozenset(),
        multi_dispatch=lists,
        no_lists=behaviour.no_lists if lists else NoLists.NOWHERE,
        lmq=has_lmq(store),
        accepted=True,
        passes_light_folders=lists and behaviour.passes_light_folders,
    )
    spool = EntrySpool()
    queues_found, batches_found = loaded_queues(store), loaded_queues(store, paths.BATCHCONSUMEQUEUE)
    queues = {
        key: QueueState(
            key,
            size,
            behaviour,
            queues_found,
            [file.phy_offset for file in files],
            spool=spool,
            ext=loaded.ext_files.get(key),
            off_grid=off_grid(queues_found[key], files, size),
        )
        for key, files in _mapped(loaded.queue_files, queues_found)
    }
    batches = {
        key: BatchQueueState.over(key, batch_size, behaviour, batches_found[key], files, spool=spool)
        for key, files in _mapped(loaded.batch_queue_files, batches_found)
    }
    return QueueDispatcher(
        behaviour,
        rules,
        store.settings.flag("messageIndexEnable", True),
        size,
        batch_size,
        queues,
        batches,
        loaded.index,
        spool,
        cache(partial(_no_folders, store)),
    )


def _mapped(
    loaded: Mapping[QueueKey, list[Segment] | None], found: Mapping[QueueKey, SegmentSequence]
) -> Iterator[tuple[QueueKey, list[Segment]]]:
    """Yield the files of each queue that a broker maps."""
    return ((key, list(found[key].segments) if files is None else files) for key, files in loaded.items())


_QUEUE_FOLDER: Final = re.compile(rf"(?:{paths.CONSUMEQUEUE}|{paths.BATCHCONSUMEQUEUE})/[%|a-zA-Z0-9_-]+(?:/\d+)?")


def _no_folders(store: Store) -> frozenset[str]:
    """Return the paths in the store of files that take the name of a folder of queues."""
    trees = [store.root / tree for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE)]
    files = [tree for tree in trees if is_there(tree) and not tree.is_dir()]
    names = [store.relative(stray.path) for stray in store.queue_strays if not stray.is_folder]
    return frozenset([*map(store.relative, files), *filter(_QUEUE_FOLDER.fullmatch, names)])


def _file_size(configured: int | None, found: Mapping[QueueKey, SegmentSequence], default: int) -> int:
    return configured or next((files.file_size_bytes for files in found.values() if files.file_size_bytes), default)


def _dispatches_light_queues(store: Store) -> bool:
    """Return True if multi-dispatch is configured, or if it is not set and light queues exist."""
    if "enableMultiDispatch" in store.settings.values:
        return store.settings.flag("enableMultiDispatch")
    return any(key.topic.startswith(paths.LMQ_PREFIX) for key in store.queues)

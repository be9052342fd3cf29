"""Check a whole store: log, queues, index, checkpoint, progress and config files against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.check.batch_queues import check_batch_queues
from store_core.check.index import IndexCheck
from store_core.check.layout import check_index_layout, check_layout
from store_core.check.live_check import look_at_files, store_now
from store_core.check.log import LogFindings
from store_core.check.log_begin import log_begin
from store_core.check.log_map import LogMap, check_marks
from store_core.check.queues import check_queues
from store_core.check.report import Findings
from store_core.codec.times import format_time
from store_core.derive.dispatch import Dispatcher, dispatch_rules
from store_core.derive.index import IndexStyle, index_style
from store_core.derive.spool import QueueSpooler
from store_core.derive.topics import missing_topics
from store_core.findings import Finding, Severity
from store_core.layout import paths
from store_core.layout.checkpoint import SAFETY_MARGIN_MS
from store_core.layout.queue import ENTRY
from store_core.read.checkpoint import read_checkpoint
from store_core.read.index_sizes import IndexSizes, ProvenSizes, index_sizes
from store_core.read.log_files import advised
from store_core.read.queue import BatchQueue, Queue, end_of_entries
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.buffers import share_one_heap
from store_core.storage.config_files import ConfigFiles, offset_table, read_config
from store_core.storage.databases import runs_under_55
from store_core.storage.scratch import scratch_folder
from store_core.storage.store import QueueKey, Store

_QUEUES: Final = ["logics_msg_timestamp_ms"]
_FLUSHED: Final = ("physic_msg_timestamp_ms", *_QUEUES)
_BATCH_QUEUE: Final = ("queue.type", "BatchCQ")
_ORDER: Final = "SLCQIP"  # layout and log first: they cause many of the other findings
_NO_LOG: Final = "S007"
Ends = tuple[int, int]


def check_checkpoint(
    store: Store, log: LogMap, findings: Findings, *, live: bool = False, starting: bool = False
) -> None:
    """Report times that are not set, times after the newest record, and offsets after the log's end.

    * A broker subtracts three seconds, so a smaller difference is harmless.
    * After a crash (``starting``) the log's torn tail explains a difference, and a broker killed before its first
      flush explains a missing time.
    * A broker of 5.5 sets the queues' time and offset with a flush of all queues, once a minute, so none of them is
      old.
    * On a live store the file may be newer than the walk.
    """
    path = store.root / paths.CHECKPOINT
    if path.exists() and not path.is_file():  # ``check_layout`` reports it
        return
    checkpoint = read_checkpoint(store.root)
    for found in checkpoint.findings:
        findings.add(found)
    if any(found.code == "C001" for found in checkpoint.findings) or live:
        return
    newest = format_time(log.largest_store_timestamp_ms)
    for name in ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"):
        value = getattr(checkpoint, name)
        if log.messages and value > log.largest_store_timestamp_ms:
            message = f"{name} is {format_time(value)}, the newest record's store time {newest}"
            harmless = value - SAFETY_MARGIN_MS <= log.largest_store_timestamp_ms
            mild: Severity = "info" if starting else "warning"
            findings.say("C003", message, file=paths.CHECKPOINT, severity=mild if harmless else None)
    if checkpoint.logics_phy_offset and checkpoint.logics_phy_offset >= log.end_phy_offset:
        message = f"logics_phy_offset is {checkpoint.logics_phy_offset}, the log ends at {log.end_phy_offset}"
        findings.say("C003", message, file=paths.CHECKPOINT, severity="warning" if starting else None)
    unset = [n for n in _FLUSHED if not getattr(checkpoint, n)]
    if unset == _QUEUES and not checkpoint.logics_phy_offset and runs_under_55(store):
        unset = []
    if log.largest_store_timestamp_ms and unset and not (checkpoint.findings or store.queues_in_rocksdb):
        text = f"{' and '.join(unset)} not set, the newest record's store time is {newest}"
        findings.say("C005", text, file=paths.CHECKPOINT, severity="info" if starting else None)
    if checkpoint.confirm_phy_offset > store.log.max_phy_offset:
        message = f"confirm_phy_offset is {checkpoint.confirm_phy_offset}, the log ends at {log.end_phy_offset}"
        findings.say("C004", message, file=paths.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``findings`` are bounded, with a last one for each code that has more; ``summary`` counts all of them."""

    findings: list[Finding]
    summary: dict[str, int]


def check_store(
    store: Store, *, jobs: int = 1, on_progress: Callable[[int], None] | None = None, live: bool = False
) -> CheckReport:
    """Compare all files of a store with each other, without writing to it.

    Entries of the log (a few bytes a message) go through a scratch file in the system's temporary folder.

    Args:
        jobs: the number of threads that walk the log.
        on_progress: is called with the bytes walked.
        live: a broker may be writing, so torn and not yet dispatched tails are not faults.

    Raises:
        FailedError: a file cannot be read.
    """
    share_one_heap()
    findings, proven = Findings(), index_sizes(store)
    if not live:
        _check_files(store, proven, findings)
    else:
        findings.say("S002", "another process is at work on this store", file=paths.LOCK)
    config = read_config(store.root)
    with scratch_folder("rmqctl-check-") as folder:
        walk = _Walk(store, config, findings, folder, live, jobs, proven.sizes)
        walk.run(on_progress)
    if live:
        findings.join(look_at_files(store, _findings_of_files))
    log_listed = walk.log_findings.end(live=live)
    listed = advised(
        sorted([*findings.all(), *log_listed], key=lambda listed_finding: _ORDER.index(listed_finding.code[0]))
    )
    shown = {found.code for found in listed}
    summary = Counter(findings.counts) + Counter(walk.log_findings.counts)
    return CheckReport(listed, {code: count for code, count in sorted(summary.items()) if code in shown})


def _check_files(store: Store, told: ProvenSizes, findings: Findings) -> None:
    """Check the names, lengths and types of the files."""
    check_layout(store, findings)
    for found in told.findings:
        findings.add(found)
    check_index_layout(store, told.sizes, findings)


def _findings_of_files(store: Store) -> Findings:
    findings = Findings()
    _check_files(store, index_sizes(store), findings)
    return findings


def batch_topics(config: ConfigFiles) -> frozenset[str]:
    """Return the topics that have batch queues by topics.json."""
    name, value = _BATCH_QUEUE
    return config.topics_with(name, value)


class _Walk:
    """A walk over the log that feeds all checks, and the checks that follow it."""

    def __init__(
        self,
        store: Store,
        config: ConfigFiles,
        findings: Findings,
        folder: Path,
        live: bool,
        jobs: int,
        sizes: IndexSizes | None,
    ) -> None:
        self.store, self.config, self.findings, self.live = store, config, findings, live
        style = index_style(store, sizes.slots, sizes.entries) if sizes else IndexStyle()
        rules = dispatch_rules(store, batch_topics=batch_topics(config), include_bad_crc=True)
        self.dispatcher = Dispatcher(rules)
        self.spooler = QueueSpooler(self.dispatcher, folder)
        self.index = IndexCheck(store, sizes, style, findings)
        self.log = LogMap(min_phy_offset=store.log.min_phy_offset, end_phy_offset=store.log.min_phy_offset)
        self.log_findings = LogFindings(store.log, writes_pages=store.settings.flag("writeWithoutMmap"))
        self.options = ScanOptions(
            check_property_crc=True,
            check_numbers=True,
            index_keys=True,
            index_tags=style.tags,
            index_tags_from_phy_offset=style.tags_from_phy_offset,
            jobs=jobs,
        )

    def run(self, on_progress: Callable[[int], None] | None) -> None:
        for table in scan_log(self.store, options=self.options, on_progress=on_progress):
            if len(table):
                self._add(table)
        begin = log_begin(self.store, last_timestamp_ms=self.log.largest_store_timestamp_ms, live=self.live)
        for found in begin.findings():
            self.findings.add(found)
        starting = self.live or self.store.aborted
        if self.store.log.segments and not self.log.messages and (queues := _with_entries(self.store)):
            self.findings.say(_NO_LOG, f"the log holds no record, while {queues} queues have entries")
        with self.spooler.finish() as rows:
            self.index.end(self.log, starting=starting, live=self.live)
            if self.store.queues_in_rocksdb:
                what = "the queues are in RocksDB and were not looked at"
                self.findings.say("Q015", what, file=self.store.queue_database)
            else:
                if self.store.queue_database:
                    what = "queues in RocksDB, beside those in files, were not looked at"
                    self.findings.say("Q015", what, file=self.store.queue_database, severity="info")
                check_queues(self.store, rows, self.log, self.findings, starting=starting, live=self.live)
                check_batch_queues(self.store, rows, self.log, self.findings, live=self.live)
            for found in self.dispatcher.record_findings():
                self.findings.add(found)
            if any(key.topic == paths.SCHEDULE_TOPIC for key in self.store.queues):
                for found in self.dispatcher.findings():
                    self.findings.add(found)
            check_checkpoint(self.store, self.log, self.findings, live=self.live, starting=starting)
            self._check_progress(rows.queue_keys())

    def _check_progress(self, log_keys: Collection[QueueKey]) -> None:
        if not self.live:
            check_progress(self.store, self.config, log_keys, self.findings)
            return
        config = read_config(self.store.root)  # before the queues, which then contain all its offsets
        with store_now(self.store) as now:
            check_progress(now, config, log_keys, self.findings)

    def _add(self, table: FrameTable) -> None:
        segment = self.store.log.find(int(table.phy_offset[0]))
        self.log_findings.add(table, self.store.relative(segment.path) if segment is not None else "")
        check_marks(self.store, table, self.findings)
        self.log.add(table)
        self.spooler.add(table)
        self.index.add(table)


def _with_entries(store: Store) -> int:
    """Count the queues with entries: a log cut back to nothing leaves files without any."""
    return sum(end_of_entries(files, ENTRY) > files.min_phy_offset for files in store.queues.values())


def check_progress(store: Store, config: ConfigFiles, log_keys: Collection[QueueKey], findings: Findings) -> None:
    """Check progress and topics against the queues; without queue files, only the topics.

    ``log_keys`` are the queues of the log's messages.
    """
    for found in config.findings:
        findings.add(found)
    _check_topics(store, config, log_keys, findings)
    if store.queues_in_rocksdb:
        return
    ends = _QueueEnds(store)
    for (group, topic, queue_id), offset in sorted(offset_table(config).items()):
        _check_group(group, QueueKey(topic, queue_id), offset, ends, findings, config.progress.name)
    _check_delay(config, ends, findings, aborted=store.aborted)


def _check_topics(store: Store, config: ConfigFiles, log_keys: Collection[QueueKey], findings: Findings) -> None:
    """Report topics that the log or the queues have and topics.json lacks."""
    if config.in_rocksdb or config.topics.too_large:
        return
    seen = {*log_keys, *(() if store.queues_in_rocksdb else (*store.queues, *store.batch_queues))}
    for topic, queues in missing_topics(seen, config.topic_names).items():
        needed = "1 queue" if queues == 1 else f"{queues} queues"
        message = f"the topic has messages or queues, and no configuration; it needs {needed}"
        findings.say("P002", message, file=config.topics.name, topic=topic)


class _QueueEnds:
    """First and end queue offsets of queues, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[QueueKey, Ends | None] = {}
        self._topics = {key.topic for key in (*store.queues, *store.batch_queues)}

    def of(self, key: QueueKey) -> Ends | None:
        """Return the first and the end offset of a queue; None without such a queue."""
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def topic_has_queues(self, topic: str) -> bool:
        return topic in self._topics

    def messages_of(self, topic: str) -> int:
        """Return how many queue offsets a topic's queues have."""
        known = [self.of(key) for key in self._store.queues if key.topic == topic]
        return sum(ends[1] - ends[0] for ends in known if ends is not None)

    def _read(self, key: QueueKey) -> Ends | None:
        if (files := self._store.batch_queues.get(key)) is not None:
            batch = BatchQueue(files, self._store.log)
            return batch.min_offset, batch.max_offset
        if (files := self._store.queues.get(key)) is not None and files.segments:
            queue = Queue(files, self._store.log)
            return queue.min_offset, queue.max_offset
        return None


def _check_group(group: str, key: QueueKey, offset: int, ends: _QueueEnds, findings: Findings, file: str) -> None:
    known = ends.of(key)
    if known is None:
        if offset > 0:
            what = "the queue" if ends.topic_has_queues(key.topic) else "the topic"
            message = f"group {group} has progress {offset}, and {what} has no messages here"
            findings.say("P006", message, file=file, topic=key.topic, queue_id=key.queue_id, queue_offset=offset)
        return
    first, end = known
    if offset > end:
        code, message = "P001", f"group {group} is at {offset}, the queue ends at {end}"
    elif offset < first:
        code, message = "P005", f"group {group} is at {offset}, the queue begins at {first}"
    else:
        return
    findings.say(code, message, file=file, topic=key.topic, queue_id=key.queue_id, queue_offset=offset)


def _check_delay(config: ConfigFiles, ends: _QueueEnds, findings: Findings, *, aborted: bool) -> None:
    if config.has_lost(config.delay_offsets) and (messages := ends.messages_of(paths.SCHEDULE_TOPIC)):
        message = (
            f"{config.delay_offsets.name} is missing: all {messages} messages of the delay queues are to be delivered"
        )
        unwritten: Severity | None = "info" if aborted else None  # it is first written after ten seconds
        findings.say("P009", message, file=config.delay_offsets.name, topic=paths.SCHEDULE_TOPIC, severity=unwritten)
    for level, offset in sorted(config.delay_levels.items()):
        key = QueueKey(paths.SCHEDULE_TOPIC, level - 1)
        first, end = ends.of(key) or (0, 0)
        if not first <= offset <= end:
            expired: Severity | None = "info" if offset < first else None  # the messages in between have expired
            findings.say(
                "P007",
                f"level {level} is at {offset}, its queue goes from {first} to {end}",
                file=config.delay_offsets.name,
                topic=key.topic,
                queue_id=key.queue_id,
                queue_offset=offset,
                severity=expired,
            )

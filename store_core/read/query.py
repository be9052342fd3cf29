"""Find messages by key: from the index as a broker answers, from the log alone, or exactly from both (store behaviour 9.2, 9.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from string import hexdigits
from typing import Any, Final, Literal, NamedTuple

from store_core.codec.message_id import parse_offset_message_id
from store_core.codec.record import Message, RecordError, decode_record
from store_core.codec.text import decode_text
from store_core.codec.times import END_OF_TIME_MS
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.kernel.point import carries_key, index_key_hash
from store_core.layout import paths, record
from store_core.layout.message_id import OFFSET_ID_V4_SIZE_BYTES, OFFSET_ID_V6_SIZE_BYTES
from store_core.read.index import BrokenChainError, Index, IndexFile
from store_core.read.records import read_message, read_record_bytes
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_OFFSET_DIGITS: Final = 19  # of the largest offset
_ID_DIGITS: Final = (2 * OFFSET_ID_V4_SIZE_BYTES, 2 * OFFSET_ID_V6_SIZE_BYTES)


def find_message(store: Store, identifier: str, topic: str | None = None) -> Message | None:
    """Return the message that ``identifier`` names; the newest of several, None if there is none.

    * A decimal number is an offset in the log; leading zeros are allowed, as in a segment's name.
    * 32 or 56 hex digits are an offset message id; its host is not compared, as in a broker.
    * With a topic, a text that is no such number is first taken for a unique key (from the index where it can answer, else from the log).
    """
    if topic is not None and not (_is_decimal(identifier) and len(identifier) <= _OFFSET_DIGITS):
        answer = query_key(store, KeyQuery(topic, identifier, "unique", limit=1))
        if answer.messages:
            return answer.messages[-1]
    if _is_offset(identifier):
        offset = identifier.lstrip("0") or "0"
        return read_message(store.log, int(offset)) if len(offset) <= _OFFSET_DIGITS else None
    offset_id = parse_offset_message_id(identifier)
    return None if offset_id is None else read_message(store.log, offset_id.phy_offset)


def is_id(identifier: str) -> bool:
    """Return True if a text has the form of an offset or an offset message id, which need no topic."""
    return _is_offset(identifier) or (len(identifier) in _ID_DIGITS and all(digit in hexdigits for digit in identifier))


def _is_offset(text: str) -> bool:
    return _is_decimal(text) and len(text) not in _ID_DIGITS


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
KeyType = Literal["any", "key", "unique"]
Source = Literal["auto", "index", "scan"]
Answered = Literal["index", "scan", "index+scan"]
DEFAULT_LIMIT: Final = 64


class KeyQuery(NamedTuple):
    """A query for the newest ``limit`` messages with a key of a topic, stored in [begin_ms, end_ms]."""

    topic: str
    key: str
    type: KeyType = "any"
    begin_ms: int = 0
    end_ms: int = END_OF_TIME_MS
    limit: int = DEFAULT_LIMIT

    @property
    def key_hashes(self) -> list[int]:
        return [index_key_hash(self.topic, self.key)]

    def key_hashes_among(self, topics: Iterable[bytes]) -> list[int]:
        """Return the hashes to look for in a part of the log with messages of these topics."""
        return self.key_hashes

    def carried_by(self, message: Message) -> bool:
        """Return True if the record itself has the key. A rolled-back record has none, because brokers do not index it."""
        if message.topic != self.topic or message.transaction == "rollback":
            return False
        if self.type != "key" and message.unique_key == self.key:
            return True
        return self.type != "unique" and self.key in message.keys

    def in_time(self, message: Message) -> bool:
        return self.begin_ms <= message.store_timestamp_ms <= self.end_ms


class KeyAnywhere(NamedTuple):
    """A ``KeyQuery`` for a key of any topic. The index is searched for ``topics``, a scan of the log for all topics."""

    topics: tuple[str, ...]
    key: str
    limit: int
    type: KeyType = "any"
    begin_ms: int = 0
    end_ms: int = END_OF_TIME_MS

    @property
    def key_hashes(self) -> list[int]:
        return [index_key_hash(topic, self.key) for topic in self.topics]

    def key_hashes_among(self, topics: Iterable[bytes]) -> list[int]:
        return [index_key_hash(decode_text(topic), self.key) for topic in topics]

    def carried_by(self, message: Message) -> bool:
        return KeyQuery(message.topic, self.key, self.type).carried_by(message)

    def in_time(self, message: Message) -> bool:
        return self.begin_ms <= message.store_timestamp_ms <= self.end_ms


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """The messages of a query in log order. ``source`` is their origin: index, scan, or both.

    The last two fields are the newest index file's, None without one. A broker answers 0 where its index has no entry for the key's hash.
    """

    messages: tuple[Message, ...]
    source: Answered
    index_last_phy_offset: int | None
    index_last_timestamp_ms: int | None
    findings: tuple[Finding, ...] = ()


def query_key(store: Store, query: KeyQuery | KeyAnywhere, source: Source = "auto") -> KeyAnswer:
    """Return the messages with a key.

    * ``index``: a broker's answer, without records that only share the hash.
    * ``scan``: from the log alone.
    * ``auto``: every record with the key and a store time in the range, from the index where it fits the log, else from the log.

    Raises FailedError where a file cannot be read. A scan needs no index: an unreadable one is an info finding.
    """
    if source == "scan":
        scanned = _scanned(store, query, None, None)
        try:
            with Index(store) as index:
                return _answer(index, scanned, "scan", ())
        except UnreadableError as error:
            text = f"{error.what}; the log, which was read, needs no index"
            file = store.relative(Path(error.path)) if error.path else paths.INDEX
            unread = finding("I009", text, file=file, severity="info")
            return KeyAnswer(tuple(scanned), "scan", None, None, (unread,))
    with Index(store) as index:
        if source == "index":
            answer = _answer(index, _from_index(store, index, query), "index", index.findings)
            has_none = index.files and not (answer.messages or _offsets(index, query))
            return replace(answer, index_last_phy_offset=0, index_last_timestamp_ms=0) if has_none else answer
        exact = _Exact(store, index, query)
        messages = exact.run()
        # Where the index cannot be read the log gives the same answer.
        findings = index.findings if index.sizes else tuple(replace(f, severity="info") for f in index.findings)
        return _answer(index, messages, exact.source, findings)


def _answer(index: Index, messages: Iterable[Message], source: Answered, findings: tuple[Finding, ...]) -> KeyAnswer:
    last = index.last_header
    if last is None:
        return KeyAnswer(tuple(messages), source, None, None, findings)
    return KeyAnswer(tuple(messages), source, last.end_phy_offset, last.end_timestamp_ms, findings)


def records_by_index(index: Index, log: SegmentSequence, query: KeyQuery | KeyAnywhere) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, record) of a broker's answer from its index, in log order, without records that only share the hash."""
    for phy_offset in sorted(set(_offsets(index, query))):
        data = read_record_bytes(log, phy_offset)
        if data is not None and _is_carried(query, data):
            yield phy_offset, data


def _offsets(index: Index, query: KeyQuery | KeyAnywhere) -> list[int]:
    found: list[int] = []
    for key_hash in query.key_hashes:
        found += index.query(key_hash, query.limit, query.begin_ms, query.end_ms)
    return found


def _is_carried(query: KeyQuery | KeyAnywhere, data: bytes) -> bool:
    """Return ``KeyQuery.carried_by`` for a record's bytes, in most cases without decoding the record."""
    if isinstance(query, KeyQuery) and carries_key(data, query.topic, query.key, query.type):
        return True
    # Malformed bytes decode to replacement characters.
    is_plain = query.key.isascii() or _REPLACEMENT not in query.key
    if is_plain and query.key.encode(errors="surrogatepass") not in data:
        return False
    return _decodes_to_carrier(query, data)


def _decodes_to_carrier(query: KeyQuery | KeyAnywhere, data: bytes) -> bool:
    try:
        return query.carried_by(decode_record(data, 0, 0))
    except RecordError:
        return False


def _from_index(store: Store, index: Index, query: KeyQuery | KeyAnywhere) -> Iterator[Message]:
    for phy_offset, data in records_by_index(index, store.log, query):
        with suppress(RecordError):
            yield decode_record(data, 0, phy_offset)


def _scanned(store: Store, query: KeyQuery | KeyAnywhere, start: int | None, end: int | None) -> list[Message]:
    """Return the newest ``limit`` matches whose records start in [start, end), in log order."""
    import numpy as np

    from store_core.scan.log import scan_log

    found: list[Message] = []
    for table in scan_log(store, from_phy_offset=start, to_phy_offset=end, check_crc=False, index_keys=True):
        rows: Any = table.key_row[np.isin(table.key_hash, query.key_hashes_among(table.topics))]
        for row in np.unique(rows):
            if query.begin_ms <= table.store_timestamp_ms[row] <= query.end_ms:
                message = table.message(int(row))
                if query.carried_by(message):
                    found.append(message)
        if len(found) > 2 * query.limit:
            del found[: -query.limit]
    return found[-query.limit :]


class _Exact:
    """The walk from the newest record to the oldest: chains where index files cover the log, scans between them."""

    def __init__(self, store: Store, index: Index, query: KeyQuery | KeyAnywhere) -> None:
        self._store = store
        self._index = index
        self._query = query
        self._found: dict[int, Message] = {}
        self._used_index = False
        self._used_scan = False

    @property
    def source(self) -> Answered:
        if self._used_index:
            return "index+scan" if self._used_scan else "index"
        return "scan"

    def run(self) -> tuple[Message, ...]:
        end: int | None = None  # the log from this offset on is done
        for file in reversed(self._index.files):
            if self._enough:
                break
            covered_to = self._covered_to(file)
            if covered_to is None:
                continue
            self._scan(covered_to, end)
            if self._enough:
                break
            try:
                self._walk(file)
            except BrokenChainError:
                end = covered_to if end is None else min(end, covered_to)
                continue
            end = file.header.begin_phy_offset
        if not self._enough:
            self._scan(None, end)
        newest = sorted(self._found)[-self._query.limit :]
        return tuple(self._found[phy_offset] for phy_offset in newest)

    @property
    def _enough(self) -> bool:
        return len(self._found) >= self._query.limit

    def _covered_to(self, file: IndexFile) -> int | None:
        """Return the offset after the last record that an index file covers; None for a file that does not fit the log.

        A file fits if its first and last records are at the offsets and have the times of its header. After a cut of the log they are not, and new
        records at their offsets are not indexed (store behaviour 9.5).
        """
        header = file.header
        if header.index_count <= 1:
            return None
        last = read_message(self._store.log, header.end_phy_offset)
        if last is None or last.store_timestamp_ms != header.end_timestamp_ms:
            return None
        if header.begin_phy_offset >= self._store.log.min_phy_offset:
            first = read_message(self._store.log, header.begin_phy_offset)
            if first is None or first.store_timestamp_ms != header.begin_timestamp_ms:
                return None
        return header.end_phy_offset + last.size_bytes

    def _walk(self, file: IndexFile) -> None:
        self._used_index = True
        for key_hash in self._query.key_hashes:
            missing = self._query.limit - len(self._found)
            for phy_offset, _ in file.chain(key_hash):
                if phy_offset in self._found:
                    continue
                message = read_message(self._store.log, phy_offset)
                if message is not None and self._query.carried_by(message) and self._query.in_time(message):
                    self._found[phy_offset] = message
                    missing -= 1
                    if missing <= 0:
                        break

    def _scan(self, start: int | None, end: int | None) -> None:
        log = self._store.log
        start = log.min_phy_offset if start is None else max(start, log.min_phy_offset)
        stop = log.max_phy_offset if end is None else end
        if start >= stop or not self._has_data(start, stop):
            return
        self._used_scan = True
        for message in _scanned(self._store, self._query, start, end):
            self._found[message.phy_offset] = message

    def _has_data(self, start: int, stop: int) -> bool:
        """Return True if there is anything in [start, stop) but blanks that seal segments and bytes that were never written."""
        log = self._store.log
        at = start
        while at < stop:
            segment = log.find(at)
            if segment is None:
                following = next((s for s in log.segments if s.phy_offset > at), None)
                if following is None:
                    return False
                at = following.phy_offset
                continue
            prefix = log.read(at, record.PREFIX.size_bytes)
            if len(prefix) == record.PREFIX.size_bytes:
                size_bytes, magic = record.PREFIX.struct.unpack(prefix)
                if magic != record.MAGIC_BLANK or at + size_bytes != segment.end_phy_offset:
                    return any(prefix) or self._is_written(at, segment.end_phy_offset)
            at = segment.end_phy_offset
        return False

    def _is_written(self, start: int, end: int) -> bool:
        """Return True if a byte other than zero follows in a segment; holes of sparse files are not read."""
        log = self._store.log
        at = log.next_data(start)
        while at is not None and at < end:
            data = log.read(at, 1 << 20)
            if not data:
                return False
            if any(data) if len(data) < 64 else data.strip(b"\0"):
                return True
            at = log.next_data(at + len(data)) if at + len(data) < end else None
        return False

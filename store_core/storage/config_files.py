"""Read config files as a broker loads them: the file, else its ``.bak``, else nothing.

Store behaviour 1.1; store format, section 9.
"""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import KeysView, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from store_core.codec.coerce import ConfigError, as_text
from store_core.codec.config_fields import KEY_SEPARATOR, TOPIC
from store_core.codec.config_parse import ParsedConfig, Shown, parse_config, shown, shown_as
from store_core.codec.json_dialect import MAX_SIZE_BYTES, JsonError, JsonTooLargeError, Layout, too_large
from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths, timer
from store_core.storage.databases import ran_under_55
from store_core.storage.files import DISK_FAILS, open_read_only

Source = Literal["main", "bak", "none"]


_NOT_GIVEN: Final = "the disk does not give it"
_ATTEMPTS: Final = 5
_MOMENT_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One config file. ``parsed`` is None where ``source`` is ``none``; ``loads`` is False where a broker's load fails.

    ``too_large``: rmqctl does not read the file, though a broker may.
    """

    name: str
    parsed: ParsedConfig | None = None
    source: Source = "none"
    loads: bool = True
    modified_ns: int = 0
    size_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    too_large: bool = False

    @property
    def value(self) -> Shown:
        """The file's members under rmqctl's names (``config_fields``); those of an empty file where it is missing."""
        return shown(self.name, None) if self.parsed is None else self.parsed.shown(self.name)

    @property
    def tree(self) -> Any:
        """The parsed text, None if there is none: for rewriting without losing members that rmqctl does not know."""
        return None if self.parsed is None else self.parsed.tree

    @property
    def layout(self) -> Layout | None:
        """The form that the file was written in, as far as the text shows it."""
        return None if self.parsed is None else self.parsed.layout

    def refuse_too_large(self) -> None:
        """Raise FailedError if the file was too large to be read: rmqctl cannot change it then."""
        if self.too_large:
            to_do = "a broker may still read it; leave the file to that"
            raise FailedError("the config file is too large to be changed", path=self.name, to_do=to_do)


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """``config/timercheck``; fields after the file's end are 0, as brokers read them."""

    last_read_timestamp_ms: int
    last_timer_log_flush_position: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    data_version_state: int
    data_version_timestamp_ms: int
    data_version_counter: int


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """All config files of a store. ``timer_check`` is None if there is none; ``in_rocksdb``: RocksDB holds topics and progress;
    ``of_55``: a broker of 5.5 or later was the last to start on the store."""

    topics: ConfigFile
    queue_mappings: ConfigFile
    consumer_offsets: ConfigFile
    lmq_consumer_offsets: ConfigFile
    subscription_groups: ConfigFile
    consumer_filters: ConfigFile
    order_infos: ConfigFile
    delay_offsets: ConfigFile
    request_modes: ConfigFile
    timer_metrics: ConfigFile
    transaction_metrics: ConfigFile
    compaction_positions: ConfigFile
    timer_check: TimerCheck | None
    in_rocksdb: bool
    findings: tuple[Finding, ...]
    of_55: bool = False

    @property
    def files(self) -> tuple[ConfigFile, ...]:
        """The JSON files in the order above, missing ones too."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in values if isinstance(value, ConfigFile))

    @property
    def loads(self) -> bool:
        """True if every file can be loaded; a broker that cannot load one does not start."""
        return all(file.loads for file in self.files)

    def has_lost(self, file: ConfigFile) -> bool:
        """Return True if this file was lost: it is broken, or it is missing while others are there."""
        if self.in_rocksdb or file.source != "none" or file.too_large:
            return False
        return bool(file.findings) or not self.has_none

    @property
    def has_none(self) -> bool:
        """True if the store has no config file, not even a broken one. It is a copy of the log and queues alone."""
        files = [file for file in self.files if file.name.startswith(f"{paths.CONFIG}/")]
        return not self.in_rocksdb and all(file.source == "none" and not file.findings for file in files)

    @property
    def progress(self) -> ConfigFile:
        """The file that holds the consumer offsets. A broker with light queues enabled keeps another file than the usual one;
        if both are there, the one written last.
        """
        lmq, usual = self.lmq_consumer_offsets, self.consumer_offsets
        if lmq.source == "none":
            return usual
        return usual if usual.source != "none" and usual.modified_ns > lmq.modified_ns else lmq

    @property
    def topic_names(self) -> KeysView[str]:
        """The configured topics, in the file's order."""
        names = (as_text(name, "topic") for name, bean in self._topic_table.items() if bean is not None)
        return dict.fromkeys(names).keys()

    def topic(self, name: str) -> Shown | None:
        """Return the configuration of a topic, None without one; ``topics.value`` has all of them."""
        bean = self._topic_table.get(name)
        found: Shown | None = None if bean is None else shown_as(TOPIC, bean, name)
        return found

    def topics_with(self, attribute: str, value: str) -> frozenset[str]:
        """Return the topics whose ``attribute`` has this value."""
        beans = self._topic_table.items()
        return frozenset(
            str(name) for name, bean in beans if bean and (bean.get("attributes") or {}).get(attribute) == value
        )

    @property
    def _topic_table(self) -> Mapping[Any, Any]:
        return (self.topics.tree or {}).get("topicConfigTable") or {}

    @property
    def delay_levels(self) -> Mapping[int, int]:
        """By delay level (from 1): the next offset of queue level - 1 of the delay topic."""
        levels: Mapping[int, int] = self.delay_offsets.value["offsets"]
        return levels


def read_config(root: Path) -> ConfigFiles:
    """Read every config file under a store root. Damage raises nothing: findings P003, P004, P008 and P010 report it."""
    json_files = {field: read_config_file(root, name) for field, name in _FILES.items()}
    in_rocksdb = any((root / name / paths.ROCKSDB_MARK).exists() for name in paths.ROCKSDB_CONFIGS)
    check, check_findings = _read_timer_check(root)
    findings = [found for file in json_files.values() for found in file.findings] + check_findings
    if in_rocksdb:
        findings.append(finding("P008", "topics, groups and progress are kept in RocksDB", file=paths.CONFIG))
    return ConfigFiles(
        **json_files, timer_check=check, in_rocksdb=in_rocksdb, findings=tuple(findings), of_55=ran_under_55(root)
    )


_FILES: Final = {
    "topics": paths.TOPICS_JSON,
    "queue_mappings": paths.TOPIC_QUEUE_MAPPING_JSON,
    "consumer_offsets": paths.CONSUMER_OFFSET_JSON,
    "lmq_consumer_offsets": paths.LMQ_CONSUMER_OFFSET_JSON,
    "subscription_groups": paths.SUBSCRIPTION_GROUP_JSON,
    "consumer_filters": paths.CONSUMER_FILTER_JSON,
    "order_infos": paths.CONSUMER_ORDER_INFO_JSON,
    "delay_offsets": paths.DELAY_OFFSET_JSON,
    "request_modes": paths.MESSAGE_REQUEST_MODE_JSON,
    "timer_metrics": paths.TIMER_METRICS,
    "transaction_metrics": paths.TRANSACTION_METRICS,
    "compaction_positions": paths.COMPACTION_POSITIONS,
}


def offset_table(config: ConfigFiles) -> dict[tuple[str, str, int], int]:
    """Return the next offset to consume by (group, topic, queue id). Keys that are not ``topic@group`` are left out; a group may
    have an ``@`` in its name: brokers 4.x keep progress under such keys."""
    stored = config.progress.value
    table = {}
    for key, offsets in stored["offsets"].items():
        for queue_id, offset in offsets.items():
            table[key, queue_id] = offset
    for key, offset in stored["lmq_offsets"].items():
        table[key, 0] = offset
    return {
        (group, topic, queue_id): offset
        for (key, queue_id), offset in table.items()
        for topic, at, group in [key.partition(KEY_SEPARATOR)]
        if topic and at and group
    }


class _SomeRefuseError(ConfigError):
    """A value of a wrong type in a file that some releases load despite it."""


@dataclass(frozen=True, slots=True)
class _Text:
    data: bytes
    modified_ns: int


def read_config_file(root: Path, name: str) -> ConfigFile:
    """Read the file ``name`` (relative to the root) as brokers load it; its findings report what was wrong.

    Brokers up to 5.3 rewrite in place: a broken file that is just changing is read again.

    * An empty file counts as missing.
    * If the file cannot be read or parsed, or a value has a wrong type, the ``.bak`` is read.
    * A broker refuses to start only if the ``.bak`` is broken too. If that is missing or empty, it starts with nothing.
    * For a file too large for rmqctl the ``.bak`` is not read: the file may be good.
    """
    for _ in range(_ATTEMPTS):
        try:
            found, trouble = _attempt(root / name, name)
        except JsonTooLargeError as error:
            text = f"{name}: it is {error.what}"
            return ConfigFile(name, findings=(finding("P010", text, file=name),), too_large=True)
        if found is not None:
            return found
        if not trouble or not _changes(root / name):
            break
    return _fall_back(root, name, trouble)


def _attempt(path: Path, name: str) -> tuple[ConfigFile | None, str]:
    """Return the main file, or None and what is wrong with it ("" if it is only missing)."""
    read, trouble = _read(path)
    if read is None:
        return None, trouble
    if not read.data:
        return None, "it is empty"
    try:
        return _loaded(name, "main", read), ""
    except JsonTooLargeError:
        raise
    except (JsonError, ConfigError) as error:
        return None, str(error)


def _changes(path: Path) -> bool:
    """Return True if a file changes within ``_MOMENT_SECONDS``."""

    def state() -> tuple[int, int]:
        found = path.stat()
        return found.st_size, found.st_mtime_ns

    try:
        before = state()
        time.sleep(_MOMENT_SECONDS)
        return state() != before
    except OSError:
        return False


def _fall_back(root: Path, name: str, main_trouble: str) -> ConfigFile:
    bak_name = name + paths.BAK_SUFFIX
    refusing = "a broker refuses"
    try:
        bak, bak_trouble = _read(root / bak_name)
    except JsonTooLargeError as error:
        bak, bak_trouble = None, f"it is {error.what}"
    if bak is not None and bak.data:
        try:
            found = finding("P003", f"{name}: {main_trouble or 'it is missing'}; its .bak is read", file=name)
            return _loaded(name, "bak", bak, (found,))
        except (JsonError, ConfigError) as error:
            bak_trouble = str(error)
            if isinstance(error, _SomeRefuseError):
                refusing = "brokers of some releases refuse"
    if bak_trouble:
        text = f"{name}: {main_trouble or 'it is missing'}; its .bak: {bak_trouble}: {refusing} to start"
        return ConfigFile(name, loads=False, findings=(_broken_file(text, name),))
    if main_trouble:
        text = f"{name}: {main_trouble}, and there is no .bak: a broker starts with nothing"
        return ConfigFile(name, findings=(_broken_file(text, name),))
    return ConfigFile(name)


def _loaded(name: str, source: Source, read: _Text, findings: tuple[Finding, ...] = ()) -> ConfigFile:
    parsed = parse_config(read.data)
    refusals = parsed.refusals(name)
    if why := refusals.by_all():
        raise ConfigError(why)
    if why := refusals.by_us():
        raise _SomeRefuseError(why)
    return ConfigFile(name, parsed, source, True, read.modified_ns, len(read.data), findings)


def _read(path: Path) -> tuple[_Text | None, str]:
    """Return a file's bytes (None if it is missing or unreadable) and why it is unreadable.

    Raises JsonTooLargeError before it reads too much.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return None, "it is no file"
        if found.st_size > MAX_SIZE_BYTES:
            raise too_large()
        descriptor = open_read_only(path)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, _refused(error)
    try:
        with open(descriptor, "rb") as file:
            return _Text(file.read(MAX_SIZE_BYTES + 1), found.st_mtime_ns), ""
    except OSError as error:
        return None, _refused(error)


def _refused(error: OSError) -> str:
    return f"{_NOT_GIVEN if error.errno == errno.EIO else 'it cannot be read'} ({error.strerror})"


def _broken_file(text: str, name: str) -> Finding:
    """Return finding P004. If the disk fails, the advice is to copy the store: the file itself may be good."""
    found = finding("P004", text, file=name)
    return replace(found, advice=f"{DISK_FAILS[:1].upper()}{DISK_FAILS[1:]}.") if _NOT_GIVEN in text else found


def _read_timer_check(root: Path) -> tuple[TimerCheck | None, list[Finding]]:
    try:
        read, trouble = _read(root / paths.TIMERCHECK)
    except JsonTooLargeError as error:
        read, trouble = None, f"it is {error.what}"
    if trouble:
        return None, [_broken_file(f"{paths.TIMERCHECK}: {trouble}", paths.TIMERCHECK)]
    if read is None:
        return None, []
    size_bytes = timer.CHECK.size_bytes
    return TimerCheck(**timer.CHECK.read(read.data[:size_bytes].ljust(size_bytes, b"\0"))), []

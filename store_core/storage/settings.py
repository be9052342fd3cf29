"""Read a broker's properties file for its store's paths, file sizes and delay levels (store format, section 1.3)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.layout.queue import rounded_file_size_bytes
from store_core.storage.remote_path import absolute_path, real_path

_WRONGLY_NAMED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_PATH_SEPARATOR = ","
_LONGEST_CONFIG_BYTES = 1 << 20
_BROKER_NAMES = frozenset(  # any broker's file that concerns a store or its broker has at least one of them
    [
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "brokerRole",
        "brokerIP1",
        "brokerIP2",
        "namesrvAddr",
        "listenPort",
        "deleteWhen",
        "fileReservedTime",
        "flushDiskType",
        "messageDelayLevel",
        "maxMessageSize",
        "maxHashSlotNum",
        "maxIndexNum",
        "storeType",
        "autoCreateTopicEnable",
        "defaultTopicQueueNums",
        "enableLmq",
        "enableMultiDispatch",
    ]
)
_BROKER_PREFIXES = ("storePath", "mappedFileSize", "mapedFileSize", "mapperFileSize", "timer", "enable", "haMaster")


Differing = tuple[int, int]  # a record's offset and its length in bytes


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a store. Sizes are None if no configuration names them; paths are absolute.

    * ``copies``: roots of other copies of the log, whose folders are among the log's
    * ``choices``: by offset, the folder from which a segment is read that several have, if it is not the first
    * ``differing``: records, by offset and length, that are whole in several copies and not the same
    """

    root: Path
    commitlog_paths: tuple[Path, ...]
    writable_commitlog_paths: tuple[Path, ...]
    segment_size_bytes: int | None = None
    queue_file_size_bytes: int | None = None
    batch_queue_file_size_bytes: int | None = None
    ext_file_size_bytes: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    delay_levels: str | None = None
    max_message_size_bytes: int | None = None
    broker_version: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[Path, ...] = ()
    choices: Mapping[int, Path] = field(default_factory=dict)
    differing: tuple[Differing, ...] = ()

    @property
    def outside_paths(self) -> tuple[Path, ...]:
        """Log folders that lie outside the root, links followed."""
        root = real_path(self.root)
        return tuple(p for p in self.commitlog_paths if not real_path(p).is_relative_to(root))

    def writable_outside_paths(self) -> list[Path]:
        """Return the log folders outside the root. Raises UsageError if the caller did not name one of them for writing."""
        unnamed = [path for path in self.outside_paths if path not in self.writable_commitlog_paths]
        if unnamed:
            raise UsageError(
                "the log lies outside the store and is not written to",
                path=", ".join(map(str, unnamed)),
                to_do="add " + " ".join(f"--commitlog {real_path(path)}" for path in unnamed),
            )
        return list(self.outside_paths)

    def value(self, name: str, default: str = "") -> str:
        """Return a property as written in the broker's file."""
        return self.values.get(name, default)

    @property
    def names_a_broker(self) -> bool:
        """True if at least one property is one that brokers know."""
        return any(name in _BROKER_NAMES or name.startswith(_BROKER_PREFIXES) for name in self.values)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean property; anything but ``true`` is false, as in Java."""
        text = self.values.get(name)
        return default if text is None else text.strip().lower() == "true"


def load_settings(
    config_file: Path | None = None,
    root: Path | None = None,
    *,
    commitlog: Sequence[Path] = (),
    broker_version: str | None = None,
    values: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from a broker's properties file, a store root, or both; the root overrides ``storePathRootDir``.

    ``values`` are properties already read, instead of a file. ``commitlog`` are log folders outside the root that may be
    written to. The file's paths under its own root are moved under the root in use. Raises FailedError if the file cannot be
    read, UsageError if the file is misnamed or a size in it is no positive number.
    """
    if values is None:
        values = _read_properties(config_file) if config_file is not None else {}
    configured_root = values.get("storePathRootDir")
    used = absolute_path(root) if root is not None else absolute_path(Path(configured_root or "~/store").expanduser())

    def rebased(text: str) -> Path:
        path = absolute_path(Path(text.strip()).expanduser())
        old = absolute_path(Path(configured_root).expanduser()) if configured_root else None
        if old is not None and path.is_relative_to(old):
            return used / path.relative_to(old)
        return path

    named = [rebased(p) for p in values.get("storePathCommitLog", "").split(_PATH_SEPARATOR) if p.strip()]
    read_only = [rebased(p) for p in values.get("readOnlyCommitLogStorePaths", "").split(_PATH_SEPARATOR) if p.strip()]
    given = {real_path(path) for path in commitlog}
    known, default = {real_path(path) for path in named}, used / paths.COMMITLOG
    more = [path for path in commitlog if real_path(path) not in known]
    named += [default if real_path(path) == real_path(default) else absolute_path(path) for path in more]
    logs = tuple(dict.fromkeys([*(named or [default]), *(read_only if len(named) > 1 else [])]))
    inside = real_path(used)
    writable = tuple(
        path
        for path in logs
        if (real := real_path(path)) in given or (path not in read_only and real.is_relative_to(inside))
    )
    queue_file = _size(values, "mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue")
    return Settings(
        root=used,
        commitlog_paths=logs,
        writable_commitlog_paths=writable,
        segment_size_bytes=_size(values, "mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
        queue_file_size_bytes=rounded_file_size_bytes(queue_file) if queue_file else None,
        batch_queue_file_size_bytes=_size(values, "mapperFileSizeBatchConsumeQueue"),
        ext_file_size_bytes=_size(values, "mappedFileSizeConsumeQueueExt"),
        index_slots=_size(values, "maxHashSlotNum"),
        index_entries=_size(values, "maxIndexNum"),
        delay_levels=values.get("messageDelayLevel"),
        max_message_size_bytes=_size(values, "maxMessageSize"),
        broker_version=broker_version,
        values=values,
    )


def _read_properties(config_file: Path) -> dict[str, str]:
    from store_core.codec.java_properties import parse_java_properties

    try:
        data = _read_file_or_pipe(config_file)
    except OSError as error:
        kind = UsageError if error.errno in _WRONGLY_NAMED else FailedError
        raise kind(
            f"cannot read the configuration: {error.strerror}",
            path=str(config_file),
            to_do="name the broker's properties file with -c",
        ) from error
    return parse_java_properties(data)


def _read_file_or_pipe(path: Path) -> bytes:
    """Read at most the first 1 MiB of a file, or of a pipe (``-c <(...)``) with a writer. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    os.set_blocking(fd, True)
    with os.fdopen(fd, "rb") as file:
        data = file.read(_LONGEST_CONFIG_BYTES)
    if not (stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and data)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return data


def _size(values: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if name in values:
            try:
                size = int(values[name].strip())
            except ValueError:
                size = 0
            if size <= 0:
                raise UsageError(f"{name}={values[name]} is no positive number", to_do="mend the configuration file")
            return size
    return None

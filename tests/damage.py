"""Damage said in a line: ``store.flip(record=7, field="body")``, ``store.tear(tail=13)``, ``store.lose(segment=1)``.

Positions come from the truth about the store, never from a scan of ours. Every method returns the absolute offset (or path) it
harmed, so that a test can say what it expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store_core.layout import paths, queue, record
from store_core.layout.schema import Layout
from tests.surgery import set_exit


@dataclass(frozen=True, slots=True)
class Damageable:
    """A writable copy of a golden store, with the truth about it."""

    root: Path
    truth: dict[str, Any]

    @property
    def segments(self) -> list[Path]:
        """Files of the log in order, as they are now."""
        return sorted((self.root / paths.COMMITLOG).iterdir())

    @property
    def segment_size_bytes(self) -> int:
        return int(self.truth["properties"]["mappedFileSizeCommitLog"])

    @property
    def queue_file_size_bytes(self) -> int:
        return queue.rounded_file_size_bytes(int(self.truth["properties"]["mappedFileSizeConsumeQueue"]))

    @property
    def end_phy_offset(self) -> int:
        """Where the log's last record ends."""
        last = self.truth["messages"][-1]
        return int(last["phyOffset"] + last["storeSize"])

    def message(self, record: int) -> dict[str, Any]:
        """The truth about the n-th record of the log; negative counts from the end."""
        found: dict[str, Any] = self.truth["messages"][record]
        return found

    def read(self, phy_offset: int, size_bytes: int) -> bytes:
        path, at = self._place(phy_offset)
        with path.open("rb") as file:
            file.seek(at)
            return file.read(size_bytes)

    def write(self, phy_offset: int, data: bytes) -> int:
        """Overwrite bytes of the log; they must lie in one segment."""
        path, at = self._place(phy_offset)
        assert at + len(data) <= self.segment_size_bytes
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)
        return phy_offset

    def zero(self, phy_offset: int, size_bytes: int) -> int:
        """Zero bytes of the log."""
        return self.write(phy_offset, bytes(size_bytes))

    def flip_at(self, phy_offset: int, mask: int = 1) -> int:
        """Flip bits of one byte of the log."""
        return self.write(phy_offset, bytes([self.read(phy_offset, 1)[0] ^ mask]))

    def flip(self, record: int, field: str, byte: int = 0, mask: int = 1) -> int:
        """Flip bits in a record's field: a name of layout/record.py, or ``body``, ``topic``, ``properties``."""
        return self.flip_at(self.field_at(record, field) + byte, mask)

    def set_field(self, record: int, field: str, value: int) -> int:
        """Overwrite a fixed field with another number."""
        return self.write(self.field_at(record, field), _layout_of(field).field_struct(field).pack(value))

    def field_at(self, record: int, field: str) -> int:
        """Absolute offset of a field of the n-th record."""
        message = self.message(record)
        return int(message["phyOffset"]) + offset_in_record(message, field)

    def tear(self, tail: int) -> int:
        """Zero the last bytes of the last record: a write that never finished."""
        return self.zero(self.end_phy_offset - tail, tail)

    def append(self, data: bytes) -> int:
        """Bytes behind the last record, as a reused file or a wild write leaves them."""
        return self.write(self.end_phy_offset, data)

    def copy_record(self, record: int, to: int | None = None) -> int:
        """A byte copy of a record elsewhere in the log, behind the last record if nothing is said."""
        message = self.message(record)
        data = self.read(message["phyOffset"], message["storeSize"])
        return self.write(self.end_phy_offset if to is None else to, data)

    def lose(self, segment: int) -> Path:
        """Remove the n-th segment."""
        path = self.segments[segment]
        path.unlink()
        return path

    def cut(self, segment: int, size_bytes: int) -> Path:
        """Shorten the n-th segment's file."""
        path = self.segments[segment]
        with path.open("r+b") as file:
            file.truncate(size_bytes)
        return path

    def queue_file(self, topic: str, queue_id: int, queue_offset: int) -> tuple[Path, int]:
        """The file that holds an entry, and the entry's place in it."""
        start, at = divmod(queue_offset * queue.ENTRY.size_bytes, self.queue_file_size_bytes)
        name = paths.segment_name(start * self.queue_file_size_bytes)
        return self.root / paths.CONSUMEQUEUE / topic / str(queue_id) / name, at

    def set_entry(self, topic: str, queue_id: int, queue_offset: int, entry: tuple[int, int, int] = (0, 0, 0)) -> Path:
        """Overwrite a queue entry with (phy_offset, size_bytes, tags_code); zeros if nothing is said."""
        path, at = self.queue_file(topic, queue_id, queue_offset)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(queue.ENTRY.struct.pack(*entry))
        return path

    def crash(self) -> None:
        """Make it look killed: ``abort`` present."""
        set_exit(self.root, "crash")

    def _place(self, phy_offset: int) -> tuple[Path, int]:
        at = phy_offset % self.segment_size_bytes
        return self.root / paths.COMMITLOG / paths.segment_name(phy_offset - at), at


_FIXED = (record.HEAD, record.STORE_TIME, record.MIDDLE)


def _layout_of(field: str) -> Layout:
    return next(layout for layout in _FIXED if field in layout.names)


def offset_in_record(message: dict[str, Any], field: str) -> int:
    sys_flag: int = message["sysFlag"]
    body: int = record.body_at(sys_flag)
    topic: int = body + message["bodyLength"] + record.topic_length_layout(message["magic"]).size_bytes
    variable: dict[str, int] = {
        "born_host": record.HEAD.size_bytes,
        "store_host": record.store_host_at(sys_flag),
        "body": body,
        "topic": topic,
        "properties": topic + len(message["topic"].encode()) + record.PROPERTIES_LENGTH.size_bytes,
    }
    starts = (0, record.store_time_at(sys_flag), record.middle_at(sys_flag))
    fixed = {n: at + layout.offset_of(n) for at, layout in zip(starts, _FIXED, strict=True) for n in layout.names}
    return (fixed | variable)[field]

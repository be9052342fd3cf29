"""Model a consume queue as a broker has it in memory: recover, append, cut, find min and max (behaviour 2, 3.7, 7, 11.3)."""

from __future__ import annotations

from bisect import bisect_right
from ctypes import c_int64
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.misnamed_queue_files import looked_up
from store_core.broker.pending_entries import AppendedEntries, EntrySpool
from store_core.broker.versions import MinOffsetSearch
from store_core.kernel.entries import GoodRun, good_run
from store_core.layout import queue as layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from store_core.broker.consume_queue_ext import ExtFiles
    from store_core.broker.misnamed_queue_files import OffGridFiles
    from store_core.broker.versions import Behaviour
    from store_core.storage.sequence import SegmentSequence
    from store_core.storage.store import QueueKey

Entries = NDArray[Any]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

FILES_CHECKED: Final = 3  # recovery trusts all but the newest three files
MOST_FALLING: Final = 1000
ANYWHERE: Final = 1 << 63  # no offset reaches it; 2^63 - 1 is an offset like any other
_FILLER: Final = (layout.FILLER_PHY_OFFSET, layout.FILLER_SIZE_BYTES, layout.FILLER_TAGS_CODE)


class QueueState:
    """A queue of 20-byte entries. Positions are bytes of the queue unless they are called queue offsets.

    ``starts``: the positions at which its files start. Entries before ``_appended_at`` are those of the files as found;
    ``_appended`` are the entries that a broker would write from there, which go to ``spool``. Files are read when needed.
    """

    layout = layout.ENTRY

    def __init__(
        self,
        key: QueueKey,
        file_size_bytes: int,
        behaviour: Behaviour,
        found: Mapping[QueueKey, SegmentSequence] | None,
        starts: list[int],
        *,
        spool: EntrySpool,
        ext: ExtFiles | None = None,
        off_grid: OffGridFiles | None = None,
    ) -> None:
        self.key = key
        self.file_size_bytes = file_size_bytes
        self.starts = starts
        self.end_phy_offset = -1  # the queue's end in the log
        self.min_position = 0
        self.deleted: list[int] = []  # files that are unlinked
        self.drifted = 0  # entries appended at another position than their message's queue offset
        self.falling: list[int] = []  # queue offsets of recovered entries that lie before an earlier entry in the log
        self._behaviour = behaviour
        self._open = found
        self._spool = spool
        self._ext = ext
        self._off_grid = off_grid
        self._as_found = set(starts)
        self._in_last_file = file_size_bytes if starts else 0
        self._cut: dict[int, int] = {}  # written bytes, as a broker sees them, of files that the last one overlaps
        self._appended_at: int | None = None
        self._appended_in = -1  # the file of the first appended entry

    # -- what it holds -------------------------------------------------------------------------------------------

    @property
    def _found(self) -> SegmentSequence | None:
        """The files as they were found; not kept here, as a store with many queues reopens them."""
        return self._open[self.key] if self._open is not None else None

    @cached_property
    def _appended(self) -> AppendedEntries:
        return AppendedEntries(self.layout.dtype, self._spool)

    @property
    def entry_size_bytes(self) -> int:
        return self.layout.size_bytes

    @property
    def end(self) -> int:
        """The position of the next entry."""
        return self.starts[-1] + self._in_last_file if self.starts else 0

    @property
    def min_offset(self) -> int:
        """The first queue offset that consumers get."""
        return self.min_position // self.entry_size_bytes

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        return self.end // self.entry_size_bytes

    @property
    def hides_entries(self) -> bool:
        """True if consumers may not reach all entries."""
        return self._ext is not None

    def reaches(self, position: int, entries: Entries) -> Mask:
        """Return the mask of ``entries``, of a file from ``position`` on, that a consumer of every number reaches."""
        if self._ext is None or not len(entries):
            return np.ones(len(entries), np.bool_)
        end = position + len(entries) * self.entry_size_bytes
        is_last = end in self.starts or end >= self.end
        following = self.entries(end, end + (0 if is_last else self.entry_size_bytes))
        is_throwing = self._ext.throws(np.r_[entries["tags_code"], following["tags_code"]].astype(np.int64))
        mask = ~is_throwing[: len(entries)]
        if self._behaviour.reads_next_tags:
            mask[: len(is_throwing) - 1] &= ~is_throwing[1:]
        return mask

    def entries(self, start: int, end: int) -> Entries:
        """Return the entries in [start, end) as found and appended; unwritten ones are zero. Aligned to entries, unbounded."""
        size = self.entry_size_bytes
        if self._off_grid is not None:
            return self._looked_up(start + -start % size, (end - start) // size)
        if self._appended_at is None and (files := self._found) is not None:
            place = bisect_right(self.starts, start) - 1
            file_at_start = self.starts[place] if place >= 0 else -1
            if file_at_start in self._as_found and start < end <= file_at_start + self.file_size_bytes:
                data = files.read(start, end - start)
                if len(data) == end - start and not len(data) % size:  # one file has them all
                    return np.frombuffer(data, self.layout.dtype)
        out = np.zeros((end - start) // size, self.layout.dtype)
        for file_start in sorted(self._as_found):
            low, high = max(start, file_start), min(end, file_start + self.file_size_bytes)
            if low < high and (files := self._found) is not None:
                data = files.read(low, high - low)
                part = np.frombuffer(data, self.layout.dtype, len(data) // size)
                out[(low - start) // size : (low - start) // size + len(part)] = part
        if self._appended_at is not None:
            self._appended.overlay(out, (start - self._appended_at) // size)
        return out

    def _looked_up(self, start: int, count: int) -> Entries:
        """Return the entries as a broker looks them up if its files are off the grid."""
        out, width = np.zeros(count, self.layout.dtype), self.entry_size_bytes
        for file, at, first, stop in looked_up(start, count, width, self.starts, self.file_size_bytes):
            found = self.in_file(file, file + at, file + at + (stop - first) * width)
            found[max(self.written_in(file) - at, 0) // width :] = 0
            out[first:stop] = found
        return out

    def written_in(self, file: int) -> int:
        """Return how many bytes of the file that starts at ``file`` a broker reads."""
        return self._in_last_file if file == self.starts[-1] else self._cut.get(file, self.file_size_bytes)

    def in_file(self, file: int, start: int, end: int) -> Entries:
        """Return the entries in [start, end) of the file that starts at ``file``, even if files overlap."""
        if self._off_grid is None:
            return self.entries(start, end)
        out = np.zeros((end - start) // self.entry_size_bytes, self.layout.dtype)
        if file in self._as_found:
            data = self._off_grid.at(file).read(start, end - start)
            part = np.frombuffer(data, self.layout.dtype, len(data) // self.entry_size_bytes)
            out[: len(part)] = part
        if self._appended_at is not None and (file == self._appended_in or file not in self._as_found):
            self._appended.overlay(out, (start - self._appended_at) // self.entry_size_bytes)
        return out

    def _used_end(self, file: int) -> int:
        """Return the position after which a file as found has only zeros."""
        if file not in self._as_found or (files := self._found) is None:
            return file
        return (files if self._off_grid is None else self._off_grid.at(file)).used_end(file)

    def _file_entries(self, start: int) -> Entries:
        """Return the entries of a file, up to and with the first that has only zeros after it."""
        end, size = start + self.file_size_bytes, self.entry_size_bytes
        used = self._used_end(start)
        if self._appended_at is not None:
            used = max(used, self._appended_at + len(self._appended) * size)
        places = -(-(used - start) // size) + 1
        return self.in_file(start, start, min(end, start + places * size))

    @property
    def has_appended(self) -> bool:
        """True if the queue has more than its files as they were found."""
        return self._appended_at is not None

    def mark(self) -> tuple[object, ...]:
        """Return a key that differs between unequal states over the same files, with a digest of the appended entries."""
        places = self.min_position, self.end, self.min_offset, self.max_offset
        state = (self.key, self.entry_size_bytes, self.starts, *places)
        if self._appended_at is None:
            return state
        from_files = sorted(self._as_found), sorted(self._cut.items())
        return *state, *from_files, self._appended_at, self._appended_in, self._appended.digest()

    # -- recovery (2) --------------------------------------------------------------------------------------------

    def recover(self) -> str:
        """Find the end, the first invalid entry from the third newest file on; return why that fails, or ""."""
        if not self.starts:
            return ""
        place = max(len(self.starts) - FILES_CHECKED, 0)
        highest = -1
        while True:
            start = self.starts[place]
            found = self._file_entries(start)
            count, highest, falling = self._good_run(found, highest=highest, room=MOST_FALLING - len(self.falling))
            if count:
                self.end_phy_offset = self._end_of(found[count - 1])
                self.falling += [start // self.entry_size_bytes + number for number in falling]
            if count < len(found) or place + 1 == len(self.starts):
                break
            place += 1
        first = self.starts[max(len(self.starts) - FILES_CHECKED, 0)]
        self._cut_files(start, count * self.entry_size_bytes)
        self._recovered()
        return self._ext.recover(self._newest_address(first)) if self._ext is not None else ""

    def _newest_address(self, begin: int) -> int | None:
        """Return the address of the last ext unit that entries from a position on have, or None."""
        tags = self.entries(begin, self.end)["tags_code"]
        found = tags[tags <= layout.EXT_MAX_ADDRESS]
        return int(found[-1]) if len(found) else None

    def _good_run(self, entries: Entries, *, below: int = ANYWHERE, highest: int = -1, room: int = 0) -> GoodRun:
        """Return the good run; batch queues add their own conditions."""
        return good_run(entries, below=below, highest=highest, room=room)

    def _end_of(self, entry: Any) -> int:
        end = int(entry["phy_offset"])
        return c_int64(
            end if self._behaviour.queue_end_is_start else end + int(entry["size_bytes"])
        ).value  # as Java adds

    def name_of(self, start: int) -> int:
        """Return the number that names the file at a position."""
        return start

    def _cut_files(self, file: int, used_bytes: int) -> None:
        """Drop files after the used bytes of one; each file that contains that end, by its name, is cut there."""
        size, end = self.file_size_bytes, self.name_of(file) + used_bytes
        dropped = {start for start in self.starts if self.name_of(start) > end}
        self.deleted += [self.name_of(start) for start in self.starts if start in dropped]
        self._as_found -= dropped
        self.starts = [start for start in self.starts if start not in dropped]
        if self.starts:
            cut = {start: end % size for start in self.starts if self.name_of(start) + size > end}
            self._in_last_file = cut.pop(self.starts[-1], size)
            self._cut |= cut  # where files overlap

    def _recovered(self) -> None:
        """Do nothing; batch queues find their numbers here."""

    # -- cutting at the end of the log (3.7) ---------------------------------------------------------------------

    def truncate(self, phy_offset: int) -> None:
        """Drop the entries of records at or after ``phy_offset``, as far as a broker looks."""
        self.end_phy_offset = phy_offset - 1 if self._behaviour.queue_end_is_start else phy_offset
        while self.starts:
            start = self.starts[-1]
            found = self._file_entries(start)
            if len(found) and found["phy_offset"][0] < phy_offset:
                # A broker takes the first entry without a check.
                count = 1 + self._good_run(found[1:], below=phy_offset).length
                self._in_last_file = count * self.entry_size_bytes
                self.end_phy_offset = self._end_of(found[count - 1])
                break
            self.drop_last_file()
        self._forget_appended_after(self.end)
        self._recovered()

    def drop_last_file(self) -> None:
        """Unlink the newest file."""
        start = self.starts.pop()
        if start in self._as_found:
            self._as_found.discard(start)
            self.deleted.append(self.name_of(start))
        self._in_last_file = self.file_size_bytes if self.starts else 0

    def drop_all(self) -> None:
        """Unlink all files, as for an empty log."""
        while self.starts:
            self.drop_last_file()
        self._forget_appended_after(0)
        self.end_phy_offset = -1
        self.min_position = 0

    def _forget_appended_after(self, end: int) -> None:
        if self._appended_at is None:
            return
        keep = max((end - self._appended_at) // self.entry_size_bytes, 0)
        self._appended.cut(keep)
        if not keep:
            self._appended_at = None

    # -- dispatch (7) --------------------------------------------------------------------------------------------

    def put(self, phy_offset: Ints, size_bytes: Ints, tags_code: Ints, queue_offset: Ints) -> None:
        """Append entries of records in the order of dispatch, by the broker's rules about repeats, gaps and drops."""
        if self._ext is not None:
            self._ext.grow(len(phy_offset))
        ends = phy_offset if self._behaviour.queue_end_is_start else phy_offset + size_bytes
        if len(ends) > 1 and not (np.diff(ends) > 0).all():
            self._put_singly(phy_offset, size_bytes, tags_code, queue_offset)
            return
        fresh = ends > self.end_phy_offset
        if not fresh.all():
            phy_offset, size_bytes, tags_code, queue_offset = (
                column[fresh] for column in (phy_offset, size_bytes, tags_code, queue_offset)
            )
        if not len(phy_offset):
            return
        self._open_next_file()
        rising = len(queue_offset) == 1 or bool((np.diff(queue_offset) > 0).all())
        overflows = queue_offset[-1] > ANYWHERE // self.entry_size_bytes
        if not rising or overflows or (queue_offset[0] == 0 and self.max_offset):
            self._put_singly(phy_offset, size_bytes, tags_code, queue_offset)
            return
        self._make_first_file(int(queue_offset[0]))
        # Numbers rise by one or more and the end by one: after the first number that is not below the end, none is.
        first = int(np.searchsorted(queue_offset, self.max_offset))
        self._append(phy_offset[first:], size_bytes[first:], tags_code[first:], queue_offset[first:])

    def _put_singly(self, phy_offset: Ints, size_bytes: Ints, tags_code: Ints, queue_offset: Ints) -> None:
        """Put records one at a time, for numbers that fall or repeat, which are rare."""
        for row in range(len(phy_offset)):
            end = int(phy_offset[row])
            if not self._behaviour.queue_end_is_start:
                end += int(size_bytes[row])
            if end <= self.end_phy_offset:
                continue
            number = int(queue_offset[row])
            self._open_next_file()
            self._make_first_file(number)
            position = c_int64(number * self.entry_size_bytes).value  # overflows as in Java: entry 2^61 is before all
            if number and position < self.end:
                continue
            only_row = slice(row, row + 1)
            self._append(phy_offset[only_row], size_bytes[only_row], tags_code[only_row], queue_offset[only_row])

    def _open_next_file(self) -> None:
        """Make the next file if the last one is full, before the check of the queue offset: a broker does so too."""
        if self.starts and self._in_last_file >= self.file_size_bytes:
            self.starts.append(self.starts[-1] + self.file_size_bytes)
            self._in_last_file = 0

    def _make_first_file(self, queue_offset: int) -> None:
        """Make the first file of a queue without files: the file of its first message, with fillers before it (7.3)."""
        if self.starts:
            return
        position = queue_offset * self.entry_size_bytes
        start = position - position % self.file_size_bytes
        self.starts.append(start)
        self._in_last_file = 0
        if position:
            self.min_position = position
            fillers = (position - start) // self.entry_size_bytes
            self._write(np.full(fillers, np.array(_FILLER, self.layout.dtype)))

    def _append(self, phy_offset: Ints, size_bytes: Ints, tags_code: Ints, queue_offset: Ints) -> None:
        if not len(phy_offset):
            return
        entries = np.zeros(len(phy_offset), self.layout.dtype)
        entries["phy_offset"], entries["size_bytes"], entries["tags_code"] = phy_offset, size_bytes, tags_code
        self.drifted += int(np.count_nonzero(queue_offset != self.max_offset + np.arange(len(queue_offset))))
        self._write(entries)
        self.end_phy_offset = self._end_of(entries[-1])

    def _write(self, entries: Entries) -> None:
        """Append entries at the end; make files as they fill up."""
        if not len(entries):
            return
        if self._appended_at is None:
            self._appended_at, self._appended_in = self.end, self.starts[-1]
        self._appended.add(entries)
        self._in_last_file += len(entries) * self.entry_size_bytes
        while self._in_last_file > self.file_size_bytes:
            self.starts.append(self.starts[-1] + self.file_size_bytes)
            self._in_last_file -= self.file_size_bytes

    # -- min offset (11.3) ---------------------------------------------------------------------------------------

    def correct_min(self, log_min_phy_offset: int) -> str:
        """Move the min to the first entry that the log still has, as the release searches it; return why that fails, or ""."""
        if not self.starts:
            return ""
        if self._behaviour.min_offset_search is MinOffsetSearch.LINEAR:
            self._correct_min_linear(log_min_phy_offset)
        elif self.min_position < self.end:
            if not self._in_last_file and self._behaviour.min_offset_search is MinOffsetSearch.BINARY:
                return (
                    f"the newest file of queue {self.key.topic}-{self.key.queue_id} is left without an entry, and the broker"
                    " looks for the one before it in that file (IllegalArgumentException: newPosition < 0)"
                )
            self._correct_min_binary(log_min_phy_offset)
        return ""

    def _first_file_end(self) -> int:
        return self.end if len(self.starts) == 1 else self.starts[0] + self.written_in(self.starts[0])

    def _correct_min_linear(self, log_min: int) -> None:
        start = self.starts[0]
        if self._first_file_end() > start and self._phy_offset_at(start, start) >= log_min:
            self.min_position = start
            return
        in_log = self.in_file(start, start, self._first_file_end())["phy_offset"] >= log_min
        if in_log.any():
            self.min_position = start + int(np.argmax(in_log)) * self.entry_size_bytes

    def _correct_min_binary(self, log_min: int) -> None:
        size = self.entry_size_bytes
        if self._in_last_file and self._phy_offset_at(self.starts[-1], self.end - size) < log_min:
            self.min_position = self.end  # no entry remains, but the numbering continues
            return
        start = self.starts[0]
        begin = max(self.min_position, start)
        end = self._first_file_end()
        if begin >= end:
            return
        if self.min_position >= start and self._phy_offset_at(start, begin) >= log_min:
            return
        low, high = 0, (end - begin) // size - 1
        while high - low > 1:
            middle = (low + high) // 2
            found = self._phy_offset_at(start, begin + middle * size)
            if found > log_min:
                high = middle
            elif found == log_min:
                low = high = middle
            else:
                low = middle
        for place in range(low, high + 1):
            if self._phy_offset_at(start, begin + place * size) >= log_min:
                self.min_position = begin + place * size
                return

    def _phy_offset_at(self, file: int, position: int) -> int:
        return int(self.in_file(file, position, position + self.entry_size_bytes)["phy_offset"][0])

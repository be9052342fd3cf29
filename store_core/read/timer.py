"""Read the timer's log (store format, section 10.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from store_core.layout import paths, timer
from store_core.layout.record import MAGIC_BLANK
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_UNIT_MAGICS: Final = range(1, 16)


@dataclass(frozen=True, slots=True)
class TimerUnit:
    """A unit of the timer log: a delayed message, or a request to cancel one (``is_delete``)."""

    position: int
    previous_position: int
    is_roll: bool
    is_delete: bool
    write_timestamp_ms: int
    delay_ms: int
    phy_offset: int
    record_size_bytes: int

    @property
    def delivery_timestamp_ms(self) -> int:
        """The time at which the message is delivered, or passes through the wheel once more."""
        return self.write_timestamp_ms + self.delay_ms


def timer_log(store: Store) -> SegmentSequence:
    """Return the timer log's files; an empty sequence without files."""
    return SegmentSequence([store.root / paths.TIMERLOG], store.cache)


def timer_units(log: SegmentSequence) -> Iterator[TimerUnit]:
    """Yield units in log order; each file ends at its blank, at zeros, or at the first bytes that are no unit."""
    layout, blank = timer.LOG_UNIT, timer.LOG_BLANK
    for segment in log.segments:
        at = segment.phy_offset
        while at + layout.size_bytes <= segment.end_phy_offset:
            data = log.read(at, layout.size_bytes)
            if len(data) < layout.size_bytes or blank.read(data)["magic"] == MAGIC_BLANK:
                break
            unit = layout.read(data)
            if unit["size_bytes"] != layout.size_bytes or unit["magic"] not in _UNIT_MAGICS:
                break
            yield TimerUnit(
                at,
                unit["previous_position"],
                bool(unit["magic"] & timer.MAGIC_ROLL),
                bool(unit["magic"] & timer.MAGIC_DELETE),
                unit["write_timestamp_ms"],
                unit["delay_ms"],
                unit["phy_offset"],
                unit["record_size_bytes"],
            )
            at += layout.size_bytes

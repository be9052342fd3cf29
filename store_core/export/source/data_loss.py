"""Report data that a stream can no longer read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store_core.errors import FailedError
from store_core.export.source.offsets import Span
from store_core.scan.log import nominal_end
from store_core.storage.sequence import SegmentSequence
from store_core.storage.settings import Settings

_FROM_START: Final = 'start the query with another checkpoint, or go on with option("failOnDataLoss", "false")'
MISSING: Final = "the segment that goes on there is missing or incomplete"
BRING_BACK: Final = (
    'bring it back and start the query again, or go on without it with option("failOnDataLoss", "false")'
)


@dataclass(frozen=True, slots=True)
class Named:
    """A store by its name in the ``store`` column."""

    name: str
    settings: Settings


def data_lost(named: Named, start: int, what: str, to_do: str = _FROM_START) -> FailedError:
    """Return the error for data that a stream has lost, with the command that helps."""
    return FailedError(
        f"the stream has read {named.name} up to {start}, and {what}", path=str(named.settings.root), to_do=to_do
    )


def refuse_gaps(log: SegmentSequence, named: Named, span: Span) -> None:
    """Raise FailedError where a segment of a batch's range is missing or short."""
    starts = [gap.phy_offset for gap in log.gaps() if gap.phy_offset + gap.size_bytes > span.begin]
    end = nominal_end(log, log.segments[-1]) if log.segments else 0
    at = max(span.begin, min([*starts, end]))
    if at < span.end:
        raise data_lost(named, at, MISSING, BRING_BACK)

"""What a table's log tells about the values in a file, so that readers need not open those that hold nothing for them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.parts import Part

_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


def delta_statistics(part: WrittenFile) -> str:
    """Statistics of an add action of Delta's protocol, JSON."""
    least: dict[str, Any] = {"store": part.store} if part.store else {}
    most = dict(least)
    if isinstance(part, Part):
        _add_bounds(part, least, most)
    return json.dumps({"numRecords": part.rows, "minValues": least, "maxValues": most, "nullCount": {}})


def _add_bounds(part: Part, least: dict[str, Any], most: dict[str, Any]) -> None:
    least["phy_offset"], most["phy_offset"] = part.first_phy_offset, part.last_phy_offset
    if part.topics is not None and not (part.partition and part.partition[0] == "topic"):
        least["topic"], most["topic"] = part.topics
    if part.store_times_ms is not None:
        least["store_time"], most["store_time"] = (_time(time) for time in part.store_times_ms)


def _time(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds") + "Z"

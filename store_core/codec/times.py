"""Parse and format times as people write them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME_MS: Final = (1 << 63) - 1

_EPOCH_MS: Final = re.compile(r"\+?\d{1,18}", re.ASCII)
_DATE: Final = re.compile(r"(19[7-9]\d|20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", re.ASCII)


def format_time(timestamp_ms: int, zone: tzinfo = UTC) -> str:
    """Return ISO 8601 with milliseconds in ``zone``; a number outside the calendar stays a number."""
    try:
        moment = (EPOCH + timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    text = moment.isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z" if zone is UTC else text


def time_ms(text: str, zone: tzinfo = UTC) -> int | None:
    """Return milliseconds since the epoch; None for a text that is no time.

    ISO 8601 without an offset is a time in ``zone``; a date alone is its midnight. Eight digits that form a date since 1970 (``20261121``) are that
    date, not milliseconds.
    """
    if _EPOCH_MS.fullmatch(text) and not _DATE.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
        return (moment - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None

"""Parse times of the command line into milliseconds since the epoch, and show them in ISO 8601."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from store_core.codec.times import format_time, time_ms
from store_core.errors import UsageError

__all__ = ["format_time", "parse_time", "parse_zone"]

_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_AGE: Final = re.compile(r"-((?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+)")
_AGE_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d{2})?")
_LOCALTIME: Final = "/etc/localtime"
_SAMPLES: Final = [datetime(year, month, 15) for year in range(1990, 2036) for month in (1, 4, 7, 10)]
_TO_DO: Final = "give ISO 8601 (2026-11-21T14:30:00.250Z), milliseconds since 1970, or an age such as -15m or -2h30m"


def parse_time(text: str, now_ms: int, zone: tzinfo = UTC) -> int:
    """Return ISO 8601, epoch milliseconds, an age (``-15m``) or ``now`` as milliseconds since the epoch.

    ISO 8601 without an offset is a time in ``zone``; a date alone is its midnight. Raises UsageError for anything else.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if age := _AGE.fullmatch(text):
        return now_ms - round(sum(float(n) * _UNIT_MS[unit] for n, unit in _AGE_PART.findall(age[1])))
    found = time_ms(text, zone)
    if found is None:
        raise UsageError(f"{text!r} is no time", to_do=_TO_DO)
    return found


def parse_zone(text: str) -> tzinfo:
    """Return the zone ``UTC``, ``local``, of an offset (``+08:00``) or of an IANA name. Raises UsageError."""
    if text.upper() in ("UTC", "Z", "GMT"):
        return UTC
    if text.lower() == "local":
        return _Local()
    if offset := _OFFSET.fullmatch(text):
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        if minutes < 24 * 60:
            return timezone(timedelta(minutes=minutes if offset[1] == "+" else -minutes))
    else:
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(text)
        except (ValueError, OSError, LookupError):  # an unknown name, a name that is no relative path, or no database
            pass
    raise UsageError(
        f"unknown time zone {text!r}",
        to_do="give UTC, local, an offset such as +08:00, or a name such as Asia/Shanghai",
    )


class _Local(tzinfo):
    """The machine's zone, with the offset in force at each moment."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return "local"

    def fromutc(self, moment: datetime) -> datetime:
        known = moment.replace(tzinfo=UTC).astimezone()
        local = known.replace(tzinfo=self)
        return local if local.utcoffset() == known.utcoffset() else local.replace(fold=1)  # a repeated hour

    @property
    def key(self) -> str | None:
        """The zone's name in the IANA database; None if no zone there has the same offsets."""
        from zoneinfo import ZoneInfo

        zone_path = os.environ.get("TZ", "").removeprefix(":") or os.path.realpath(_LOCALTIME)
        name = zone_path.rpartition("zoneinfo/")[2]
        hours = (self.utcoffset(_SAMPLES[0]) or timedelta()) // timedelta(hours=1)
        for named in (name, "UTC" if not hours else f"Etc/GMT{-hours:+d}"):  # Etc/GMT names have the sign reversed
            try:
                zone = ZoneInfo(named)
            except (ValueError, OSError, LookupError):
                continue
            if all(zone.utcoffset(moment) == self.utcoffset(moment) for moment in _SAMPLES):
                return named
        return None

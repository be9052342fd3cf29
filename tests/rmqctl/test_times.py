"""Times: parsed from what people write, shown in the zone they ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.times import format_time, parse_time, parse_zone
from store_core.errors import UsageError

NOW_MS = 1_795_227_125_343  # 2026-11-21T02:12:05.343Z


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2026-11-21T02:12:05.343Z", NOW_MS),
        ("2026-11-21T02:12:05.343+00:00", NOW_MS),
        ("2026-11-21T10:12:05.343+08:00", NOW_MS),
        ("2026-11-21 02:12:05.343", NOW_MS),
        ("2026-11-21T02:12:05", NOW_MS - 343),
        ("2026-11-21", 1_795_219_200_000),
        ("20261121T021205Z", NOW_MS - 343),
        ("20261121", 1_795_219_200_000),
        ("20261321", 20_261_321),
        ("19691231", 19_691_231),
        ("1795227125343", NOW_MS),
        ("0", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("now", NOW_MS),
        ("-15m", NOW_MS - 15 * 60_000),
        ("-90s", NOW_MS - 90_000),
        ("-250ms", NOW_MS - 250),
        ("-2h30m", NOW_MS - 150 * 60_000),
        ("-1.5h", NOW_MS - 90 * 60_000),
        ("-3d", NOW_MS - 3 * 86_400_000),
        ("-1w", NOW_MS - 7 * 86_400_000),
        (" -15min ", NOW_MS - 15 * 60_000),
    ],
)
def test_what_people_write(text: str, expected_ms: int) -> None:
    assert parse_time(text, NOW_MS) == expected_ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "15m", "-15", "-15x", "-m", "2026-13-01", "12:30", "1e12", "0x10", "9" * 19, "--5m"]
)
def test_what_is_no_time_says_what_is(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, NOW_MS)
    assert caught.value.what == f"{text!r} is no time"
    assert "ISO 8601" in caught.value.to_do


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-10-25T02:30", "2026-10-25T02:30+02:00"),  # twice
        ("2026-10-25T02:30+01:00", "2026-10-25T02:30+01:00"),
        ("2026-03-29T02:30", "2026-03-29T02:30+01:00"),  # never
    ],
)
def test_where_clocks_are_set(text: str, meant: str) -> None:
    assert parse_time(text, NOW_MS, parse_zone("Europe/Berlin")) == parse_time(meant, NOW_MS)


def test_without_an_offset_the_zone_counts() -> None:
    shanghai = parse_zone("Asia/Shanghai")
    assert parse_time("2026-11-21T10:12:05.343", NOW_MS, shanghai) == NOW_MS
    assert parse_time("2026-11-21T02:12:05.343Z", NOW_MS, shanghai) == NOW_MS


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "2026-11-21T02:12:05.343Z"),
        ("utc", "2026-11-21T02:12:05.343Z"),
        ("+08:00", "2026-11-21T10:12:05.343+08:00"),
        ("-0330", "2026-11-20T22:42:05.343-03:30"),
        ("Asia/Shanghai", "2026-11-21T10:12:05.343+08:00"),
        ("America/New_York", "2026-11-20T21:12:05.343-05:00"),
    ],
)
def test_zones(zone: str, shown: str) -> None:
    assert format_time(NOW_MS, parse_zone(zone)) == shown
    assert parse_time(shown, 0) == NOW_MS


def test_summer_time_is_the_moments_own() -> None:
    assert format_time(1_783_000_000_000, parse_zone("America/New_York")).endswith("-04:00")


_AUTUMN = ("00:30", "01:30", "01:30", "02:30")  # summer time ends: an hour comes twice
_OFFSETS = ("-04:00", "-04:00", "-05:00", "-05:00")


def test_local_is_the_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        local = parse_zone("local")
        assert format_time(NOW_MS, local) == "2026-11-20T21:12:05.343-05:00"
        assert format_time(1_783_000_000_000, local).endswith("-04:00")
        assert parse_time("2026-11-20T21:12:05.343", 0, local) == NOW_MS
        twice = [format_time(1_793_507_400_000 + hours * 3_600_000, local) for hours in range(4)]
        assert twice == [f"2026-11-01T{time}:00.000{at}" for time, at in zip(_AUTUMN, _OFFSETS, strict=True)]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("zone", ["Mars", "", "+25:00", "../../etc/passwd", "/etc/localtime", "\0", "A" * 5000])
def test_unknown_zones(zone: str) -> None:
    with pytest.raises(UsageError, match="unknown time zone"):
        parse_zone(zone)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_of_a_damaged_record_can_be_shown(timestamp_ms: int) -> None:
    shown = format_time(timestamp_ms, timezone(timedelta(hours=8)))
    assert shown == str(timestamp_ms) or datetime.fromisoformat(shown).tzinfo is not None


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_shown_times_are_read_back_exactly(timestamp_ms: int) -> None:
    assert parse_time(format_time(timestamp_ms, UTC), 0) == timestamp_ms

"""Parse delay level tables: ``1s 5s 10s 30s 1m …`` (store format, section 6.2)."""

from __future__ import annotations

from typing import Final

from store_core.layout.paths import DEFAULT_DELAY_LEVELS

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS: Final = 1000  # the delay of a level that is not in a broker's table


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of levels 1, 2, …. Raises ValueError where a broker would refuse the table."""
    levels = []
    for word in text.strip().split(" "):
        number, unit = word[:-1], word[-1:]
        if unit not in _UNITS_MS or not number.removeprefix("-").isdecimal():
            raise ValueError(f"{word!r} is no delay level")
        levels.append(int(number) * _UNITS_MS[unit])
    return tuple(levels)


DEFAULT_DELAYS_MS: Final = parse_delay_levels(DEFAULT_DELAY_LEVELS)


def delivery_timestamp_ms(store_timestamp_ms: int, level: int, delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS) -> int:
    """Return when a message of a level (above 0) is due, in ms; the level is capped at the table's highest."""
    level = min(level, len(delays_ms))
    return store_timestamp_ms + (delays_ms[level - 1] if level > 0 else UNKNOWN_LEVEL_MS)

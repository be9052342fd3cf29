"""Numbers in properties at which a broker's check of a record fails. Which these are was asked of real brokers: tests/broker/test_product.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from store_core.kernel.codes import FrameCode, PropertyFlag, ScanFlag, ScanState
from tests.kernel.driver import ALL, both, segments

DELAYED, ANY = b"SCHEDULE_TOPIC_XXXX", b"Calm_orders"
BATCH: Final = b"INNER_NUM\x01%b\x02INNER_BASE\x01%b\x02"
BAD: Final = (
    (DELAYED, b"DELAY\x01x\x02"),
    (DELAYED, b"DELAY\x013\x02DELAY\x01x\x02"),
    (DELAYED, b"DELAY\x012147483648\x02"),
    (DELAYED, b"DELAY\x013\x014\x02"),
    (DELAYED, b"DELAY\x01-\x02"),
    (ANY, BATCH % (b"x", b"1")),
    (ANY, BATCH % (b"1", b"y")),
    (ANY, BATCH % (b"32768", b"1")),
    (ANY, BATCH % (b"1", b"9223372036854775808")),
    (ANY, b"INNER_NUM\x01\xff\x02INNER_BASE\x010\x02"),
)
GOOD: Final = (
    (DELAYED, b"DELAY\x01x\x02DELAY\x013\x02"),
    (DELAYED, b"DELAY\x01+3\x02"),
    (DELAYED, b"DELAY\x01-2147483648\x02"),
    (DELAYED, b"DELAY\x01\x02"),
    (DELAYED, b"xDELAY\x01x\x02"),
    (ANY, b"DELAY\x01x\x02"),
    (ANY, BATCH % (b"000000000000000000032767", b"-9223372036854775808")),
    (ANY, b"INNER_NUM\x01x\x02"),
    (ANY, b"INNER_NUMB\x01x\x02INNER_BASE\x01x\x02"),
    (ANY, b"INNER_NUM\x01x\x02INNER_BASE\x01\x02"),
)
FLAGS: Final = (
    ALL,
    ScanFlag.CHECK_NUMBERS,
    ScanFlag.CHECK_NUMBERS | ScanFlag.NO_PROPERTIES,
    ALL | ScanFlag.RUNS,
    ALL | ScanFlag.RUNS | ScanFlag.NO_PROPERTIES,
)


@pytest.mark.parametrize(
    ("text", "is_parted"),
    [
        (b"TAGS\x01a\x01b\x02", True),
        (b"KEYS\x01a\x01\x02", True),
        (b"UNIQ_KEY\x01\x01\x02", True),
        (b"DELAY\x013\x014\x02", True),
        (b"TAGS\x01a\x01b\x02TAGS\x01a\x02", False),
        (b"TAGSB\x01a\x01b\x02", False),
        (b"TRAN_MSG\x01a\x01b\x02", False),
    ],
)
def test_separators_in_values(text: bytes, is_parted: bool, golden: Callable[[str], Path]) -> None:
    segment = segments(golden("load-533"))[0]
    call = segment.phy_offset, 0, segment.end_phy_offset, int(ScanState.CHAINED)
    found = both(segment.data, *call, 0)
    row = int(np.argmax(found.properties_length > len(text) + len(b"p\x01x")))
    at, length = int(found.properties_at[row]), int(found.properties_length[row])
    changed = segment.changed(at, (text + b"p\x01").ljust(length, b"x"))
    parted = both(changed.data, *call, int(ALL)).property_flags & PropertyFlag.PARTED_VALUE != 0
    assert np.flatnonzero(parted).tolist() == [row] * is_parted
    assert not (both(changed.data, *call, 0).property_flags & PropertyFlag.PARTED_VALUE).any()


@pytest.mark.product
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(
    ("topic", "text", "code"), [(*case, FrameCode.BAD_NUMBER) for case in BAD] + [(*case, 0) for case in GOOD]
)
def test_numbers_in_properties(
    topic: bytes, text: bytes, code: int, flags: ScanFlag, golden: Callable[[str], Path]
) -> None:
    segment = segments(golden("load-533"))[0]
    call = segment.phy_offset, 0, segment.end_phy_offset, int(ScanState.CHAINED)
    found = both(segment.data, *call, 0)
    row = next(
        row for row, number in enumerate(found.topic_id.tolist()) if number >= 0 and found.topics[number] == topic
    )
    at, length = int(found.properties_at[row]), int(found.properties_length[row])
    assert len(text) + len(b"p\x01x") <= length
    changed = segment.changed(at, (text + b"p\x01").ljust(length, b"x"))
    told = both(changed.data, *call, int(flags))
    codes = dict(zip(told.phy_offset.tolist(), told.code.tolist(), strict=True))
    assert codes.get(int(found.phy_offset[row]), 0) == code
    assert set(codes.values()) <= {0, code}
    assert not both(changed.data, *call, int(flags & ~ScanFlag.CHECK_NUMBERS)).code.any()

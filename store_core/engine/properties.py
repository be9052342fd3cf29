"""Complete the properties that a broker stores: those it adds, and their order (store format 4, 12.2; store behaviour 4.1)."""

from __future__ import annotations

import os
import random
import time
from itertools import count
from typing import Final

from store_core.codec.properties import TIMER_DEL_UNIQKEY as TIMER_DEL_UNIQKEY
from store_core.codec.properties import TIMER_OUT_MS as TIMER_OUT_MS
from store_core.layout import message_id, record

CLUSTER: Final = "CLUSTER"
WAIT: Final = "WAIT"
TRANSACTION_ID: Final = "__transactionId__"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"

_WORD: Final = 1 << 32
_HALF_WORD: Final = 1 << 16
_process_mark: Final = random.SystemRandom().getrandbits(31)  # in the place of Java's class loader hash
_counter: Final = count()


def make_unique_key(raw_host: bytes, now_ms: int) -> str:
    """Return a unique key as the Java client makes it. ``raw_host``: the client's host as stored; its port is not used."""
    now = time.localtime(now_ms // 1000)
    month_start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    month_ms = (now_ms - int(month_start) * 1000) % _WORD
    address = raw_host[: -record.HOST_PORT_SIZE_BYTES]
    tail = message_id.UNIQUE_KEY_TAIL.struct.pack(
        os.getpid() % _HALF_WORD, _process_mark, month_ms, next(_counter) % _HALF_WORD
    )
    return (address + tail).hex().upper()

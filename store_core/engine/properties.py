"""Complete the properties that a broker stores: those it adds, and their order (store format 4, 12.2; store behaviour 4.1)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from itertools import count
from typing import Final

from store_core.codec.properties import TIMER_DEL_UNIQKEY as TIMER_DEL_UNIQKEY
from store_core.codec.properties import TIMER_OUT_MS as TIMER_OUT_MS
from store_core.codec.tags import java_hash
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


def in_java_order(properties: Mapping[str, str], first_size: int) -> dict[str, str]:
    """Return the entries in the order of a Java hash map that started with ``first_size`` places.

    Equal places keep the order of arrival, which is that of ``properties``.
    """
    places = first_size
    while len(properties) > places * 3 // 4:
        places *= 2

    def place(name: str) -> int:
        value = java_hash(name) % _WORD
        return (value ^ value >> 16) & (places - 1)

    return dict(sorted(properties.items(), key=lambda pair: place(pair[0])))


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

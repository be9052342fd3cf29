"""What a document says of a message, and the truth to hold it against."""

from __future__ import annotations

import base64
from typing import Any

from tests import stores

MESSAGE = [
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "size_bytes",
    "offset_msg_id",
    "unique_key",
    "tags",
    "keys",
    "flag",
    "sys_flag",
    "transaction",
    "compression",
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "crc",
    "body_size_bytes",
    "properties",
    "body",
    "body_encoding",
]
NAME = "load-533"


def told(name: str = NAME) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = stores.truth(name)["messages"]
    return messages


def body_of(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["body"]) if row["body_encoding"] == "base64" else row["body"].encode()

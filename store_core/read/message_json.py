"""Build the MESSAGE object of the command line's contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from store_core.codec.compression import BodyError
from store_core.codec.record import Message, body_crc_ok
from store_core.findings import Finding, finding
from store_core.read.body_text import BodyText, plain_text, stored_text

BodyForm = Literal["plain", "raw", "none"]
_BODY_FIELDS: Final = ("body", "body_encoding")
_FIELDS: Final = (
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
)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A choice of the body to show: decompressed, as stored, or none. A large body is a ``LongBody``."""

    body: BodyForm = "plain"

    @property
    def fields(self) -> tuple[str, ...]:
        """The keys of every message in this view."""
        return _FIELDS if self.body == "none" else _FIELDS + _BODY_FIELDS

    def as_json(self, message: Message, findings: list[Finding] | None = None) -> dict[str, Any]:
        """Return one MESSAGE. A wrong checksum and a body that cannot be decompressed are added to ``findings``."""
        crc_holds = body_crc_ok(message)
        shown = {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "phy_offset": message.phy_offset,
            "size_bytes": message.size_bytes,
            "offset_msg_id": message.offset_msg_id,
            "unique_key": message.unique_key,
            "tags": message.tags,
            "keys": message.keys,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "transaction": message.transaction,
            "compression": message.compression,
            "born_timestamp_ms": message.born_timestamp_ms,
            "born_host": message.born_host,
            "store_timestamp_ms": message.store_timestamp_ms,
            "store_host": message.store_host,
            "reconsume_times": message.reconsume_times,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "body_crc": message.body_crc,
            "crc": "ok" if crc_holds else "bad",
            "body_size_bytes": len(message.body),
            "properties": message.properties,
        }
        if findings is not None and not crc_holds:
            findings.append(_about("L001", "the body does not match its checksum", message))
        if self.body != "none":
            shown |= self._body(message, findings)
        return shown

    def _body(self, message: Message, findings: list[Finding] | None) -> dict[str, BodyText]:
        body = message.body
        try:
            if self.body == "raw":
                text, encoding = stored_text(body, base64=message.compression != "none")
            else:
                text, encoding = plain_text(body, message.sys_flag)
        except BodyError as error:
            if findings is not None:
                findings.append(_about("L012", f"the body is given as stored: {error}", message))
            text, encoding = stored_text(body, base64=True)
        return {"body": text, "body_encoding": encoding}


def _about(code: str, text: str, message: Message) -> Finding:
    return finding(
        code,
        text,
        phy_offset=message.phy_offset,
        size_bytes=message.size_bytes,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
    )

"""Read messages to import: one JSON object a line, as `rmqctl log` writes them."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from store_core.codec.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from store_core.engine.message import NewMessage

_INT: Final = range(-(1 << 31), 1 << 31)
_LONG: Final = range(1 << 63)
_FOUR_BYTES: Final = range(1 << 31)
_ESCAPED_BYTES: Final = 6  # of a character as \u0000
_WITHOUT_BODY_BYTES: Final = 1 << 20
_WHOLE: Final = (None, "none", "commit")


class Lines(Protocol):
    """A stream of bytes as far as it is read here."""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line with its end, at most ``limit`` bytes of it; none at the end."""
        ...


class RowError(Exception):
    """A row is no message that can be stored; the text is the reason."""


def lines_of(stream: Lines, longest_body_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of a stream; None for one that is longer than that of the longest message, which is passed over."""
    limit = _ESCAPED_BYTES * longest_body_bytes + _WITHOUT_BODY_BYTES
    while line := stream.readline(limit):
        if len(line) == limit and not line.endswith(b"\n"):
            while (rest := stream.readline(limit)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line


def message_of(line: bytes | None, topic: str | None, unique_key: str) -> NewMessage:
    """Return the message of a line. Raises RowError.

    ``topic``: instead of the row's own; ``unique_key``: for a row without one. Body, tags, keys, properties, flag, born time and host and a queue id
    are kept; offsets, store time and store host are those of the new record.
    """
    if line is None:
        raise RowError("the row is longer than any message")
    row = _parsed(line)
    if "kind" in row:
        raise RowError(f"the row is no message, but {row['kind']}")
    if row.get("transaction") not in _WHOLE:
        raise RowError("one half of a transaction is no message of its own")
    properties = _properties(row)
    properties.setdefault(UNIQ_KEY, unique_key)
    born_ms = row.get("born_timestamp_ms")
    queue_id = row.get("queue_id")
    return NewMessage(
        topic=topic if topic is not None else _text(row, "topic"),
        body=_body(row),
        queue_id=None if queue_id is None else _number(row, "queue_id", _FOUR_BYTES),
        properties=properties,
        flag=_number(row, "flag", _INT),
        born_timestamp_ms=None if born_ms is None else _number(row, "born_timestamp_ms", _LONG),
        born_host=_text(row, "born_host") if row.get("born_host") is not None else "127.0.0.1:0",
        reconsume_times=_number(row, "reconsume_times", _FOUR_BYTES),
    )


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError("the row is no JSON") from error
    if not isinstance(row, dict):
        raise RowError("the row is no JSON object")
    return row


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise RowError(f"{name} is no text")
    return _encodable(value, name)


def _encodable(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"{name} has half a surrogate pair") from error
    return value


def _number(row: Mapping[str, Any], name: str, allowed: range) -> int:
    value = row.get(name, 0)
    if type(value) is not int or value not in allowed:
        raise RowError(f"{name} is no number of its field")
    return value


def _body(row: Mapping[str, Any]) -> bytes:
    text = _text(row, "body")
    if row.get("body_encoding", "utf-8") == "utf-8":
        return text.encode()
    if row["body_encoding"] != "base64":
        raise RowError("body_encoding is neither utf-8 nor base64")
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise RowError("the body is no base64") from error


def _properties(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the row's properties, with its columns ``keys``, ``tags`` and ``unique_key`` where they lack those."""
    given = row.get("properties")
    if given is not None and not isinstance(given, dict):
        raise RowError("properties are no object")
    properties = dict(given or {})
    keys = row.get("keys")
    if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
        keys = KEY_SEPARATOR.join(keys)
    for name, value in ((KEYS, keys), (TAGS, row.get("tags")), (UNIQ_KEY, row.get("unique_key"))):
        if value:
            properties.setdefault(name, value)
    for name, value in properties.items():
        if not isinstance(value, str):
            raise RowError(f"property {name!r} is no text")
        _encodable(name + value, "a property")
    return properties

"""Lay out the variable parts of records as Arrow columns, in readable Python: the definition of the compiled kernel.

``codec.record`` defines the meaning of a record's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message, RecordError, decode_record
from store_core.codec.tags import tags_code
from store_core.kernel.arrow import ArrowColumns, Ints, Texts, Words
from store_core.kernel.codes import MOST_WORDS, ArrowPart

_MOST_BYTES: Final = np.iinfo(np.int32).max


def arrow_columns(window: Any, at: Ints, size_bytes: Ints, wanted: int) -> ArrowColumns:
    """Return the columns of ``arrow.arrow_columns``."""
    if len(at) != len(size_bytes):
        raise ValueError("the columns differ in length")
    places = zip(at.tolist(), size_bytes.tolist(), strict=True)
    return _columns([_record(window, start, size) for start, size in places], wanted, _nullable)


class Collector:
    """The readable ``arrow.Collector``."""

    def __init__(self, wanted: int, expected_bytes: int) -> None:
        del expected_bytes  # lists grow by themselves
        self._wanted = wanted
        self._messages: list[list[Message]] = []
        self.size_bytes = 0

    def add(self, window: Any, at: Ints, size_bytes: Ints, group: Ints) -> None:
        if not len(at) == len(size_bytes) == len(group):
            raise ValueError("the columns differ in length")
        places = zip(at.tolist(), size_bytes.tolist(), group.tolist(), strict=True)
        most = len(self._messages) + len(at)
        for start, size, number in places:
            if number >= most:
                raise ValueError("too large a group number")
            while number >= len(self._messages):
                self._messages.append([])
            self._messages[number].append(_record(window, start, size))
            self.size_bytes += size

    def take(self, group: int) -> ArrowColumns:
        messages: list[Message] = []
        if group < len(self._messages):
            messages, self._messages[group] = self._messages[group], messages
        self.size_bytes -= sum(message.size_bytes for message in messages)
        return _columns(messages, self._wanted, _words)


def _columns(
    messages: Sequence[Message], wanted: int, recurring: Callable[[Sequence[str | None], bool], Texts | Words]
) -> ArrowColumns:
    columns: dict[str, Any] = {}
    if wanted & ArrowPart.IDS:
        columns["offset_msg_id"] = _texts([message.offset_msg_id for message in messages])
    if wanted & ArrowPart.HOSTS:
        columns["born_host"] = recurring([message.born_host for message in messages], False)
        columns["store_host"] = recurring([message.store_host for message in messages], False)
    if wanted & ArrowPart.KEYS:
        columns["unique_key"] = _nullable([message.unique_key for message in messages], True)
        columns["tags"] = recurring([message.tags for message in messages], True)
        columns["key_bounds"] = _bounds([len(message.keys) for message in messages])
        columns["keys"] = _texts([key for message in messages for key in message.keys])
    if wanted & ArrowPart.PROPERTIES:
        columns["pair_bounds"] = _bounds([len(message.properties) for message in messages])
        columns["names"] = recurring([name for message in messages for name in message.properties], False)
        columns["values"] = _texts([value for message in messages for value in message.properties.values()])
    if wanted & ArrowPart.BODIES:
        columns["body"] = _bytes([message.body for message in messages])
    if wanted & ArrowPart.MARKS:
        columns["tags_code"] = np.array([tags_code(message.tags) for message in messages], np.int64)
        columns["tombstone"] = _bits([message.is_tombstone for message in messages])
    return ArrowColumns(**columns)


def _record(window: Any, at: int, size_bytes: int) -> Message:
    if at < 0 or size_bytes < 0:
        raise ValueError(f"{at} and {size_bytes} are no place")
    try:
        message = decode_record(window, at, at, size_bytes)
    except RecordError as error:
        raise ValueError(f"no record at {at}: {error}") from error
    if message.size_bytes != size_bytes:
        raise ValueError(f"the record at {at} has {message.size_bytes} bytes, not {size_bytes}")
    return message


def _texts(texts: Sequence[str]) -> Texts:
    return _bytes([text.encode() for text in texts])


def _nullable(texts: Sequence[str | None], may_be_null: bool) -> Texts:
    """Return the texts; a null takes no bytes."""
    return _texts([text or "" for text in texts])._replace(valid=_valid(texts) if may_be_null else None)


def _words(texts: Sequence[str | None], may_be_null: bool) -> Texts | Words:
    known: dict[str, int] = {}
    numbers = [0 if text is None else known.setdefault(text, len(known)) for text in texts]
    if len(known) > MOST_WORDS:
        return _nullable(texts, may_be_null)
    return Words(np.array(numbers, np.int32), _texts(list(known)), _valid(texts) if may_be_null else None)


def _valid(texts: Sequence[str | None]) -> NDArray[np.uint8]:
    return _bits([text is not None for text in texts])


def _bits(rows: Sequence[bool]) -> NDArray[np.uint8]:
    return np.packbits(np.array(rows, bool), bitorder="little")


def _bytes(parts: Sequence[bytes]) -> Texts:
    return Texts(_bounds([len(part) for part in parts]), np.frombuffer(b"".join(parts), np.uint8), None)


def _bounds(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Return where consecutive parts of these lengths start, and where the last one ends."""
    bounds = list(accumulate(lengths, initial=0))
    if bounds[-1] > _MOST_BYTES:
        raise ValueError("a column of 2 GiB or more")
    return np.array(bounds, np.int32)

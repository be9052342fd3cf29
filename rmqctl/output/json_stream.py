"""Write a JSON document while it is being built, and always close it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final

from rmqctl.output.streams import UNENCODABLE
from rmqctl.signals import written_whole
from store_core.kernel.text import RowBatch, as_written, rows_text

Write = Callable[[str], object]

_LONG_LIST: Final = 1000  # a list this long is written one element a line
_INDENT: Final = "  "
_CONTAINERS: Final = (Mapping, list, tuple, set, frozenset, Iterator)


def encode_line(value: Any) -> str:
    """Return a value as JSON in one line."""
    return _LINE.encode(value)


def encode_pieces(value: Any) -> Iterator[str]:
    """Return ``encode_line(value)`` in pieces. A long text, which has ``pieces()``, is never joined.

    The text may be the value itself or a member of it. A value that JSON cannot hold raises before the first piece.
    """
    if hasattr(value, "pieces"):
        return _long_text(value)
    if isinstance(value, Mapping) and any(hasattr(member, "pieces") for member in value.values()):
        return _with_long_texts(
            [(encode_line(str(k)), v if hasattr(v, "pieces") else encode_line(v)) for k, v in value.items()]
        )
    return iter((encode_line(value),))


def _long_text(value: Any) -> Iterator[str]:
    yield '"'
    for piece in value.pieces():
        yield encode_line(piece)[1:-1]
    yield '"'


def _with_long_texts(members: list[tuple[str, Any]]) -> Iterator[str]:
    lead = "{"
    for key, member in members:
        yield f"{lead}{key}: "
        if isinstance(member, str):
            yield member
        else:
            yield from _long_text(member)
        lead = ", "
    yield "}"


def batch_lines(batch: RowBatch, lead: str = "", tail: str = "\n") -> memoryview:
    """Return a batch's rows, each as from ``encode_line``, between ``lead`` and ``tail``."""
    keys = [f"{', ' if number else lead + '{'}{encode_line(str(key))}: " for number, key in enumerate(batch.columns)]
    columns = zip(map(_as_bytes, keys), batch.columns.values(), strict=True)
    return rows_text(
        list(columns), batch.count, lambda value: _as_bytes(encode_line(value)), tail=_as_bytes("}" + tail)
    )


def _as_bytes(text: str) -> bytes:
    return text.encode(errors=UNENCODABLE)


def as_row(value: Any) -> Mapping[str, Any]:
    """Return a row as a mapping, made by ``as_json()`` if it is an object."""
    row: Mapping[str, Any] = value if isinstance(value, Mapping) else value.as_json()
    return row


def _plain(value: Any) -> Any:
    """Convert a value that JSON cannot hold: an object with ``as_json()`` (a finding), bytes, a path, a set, a numpy scalar."""
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Iterable):
        return list(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


_LINE: Final = json.JSONEncoder(ensure_ascii=False, default=_plain)


class JsonStream:
    """Writer of one JSON object, member by member; a context manager.

    * Iterators anywhere in it are written element by element, never collected; ``write_block`` writes batches of rows.
    * At its end every open list and object is closed.
    * After an exception it writes ``error_of(exception)`` as the last member, ``"error"``, and the
      exception propagates; if that is None, it writes nothing more.
    * A comma or key is written together with its value, so that an exception or a signal leaves no half member.
    """

    def __init__(
        self,
        write: Write,
        error_of: Callable[[BaseException], Mapping[str, Any] | None],
        write_block: Callable[[memoryview], object] | None = None,
    ) -> None:
        self._write = write
        self._write_block = write_block or (lambda block: write(str(block, "utf-8")))
        self._error_of = error_of
        self._closers: list[str] = []
        self._lead = ""
        self._is_empty = True

    @written_whole
    def __enter__(self) -> JsonStream:
        self._write("{")
        return self

    @written_whole
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            described = self._error_of(error)
            if described is None:
                return
            while self._closers:
                self._close()
            self._key("error")
            self._put((encode_line(described),))
        self._write("}\n" if self._is_empty else "\n}\n")

    def member(self, key: str, value: Any) -> None:
        """Write one member. A callable value is called first, so that it can depend on the members streamed before it."""
        if callable(value):
            value = value()
        self._key(key)
        self._value(value, 1)

    def _key(self, key: str) -> None:
        self._lead = f"{'' if self._is_empty else ','}\n{_INDENT}{encode_line(str(key))}: "

    @written_whole
    def _put(self, pieces: Iterable[str], closer: str | None = None) -> None:
        """Write the pending lead, then a value or the start of one; ``closer`` is the text that will end it."""
        for piece in pieces:
            self._write(self._lead + piece)
            self._lead, self._is_empty = "", False
        if closer is not None:
            self._closers.append(closer)

    @written_whole
    def _put_batch(self, batch: RowBatch, margin: str) -> None:
        """Write the rows of a batch as list elements; the batch has at least one row."""
        block = batch_lines(batch, f",{margin}", "")
        self._write_block(block if self._lead.startswith(",") else block[1:])
        self._lead = ""

    @written_whole
    def _close(self) -> None:
        self._write(self._closers[-1])
        self._closers.pop()

    def _value(self, value: Any, depth: int) -> None:
        if _is_leaf(value):
            self._put(encode_pieces(value))
        elif isinstance(value, Mapping):
            self._object(value, depth)
        else:
            self._list(value, depth)

    def _object(self, value: Mapping[str, Any], depth: int) -> None:
        self._put(("{",), f"\n{_INDENT * depth}}}")
        separator = ""
        for key, member in value.items():
            member = member() if callable(member) else member
            self._lead = f"{separator}\n{_INDENT * (depth + 1)}{encode_line(str(key))}: "
            self._value(member, depth + 1)
            separator = ","
        self._close()

    def _list(self, values: Iterable[Any], depth: int) -> None:
        margin = "\n" + _INDENT * (depth + 1)
        compact = not isinstance(values, Sized) or len(values) > _LONG_LIST
        self._put(("[",), "]")
        separator = ""
        for value in as_written(values):
            self._lead = separator + margin
            if isinstance(value, RowBatch):
                self._put_batch(value, margin)
            elif compact or _is_flat(value):
                self._put(encode_pieces(value))
            else:
                self._value(value, depth + 1)
            if not separator:
                separator, self._closers[-1] = ",", f"\n{_INDENT * depth}]"
        self._close()


def _is_leaf(value: Any) -> bool:
    """Return True if a value fits one line: a scalar, an empty container, a list of scalars."""
    if isinstance(value, list | tuple | set | frozenset):
        return not any(isinstance(v, _CONTAINERS) or hasattr(v, "as_json") for v in value)
    return not isinstance(value, Iterator) and not (isinstance(value, Mapping) and value)


def _is_flat(value: Any) -> bool:
    """Return True if a list element fits one line: a leaf, or an object of leaves."""
    if isinstance(value, Mapping):
        return all(not isinstance(v, Mapping) and _is_leaf(v) for v in value.values())
    return _is_leaf(value)

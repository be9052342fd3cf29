"""The one way results leave: seven formats, results on stdout, streamed where they are long."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, tzinfo
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Final, cast

from rmqctl.options import COLUMN_FORMATS, ColumnFormat, Format
from rmqctl.output.cells import Column, cell, escape_controls, escape_json_controls
from rmqctl.output.json_stream import JsonStream, as_row, batch_lines, encode_line, encode_pieces
from rmqctl.output.streams import UNENCODABLE
from rmqctl.signals import whole
from store_core.kernel.text import RowBatch, as_written, one_by_one, rows_text, same

if TYPE_CHECKING:
    from rmqctl.output.document import Block

Document = Mapping[str, Any]
Blocks = Iterable["Block"] | Callable[[], Iterable["Block"]]

_PIPED_TABLE_WIDTH: Final = 120
_FINDINGS: Final = "findings"


class Output:
    """Writes one command's result to ``file`` (stdout) in one format."""

    def __init__(
        self,
        file: IO[str],
        output: Format | None,
        *,
        piped: Format = "plain",
        zone: tzinfo = UTC,
        color: bool = True,
        describe: Callable[[BaseException], Document | None] = lambda error: None,
    ) -> None:
        self.terminal = file.isatty()
        self._in_turn = _InTurn(file)
        self.file = cast("IO[str]", self._in_turn) if self.terminal else file
        self.format: Format = output or ("table" if self.terminal else piped)
        self._zone = zone
        self._color = color
        self._describe = describe
        self.error_written = False

    @property
    def column_format(self) -> ColumnFormat | None:
        """The format if it is one of bytes, which the command writes itself; else None."""
        return next((form for form in COLUMN_FORMATS if form == self.format), None)

    @property
    def bytes_file(self) -> IO[bytes]:
        """Stdout, for a format of bytes."""
        return cast("IO[bytes]", self.file.buffer)  # type: ignore[attr-defined]  # IO[str] does not say so

    def emit(
        self,
        document: Document,
        *,
        rows: str | Iterable[Any] | None = None,
        columns: Sequence[str | Column] = (),
        fields: Sequence[str] = (),
        facts: Sequence[str] = (),
        title: str = "",
        blocks: Blocks | None = None,
        live: bool = False,
        live_rows: int = 0,
        output: Format | None = None,
    ) -> None:
        """Write a result.

        ``document`` is what ``json`` writes, in its order; a member may be an iterator (streamed) or a callable (called
        when it is reached, so that it may tell what streaming has found). ``rows`` is the main list, which ``ndjson``,
        ``csv`` and ``tsv`` write: the name of a member, or an iterable; without it the document itself, less its
        findings, is the only row. Batches among the rows are written by the kernel, and flushed. ``fields`` are the keys of ``csv`` and ``tsv`` (default: the first row's keys).
        People get ``blocks``, or else: ``facts`` (members of the document by name), the main list under ``columns``
        and ``title``, and the document's findings. ``live`` flushes each row; laid out, the first ``live_rows`` rows,
        which are there already, come as one table, and each later row as it comes.
        """
        chosen = output or self.format
        if chosen == "json":
            self._json(document)
        elif chosen == "ndjson":
            self._ndjson(_main_rows(document, rows), live)
        elif chosen in ("csv", "tsv"):
            self._csv(_main_rows(document, rows), tuple(fields), "," if chosen == "csv" else "\t", live)
        else:
            if blocks is None:
                blocks = _default_blocks(document, rows, columns, facts, title, live_rows if live else None)
            self._human(chosen, blocks() if callable(blocks) else blocks, live)

    @contextmanager
    def behind(self, step_aside: Callable[[], None]) -> Iterator[None]:
        """Within this, ``step_aside`` is called before anything is written to a terminal."""
        self._in_turn.step_aside = step_aside
        try:
            yield
        finally:
            self._in_turn.step_aside = None

    def error(self, error: Document) -> None:
        """``{"error": …}`` where the format has a place for it and it has not been written yet."""
        if self.error_written:
            return
        if self.format == "json":
            with JsonStream(self._write_json, lambda _: None) as stream:
                stream.member("error", error)
        elif self.format == "ndjson":
            self._write_json(encode_line({"error": error}) + "\n")
        self.error_written = True

    def _json(self, document: Document) -> None:
        with JsonStream(self._write_json, self._error_within, self._write_block) as stream:
            for key, value in document.items():
                stream.member(key, value)

    def _error_within(self, error: BaseException) -> Document | None:
        self.error_written = True
        return self._describe(error)

    def _ndjson(self, rows: Iterable[Any], live: bool) -> None:
        for row in as_written(rows):
            block = batch_lines(row) if isinstance(row, RowBatch) else None
            with whole:
                if block is not None:
                    self._write_block(block)
                    continue
                for piece in encode_pieces(row):
                    self._write_json(piece)
                self._write_json("\n")
            if live:
                self.file.flush()

    def _csv(self, rows: Iterable[Any], fields: Sequence[str], delimiter: str, live: bool) -> None:
        import csv

        writer = csv.writer(self.file, delimiter=delimiter, lineterminator="\n")
        # Readers end a row at a lone carriage return too, which the writer above does not quote.
        quoting = csv.writer(self.file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        # On a terminal values are escaped before they are quoted.
        remaining = iter(one_by_one(rows) if self.terminal else as_written(rows))
        if not fields and (first := next(remaining, None)) is not None:
            fields = tuple(first.columns if isinstance(first, RowBatch) else as_row(first))
            remaining = chain((first,), remaining)
        if fields:
            writer.writerow([self._csv_value(field) for field in fields])
        for row in remaining:
            if isinstance(row, RowBatch):
                block = self._csv_lines(row, fields, delimiter)
                with whole:
                    self._write_block(block)
                continue
            row = as_row(row)
            values = [self._csv_value(row.get(field)) for field in fields]
            with whole:
                if any(hasattr(value, "pieces") for value in values):
                    self._csv_row_in_pieces(values, delimiter)
                else:
                    risky = any(isinstance(value, str) and "\r" in value for value in values)
                    (quoting if risky else writer).writerow(values)
            if live:
                self.file.flush()

    def _csv_lines(self, batch: RowBatch, fields: Sequence[str], delimiter: str) -> memoryview:
        leads = [b"", *[delimiter.encode()] * (len(fields) - 1)]
        columns = [(lead, batch.columns.get(field) or same(None)) for lead, field in zip(leads, fields, strict=True)]
        return rows_text(columns, batch.count, self._csv_text, delimiter=delimiter.encode())

    def _csv_text(self, value: Any) -> bytes:
        """A value as the csv module takes it, in bytes."""
        shown = self._csv_value(value)
        return b"" if shown is None else str(shown).encode(errors=UNENCODABLE)

    def _csv_row_in_pieces(self, values: Sequence[Any], delimiter: str) -> None:
        """A row with a text that is never put together: what the writers of the standard library hold fourfold."""
        for number, value in enumerate(values):
            self.file.write(f'{delimiter if number else ""}"')
            is_long = hasattr(value, "pieces")
            for piece in value.pieces() if is_long else ("" if value is None else str(value),):
                shown = escape_controls(piece) if is_long and self.terminal else piece
                self.file.write(shown.replace('"', '""'))
            self.file.write('"')
        self.file.write("\n")

    def _csv_value(self, value: Any) -> Any:
        if hasattr(value, "pieces"):
            return value
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        if isinstance(value, bool | Mapping | list | tuple):
            value = encode_line(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            value = bytes(value).decode("utf-8", "replace")  # as in JSON
        return escape_controls(str(value)) if self.terminal else value

    def _human(self, chosen: str, blocks: Iterable[Block], live: bool) -> None:
        if chosen == "table":
            from rmqctl.output.rich_view import RichView

            width = None if self.terminal or "COLUMNS" in os.environ else _PIPED_TABLE_WIDTH
            RichView(self.file, self._zone, color=self._color, width=width).show(blocks)
        else:
            from rmqctl.output.plain import PlainView

            PlainView(self._write_and_flush if live else self.file.write, chosen, self._zone).show(blocks)

    def _write_and_flush(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()

    def _write_block(self, block: memoryview) -> None:
        """Write what the kernel has made, so that who reads has it at once."""
        if self.terminal or not hasattr(self.file, "buffer"):
            self._write_json(str(block, "utf-8"))
        else:
            self.file.flush()
            self.file.buffer.write(block)
        self.file.flush()

    def _write_json(self, text: str) -> None:
        self.file.write(escape_json_controls(text) if self.terminal else text)

    def cell(self, value: Any, key: str) -> str:
        """A value as a table would show it, for a sentence."""
        return cell(value, Column.of(key).kind, self._zone, humanised=self.format == "table")


class _InTurn:
    """A terminal's stream, on which a progress bar steps aside before a result is written."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.step_aside: Callable[[], None] | None = None

    def write(self, text: str) -> int:
        if self.step_aside is not None:
            self.step_aside()
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _main_rows(document: Document, rows: str | Iterable[Any] | None) -> Iterable[Any]:
    if rows is None:
        return [{key: _called(value) for key, value in document.items() if key != _FINDINGS}]
    if isinstance(rows, str):
        found: Iterable[Any] = _called(document[rows])
        return found
    return rows


def _default_blocks(
    document: Document,
    rows: str | Iterable[Any] | None,
    columns: Sequence[str | Column],
    facts: Sequence[str],
    title: str,
    known_rows: int | None,
) -> Iterator[Block]:
    from rmqctl.output.document import Facts, Findings, Table  # scripts that read JSON never need them

    if rows is None:
        [row] = _main_rows(document, None)
        yield Facts({key: row[key] for key in (facts or row)}, title)
    else:
        if facts:
            yield Facts({key: _called(document[key]) for key in facts})
        if rows != _FINDINGS:
            yield Table(_main_rows(document, rows), columns, title, known_rows=known_rows)
    if _FINDINGS in document:
        yield Findings(_called(document[_FINDINGS]))


def _called(value: Any) -> Any:
    return value() if callable(value) else value

"""Write a command's result to stdout in its output format, and stream long results."""

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
from rmqctl.signals import written_whole
from store_core.kernel.text import RowBatch, as_written, one_by_one, rows_text, same

if TYPE_CHECKING:
    from rmqctl.output.document import Block


from rmqctl.output.document import (
    FINDING_COLUMNS,
    Block,
    Drawing,
    Facts,
    FindingRows,
    Findings,
    Page,
    Table,
    Text,
    pages,
)

_HEADING_LINES: Final = {"plain": 1, "github": 2}


class PlainView:
    """Writer of blocks as ``plain`` (aligned columns) or ``github`` (Markdown), long tables page by page."""

    def __init__(self, write: Callable[[str], object], table_format: str, zone: tzinfo) -> None:
        self._write = write
        self._format = table_format
        self._zone = zone
        self._blocks = 0

    def show(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if self._blocks:
                self._write("\n")
            self._blocks += 1
            match block:
                case Facts():
                    self._facts(block)
                case Table():
                    self._table(block)
                case Findings():
                    self._findings(block)
                case Text():
                    self._write(f"{escape_controls(block.text)}\n")
                case Drawing():
                    self._title(block.title)
                    fence = ["```"] if self._format == "github" else []
                    self._write("".join(f"{escape_controls(line)}\n" for line in [*fence, *block.lines, *fence]))

    def _title(self, title: str) -> None:
        if title:
            self._write(
                f"### {escape_controls(title)}\n\n" if self._format == "github" else f"{escape_controls(title)}\n"
            )

    def _facts(self, block: Facts) -> None:
        self._title(block.title)
        columns = [Column.of(key) for key in block.values]
        rows = [
            [column.title(humanised=False), cell(value, column.kind, self._zone)]
            for column, value in zip(columns, block.values.values(), strict=True)
        ]
        self._write(self._tabulate(rows, ["name", "value"] if self._format == "github" else [], [False, False]))

    def _table(self, block: Table) -> None:
        self._title(block.title)
        widths: list[int] = []
        for page in pages(block):
            self._page(page, widths)
        if not widths:
            self._write(f"{block.empty}\n")

    def _page(self, page: Page, widths: list[int]) -> None:
        """Write a page, at least as wide as the pages before it, and update ``widths``. Only the first has headings."""
        headings = [column.title(humanised=False) for column in page.columns]
        rows = [[self._cell(row.get(column.key), column) for column in page.columns] for row in page.rows]
        widths[:] = [
            max(known, *(len(row[i]) for row in rows))
            for i, known in enumerate(widths or [len(heading) for heading in headings])
        ]
        # tabulate has no least width: a first row as wide as the earlier pages is laid out too, then dropped
        ruler = [["x" * width for width in widths]] if page.number else []
        text = self._tabulate(ruler + rows, headings, page.numeric)
        if page.number:
            text = "".join(text.splitlines(keepends=True)[_HEADING_LINES[self._format] + 1 :])
        self._write(text)

    def _findings(self, block: Findings) -> None:
        rows = FindingRows(block.findings)
        self._table(Table(rows, FINDING_COLUMNS, block.title, empty="none"))
        for number, (codes, advice) in enumerate(rows.advice()):
            lead = "\n" if number == 0 or self._format == "github" else ""
            self._write(f"{lead}{codes}: {escape_controls(advice)}\n")

    def _cell(self, value: object, column: Column) -> str:
        text = cell(value, column.kind, self._zone)
        return text.replace("|", "\\|") if self._format == "github" else text or "-"

    def _tabulate(self, rows: Sequence[Sequence[str]], headings: Sequence[str], numeric: Sequence[bool]) -> str:
        from tabulate import tabulate

        sides = ["right" if right else "left" for right in numeric]
        text = tabulate(rows, headings, tablefmt=self._format, colalign=sides, disable_numparse=True)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


Document = Mapping[str, Any]
Blocks = Iterable["Block"] | Callable[[], Iterable["Block"]]

_PIPED_TABLE_WIDTH: Final = 120
_FINDINGS: Final = "findings"


class Output:
    """The output of one command: it writes the result to ``file`` (stdout) in one format."""

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
        self._bar_aware = _BarAwareStream(file)
        self.file = cast("IO[str]", self._bar_aware) if self.terminal else file
        self.format: Format = output or ("table" if self.terminal else piped)
        self._zone = zone
        self._color = color
        self._describe = describe
        self.error_written = False

    @property
    def column_format(self) -> ColumnFormat | None:
        """The format if it is binary, which the command writes itself; else None."""
        return next((form for form in COLUMN_FORMATS if form == self.format), None)

    @property
    def bytes_file(self) -> IO[bytes]:
        """Stdout, for a binary format."""
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

        Args:
            document: the members that ``json`` writes, in order. A member may be an iterator (streamed) or a callable,
                called when it is reached, so that it can depend on the members streamed before it.
            rows: the main list, which ``ndjson``, ``csv`` and ``tsv`` write: a member's name or an iterable; without
                it the document less its findings is the only row. The kernel writes batches, which are flushed.
            fields: the keys of ``csv`` and ``tsv``; by default the first row's keys.
            blocks: the layout for people; by default ``facts`` (names of members), the main list under ``columns`` and
                ``title``, and the document's findings.
            live: flush each row. Laid out, the first ``live_rows`` rows, already available, are one table; each later
                row is shown as it comes.
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
        """Call ``step_aside`` before any write to a terminal, within the ``with`` block."""
        self._bar_aware.step_aside = step_aside
        try:
            yield
        finally:
            self._bar_aware.step_aside = None

    def error(self, error: Document) -> None:
        """Write ``{"error": …}`` if the format has a place for it and it has not been written yet."""
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
            self._ndjson_row(row)
            if live and not isinstance(row, RowBatch):
                self.file.flush()

    @written_whole
    def _ndjson_row(self, row: Any) -> None:
        if isinstance(row, RowBatch):
            self._write_block(batch_lines(row))
            return
        for piece in encode_pieces(row):
            self._write_json(piece)
        self._write_json("\n")

    def _csv(self, rows: Iterable[Any], fields: Sequence[str], delimiter: str, live: bool) -> None:
        import csv

        writer = csv.writer(self.file, delimiter=delimiter, lineterminator="\n")
        # Readers end a row at a lone carriage return too, which the writer above does not quote.
        quoting = csv.writer(self.file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)

        @written_whole
        def write_row(row: Any) -> None:
            if isinstance(row, RowBatch):
                self._write_block(self._csv_lines(row, fields, delimiter))
                return
            values = [self._csv_value(row.get(field)) for field in fields]
            if any(hasattr(value, "pieces") for value in values):
                self._csv_row_in_pieces(values, delimiter)
            else:
                risky = any(isinstance(value, str) and "\r" in value for value in values)
                (quoting if risky else writer).writerow(values)

        # On a terminal values are escaped before they are quoted.
        remaining = iter(one_by_one(rows) if self.terminal else as_written(rows))
        if not fields and (first := next(remaining, None)) is not None:
            fields = tuple(first.columns if isinstance(first, RowBatch) else as_row(first))
            remaining = chain((first,), remaining)
        if fields:
            writer.writerow([self._csv_value(field) for field in fields])
        for row in remaining:
            is_batch = isinstance(row, RowBatch)
            write_row(row if is_batch else as_row(row))
            if live and not is_batch:
                self.file.flush()

    def _csv_lines(self, batch: RowBatch, fields: Sequence[str], delimiter: str) -> memoryview:
        leads = [b"", *[delimiter.encode()] * (len(fields) - 1)]
        columns = [(lead, batch.columns.get(field) or same(None)) for lead, field in zip(leads, fields, strict=True)]
        return rows_text(columns, batch.count, self._csv_text, delimiter=delimiter.encode())

    def _csv_text(self, value: Any) -> bytes:
        """Return a value as the csv module would take it, in bytes."""
        shown = self._csv_value(value)
        return b"" if shown is None else str(shown).encode(errors=UNENCODABLE)

    def _csv_row_in_pieces(self, values: Sequence[Any], delimiter: str) -> None:
        """Write a row with a long text piece by piece: the standard library's writers would hold it four times."""
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
            from rmqctl.output.formats import PlainView

            PlainView(self._write_and_flush if live else self.file.write, chosen, self._zone).show(blocks)

    def _write_and_flush(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()

    def _write_block(self, block: memoryview) -> None:
        """Write a block from the kernel and flush it, so that the reader gets it at once."""
        if self.terminal or not hasattr(self.file, "buffer"):
            self._write_json(str(block, "utf-8"))
        else:
            self.file.flush()
            self.file.buffer.write(block)
        self.file.flush()

    def _write_json(self, text: str) -> None:
        self.file.write(escape_json_controls(text) if self.terminal else text)

    def cell(self, value: Any, key: str) -> str:
        """Return a value as a table would show it, for use in a sentence."""
        return cell(value, Column.of(key).kind, self._zone, humanised=self.format == "table")


class _BarAwareStream:
    """A terminal's stream that takes the progress bar off before a result is written."""

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
        return [{key: _value_of(value) for key, value in document.items() if key != _FINDINGS}]
    if isinstance(rows, str):
        found: Iterable[Any] = _value_of(document[rows])
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
    from rmqctl.output.document import Facts, Findings, Table  # imported here because JSON output never needs them

    if rows is None:
        [row] = _main_rows(document, None)
        yield Facts({key: row[key] for key in (facts or row)}, title)
    else:
        if facts:
            yield Facts({key: _value_of(document[key]) for key in facts})
        if rows != _FINDINGS:
            yield Table(_main_rows(document, rows), columns, title, known_rows=known_rows)
    if _FINDINGS in document:
        yield Findings(_value_of(document[_FINDINGS]))


def _value_of(value: Any) -> Any:
    return value() if callable(value) else value

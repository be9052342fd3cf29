"""Define the blocks that a command shows to people: facts, tables, findings, text and drawings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final

from rmqctl.output.cells import Column, is_numeric
from rmqctl.output.json_stream import as_row
from store_core.kernel.text import one_by_one

PAGE_ROWS: Final = 1000  # rows laid out together, so that a long table starts at once and needs little memory


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values. A name is a key, whose ending gives the value's kind, as for columns."""

    values: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; ``rows`` may be an endless iterator. Without ``columns`` the first row's keys are shown.

    ``known_rows``: rows available at once, which are laid out together; each later row is shown as it comes.
    """

    rows: Iterable[Any]
    columns: Sequence[str | Column] = ()
    title: str = ""
    empty: str = "nothing to show"
    known_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings, coloured by severity, and the advice for each code once."""

    findings: Iterable[Any]
    title: str = "Findings"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, wrapped on a terminal. ``style`` is a Rich style, for terminals only."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines that keep their shape: nothing is wrapped."""

    lines: Sequence[str]
    title: str = ""


Block = Facts | Table | Findings | Text | Drawing
FINDING_COLUMNS: Final = (
    Column("severity", "severity"),
    Column("code"),
    Column("where"),
    Column("message"),
)


@dataclass
class FindingRows:
    """Findings as table rows; iterating also collects the advice for their codes."""

    findings: Iterable[Any]
    _codes_by_advice: dict[str, set[str]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for finding in map(as_row, self.findings):
            if finding.get("advice"):
                self._codes_by_advice.setdefault(finding["advice"], set()).add(finding["code"])
            yield {**finding, "where": _where(finding)}

    def advice(self) -> list[tuple[str, str]]:
        """Return codes with their advice, each advice once, in code order."""
        return sorted((", ".join(sorted(codes)), advice) for advice, codes in self._codes_by_advice.items())


def _where(finding: Mapping[str, Any]) -> str:
    parts = [str(finding[key]) for key in ("file",) if finding.get(key) is not None]
    if finding.get("topic") is not None:
        queue = finding.get("queue_id")
        parts.append(f"{finding['topic']}" + ("" if queue is None else f"/{queue}"))
    parts += [f"{key} {finding[key]}" for key in ("queue_offset", "phy_offset") if finding.get(key) is not None]
    return ", ".join(parts)


@dataclass
class Page:
    """Rows of a table that are laid out together."""

    columns: Sequence[Column]
    numeric: Sequence[bool]
    rows: Sequence[Mapping[str, Any]]
    number: int


def pages(table: Table) -> Iterator[Page]:
    """Cut a table in pages, none for a table without rows. Columns and their alignment come from the first page."""
    rows: Iterator[Mapping[str, Any]] = map(as_row, one_by_one(table.rows))
    first = next(rows, None)
    if first is None:
        return
    columns = [Column.of(c) for c in (table.columns or tuple(first))]
    rows, numeric, number = chain((first,), rows), [False] * len(columns), 0
    first_rows = PAGE_ROWS if table.known_rows is None else max(table.known_rows, 1)
    later_rows = PAGE_ROWS if table.known_rows is None else 1
    while page := list(islice(rows, later_rows if number else first_rows)):
        if number == 0:
            numeric = [is_numeric(page, column) for column in columns]
        yield Page(columns, numeric, page, number)
        number += 1

"""docs/export.md shows the schemas as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_core.export.query.catalog import NAMES, columns_of, described
from store_core.export.rows import schema
from store_core.export.tables.stats import STATS_COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@pytest.mark.parametrize("columns", [schema.MESSAGE_COLUMNS, schema.QUARANTINE_COLUMNS, STATS_COLUMNS])
def test_the_page_has_every_column_in_order(columns: tuple[schema.Column, ...]) -> None:
    rows = [
        f"| `{c.name}` | {str(c.type).replace('item: ', '')} | {'yes' if c.nullable else ''} | {c.meaning} |"
        for c in columns
    ]
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in PAGE
    assert f"`schema_version` ({schema.VERSION})" in PAGE


@pytest.mark.parametrize("table", NAMES)
def test_the_page_of_sql_has_every_column_in_order(table: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    types = {row["column"]: row["type"] for row in described() if row["table"] == table}
    rows = [
        f"| `{c.name}` | {types[c.name]} | {'yes' if c.nullable else ''} | {c.meaning} |" for c in columns_of(table)
    ]
    section = page[page.index(f"## {table}\n") :]
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in section

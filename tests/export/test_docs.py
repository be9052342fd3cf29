"""docs/export.md shows the schemas as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_core.export.rows import schema

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@pytest.mark.parametrize("columns", [schema.MESSAGE_COLUMNS, schema.QUARANTINE_COLUMNS])
def test_the_page_has_every_column_in_order(columns: tuple[schema.Column, ...]) -> None:
    rows = [
        f"| `{c.name}` | {str(c.type).replace('item: ', '')} | {'yes' if c.nullable else ''} | {c.meaning} |"
        for c in columns
    ]
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in PAGE
    assert f"`schema_version` ({schema.VERSION})" in PAGE

"""docs/export_rules.md names the version of the schema. docs/generate.py writes the columns, and test_tidy holds them to the code."""

from __future__ import annotations

from pathlib import Path

from store_core.export.rows import schema


def test_the_page_has_the_version_of_the_schema() -> None:
    page = (Path(__file__).parents[2] / "docs" / "export_rules.md").read_text()
    assert f"`schema_version` ({schema.VERSION})" in page

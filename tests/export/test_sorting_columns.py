"""What the footers of an export's files say that their rows are sorted by is what they are sorted by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from store_core.export.dest.layout import Layout
from tests.conftest import GoldenStore
from tests.export.exports import export_one

LAYOUTS: list[tuple[Layout, list[str]]] = [
    (Layout(), ["topic", "phy_offset"]),
    (Layout(cluster="offset"), ["phy_offset"]),
    (Layout(partition_by="topic"), ["phy_offset"]),
    (Layout(partition_by="day"), ["topic", "phy_offset"]),
]


@pytest.mark.parametrize(("layout", "expected"), LAYOUTS)
def test_groups_are_sorted_as_the_footer_says(
    golden: GoldenStore, tmp_path: Path, layout: Layout, expected: list[str]
) -> None:
    export_one(golden("load-533"), tmp_path / "out", layout=layout)
    for path in (tmp_path / "out" / "data").rglob("*.parquet"):
        file: Any = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            places = [column.column_index for column in file.metadata.row_group(number).sorting_columns]
            names = [file.metadata.schema.column(place).path for place in places]
            assert names == expected
            rows = file.read_row_group(number, columns=names).to_pylist()
            keys = [tuple(row[name] for name in names) for row in rows]
            assert keys == sorted(keys)

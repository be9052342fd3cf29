"""How rows are laid out in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

PartitionBy = Literal["topic", "day"]
Cluster = Literal["topic", "offset"]


@dataclass(frozen=True, slots=True)
class Layout:
    """``partition_by``: a folder a topic or a day of the store time, in Hive's style. ``cluster``: what the rows of a
    file are sorted by before their offsets. ``whole_files``: a column that rows are partitioned by is in the files too."""

    partition_by: PartitionBy | None = None
    cluster: Cluster = "topic"
    whole_files: bool = False

    def as_json(self) -> Mapping[str, Any]:
        return asdict(self)

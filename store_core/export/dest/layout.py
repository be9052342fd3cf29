"""Describe how rows are laid out in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

PartitionBy = Literal["topic", "day"]
Cluster = Literal["topic", "offset"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an export's files.

    * ``partition_by``: a folder for each topic, or for each day of the store time, in Hive's style.
    * ``cluster``: the order of the rows of a file before their offsets.
    * ``whole_files``: a partition's column is in the files too.
    """

    partition_by: PartitionBy | None = None
    cluster: Cluster = "topic"
    whole_files: bool = False

    def as_json(self) -> Mapping[str, Any]:
        return asdict(self)

"""What stands in a test for the search for other processes that have files of a store open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store_core.storage.live import OpenFile


def nobody(root: Path | str, writable_roots: Sequence[Path | str] = ()) -> list[OpenFile]:
    return []

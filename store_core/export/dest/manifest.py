"""The manifest of an export: what files belong to it, with their checksums, and how far it went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from store_core.export.dest.parts import Part
from store_core.export.rows import schema
from store_core.findings import summary
from store_core.read.log import LogFilter

if TYPE_CHECKING:
    from store_core.export.export import StoreReport

FORMAT: Final = "rmqctl-export"


def manifest_bytes(parts: Sequence[Part], stores: Sequence[StoreReport], wanted: LogFilter) -> bytes:
    """The manifest as JSON, UTF-8."""
    document = {
        "format": FORMAT,
        "schema_version": schema.VERSION,
        "rows": sum(store.rows for store in stores),
        "filter": _filter(wanted),
        "stores": [
            {
                "store": store.store,
                "from_phy_offset": store.from_phy_offset,
                "next_phy_offset": store.next_phy_offset,
                "rows": store.rows,
                "findings": summary(store.findings),
            }
            for store in stores
        ],
        "files": [part.as_json() for part in parts],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _filter(wanted: LogFilter) -> dict[str, Any]:
    return {
        "from_phy_offset": wanted.from_phy_offset,
        "to_phy_offset": wanted.to_phy_offset,
        "begin_ms": wanted.begin_ms,
        "end_ms": wanted.end_ms,
        "topics": sorted(wanted.topics),
    }

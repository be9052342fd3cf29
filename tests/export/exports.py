"""What an export holds, read back, and what it should hold by the real decoder's truth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from store_core.export.dest.destination import Destination
from store_core.export.export import ExportReport, export_stores
from store_core.export.runners.local import LocalRunner
from store_core.read.log import LogFilter
from store_core.storage.publish import MANIFEST, UNFINISHED
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores

_EPOCH = datetime.fromtimestamp(0, UTC)
# 4.3.0's own reader drops a value with a 0x01 in it; ours reads as 5.x does.
READ_OTHERWISE_BY_4_3 = {("clean-430", 276607): {"ctl1": "before\x01after"}}
KINDS = {
    "RMQ_SYS_TRANS_HALF_TOPIC": "half",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "op",
    "SCHEDULE_TOPIC_XXXX": "delayed",  # the whole name, as brokers write it
    "rmq_sys_wheel_timer": "delayed",
    "TRANS_CHECK_MAX_TIME_TOPIC": "system",
}
TRANSACTIONS = ("none", "prepared", "commit", "rollback")


def export_one(root: Path, dest: Path | Destination, wanted: LogFilter | None = None, **options: Any) -> ExportReport:
    """Export one store, named ``a``, in this process."""
    runner = options.pop("runner", None) or LocalRunner(options.pop("jobs", 1))
    with Store.open(root, load_settings(None, root)) as store:
        return export_stores([("a", store)], dest, runner, wanted, **options)


def table_of(dest: Path, folder: str = "data") -> pa.Table:
    """All rows of a table of an export, by store and offset."""
    files = sorted((dest / folder).iterdir())
    return pa.concat_tables([pq.read_table(file) for file in files]).sort_by(
        [("store", "ascending"), ("phy_offset", "ascending")]
    )


def ranges_of(dest: Path) -> list[tuple[int, int, str, str | None, str]]:
    """The quarantine table: offset, size, kind, reason, finding."""
    rows = table_of(dest, "quarantine").to_pylist()
    return [(r["phy_offset"], r["size_bytes"], r["kind"], r["reason"], r["finding"]) for r in rows]


def told_rows(name: str) -> list[dict[str, Any]]:
    """The rows that the truth about a golden store asks for."""
    return [row_of(name, told) for told in stores.truth(name)["messages"]]


def found_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of an export in the form of ``told_rows``: bodies as digests."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        body, stored = row.pop("body"), row.pop("stored_body")
        row["body"] = (len(body), hashlib.sha256(body).hexdigest())
        row["stored_body"] = None if stored is None else hashlib.sha256(stored).hexdigest()
    return rows


def row_of(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """The row that the real decoder's message asks for."""
    properties = told["properties"] | READ_OTHERWISE_BY_4_3.get((name, told["phyOffset"]), {})
    is_compressed = bool(told["sysFlag"] & 1)
    return {
        "store": "a",
        "phy_offset": told["phyOffset"],
        "size_bytes": told["storeSize"],
        "topic": told["topic"],
        "kind": _kind(told["topic"]),
        "queue_id": told["queueId"],
        "queue_offset": told["queueOffset"],
        "offset_msg_id": told["msgId"],
        "unique_key": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "flag": told["flag"],
        "sys_flag": told["sysFlag"],
        "transaction": TRANSACTIONS[told["sysFlag"] >> 2 & 3],
        "compression": ("zlib", "lz4", "zstd", "zlib")[told["sysFlag"] >> 8 & 7] if is_compressed else "none",
        "born_time": _EPOCH + timedelta(milliseconds=told["bornTimestamp"]),
        "born_host": _host(told["bornHost"]),
        "store_time": _EPOCH + timedelta(milliseconds=told["storeTimestamp"]),
        "store_host": _host(told["storeHost"]),
        "reconsume_times": told["reconsumeTimes"],
        "prepared_transaction_offset": told["preparedTransactionOffset"],
        "body_crc": told["bodyCRC"],
        "crc": "ok",
        "properties": properties,
        "body_size_bytes": told["bodyLength"],
        "body_decoded": True,
        "body": (told.get("plainLength", told["bodyLength"]), told.get("plainSha256", told["bodySha256"])),
        "stored_body": told["bodySha256"] if is_compressed else None,
        "tags_code": _java_hash(properties.get("TAGS", ""))
        if told["topic"] == "SCHEDULE_TOPIC_XXXX"
        else told["tagsCode"],
        "record_version": 2 if told["magic"] & 0xFF == 0xAB else 1,
    }


def _java_hash(text: str) -> int:
    """As Java's strings have it: a delayed message's entry holds a time in its place."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def _kind(topic: str) -> str:
    for prefix, kind in (("%RETRY%", "retry"), ("%DLQ%", "dlq")):
        if topic.startswith(prefix):
            return kind
    return KINDS.get(topic) or ("system" if topic.startswith("rmq_sys_") else "user")


def _host(told: str) -> str:
    address, port = told.split("|")
    return f"[{address.replace('0:0:0:0:0:0:0:1', '::1')}]:{port}" if ":" in address else f"{address}:{port}"


def parts_on_disk(dest: Path) -> set[str]:
    return {path.relative_to(dest).as_posix() for path in dest.rglob("*") if path.is_file()}


def files_of(dest: Path) -> dict[str, bytes]:
    """All files of an export with their bytes, but for what is not finished."""
    names = sorted(name for name in parts_on_disk(dest) if not name.startswith(UNFINISHED))
    return {name: (dest / name).read_bytes() for name in names}


def manifest_of(dest: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dest / MANIFEST).read_text())
    return found


def without_seconds(report: ExportReport) -> Sequence[Any]:
    return [report.rows, [(s.from_phy_offset, s.next_phy_offset, s.rows, s.findings) for s in report.stores]]

"""`rmqctl verify-crc`: every record of the log against its checksum."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from rmqctl.blocks import Findings, Table
from rmqctl.context import Context, exit_for_findings


def verify_crc(
    ctx: Context,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Segments to walk side by side.")] = min(
        2, os.cpu_count() or 1
    ),
) -> int:
    """Check every record of the log against its checksum, going on behind damage.

    Example: rmqctl verify-crc -s /data/rocketmq/store -o json
    """
    from store_core.check.verify import verify_log
    from store_core.storage.live import is_live

    documents: list[dict[str, Any]] = []
    seconds, size_bytes = 0.0, 0
    with ctx.open_stores() as stores:
        for name, store in stores:
            with ctx.progress(f"verify {name}", store.log.size_bytes) as bar:
                report = verify_log(store, jobs=jobs, live=is_live(store.root).live, on_progress=bar)
            seconds, size_bytes = seconds + report.seconds, size_bytes + report.size_bytes
            documents.append(
                {
                    "store": name,
                    "bytes": report.size_bytes,
                    "records": report.records,
                    "segments": [segment.as_json() for segment in report.segments],
                    "findings": report.findings,
                }
            )
    rate = round(size_bytes / seconds) if seconds > 0 else 0
    ctx.emit(
        {"stores": documents, "seconds": round(seconds, 3), "bytes_per_second": rate},
        rows=[{"store": d["store"], **segment} for d in documents for segment in d["segments"]],
        blocks=[block for document in documents for block in _blocks(document)],
    )
    return exit_for_findings(finding for document in documents for finding in document["findings"])


def _blocks(document: dict[str, Any]) -> list[Table | Findings]:
    title = f"{document['store']}: {document['records']} records"
    return [
        Table(document["segments"], ["name", "records", "bytes", "ok", "bad"], title),
        Findings(document["findings"]),
    ]

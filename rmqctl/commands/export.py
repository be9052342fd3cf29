"""`rmqctl export`: messages as Parquet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.blocks import Facts, Findings, Table
from rmqctl.context import Context, exit_for_findings
from rmqctl.messages import Topics
from rmqctl.options import Begin, End, SizeType

if TYPE_CHECKING:
    from store_core.export.export import ExportReport


def export(
    ctx: Context,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="New or empty folder for the result.")],
    topic: Topics = None,
    begin: Begin = None,
    end: End = None,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="First offset in the log.")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="OFFSET", help="Offset to stop in front of.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes side by side, without --spark.")] = (
        os.cpu_count() or 1
    ),
    split_size: Annotated[
        int | None,
        typer.Option("--split-size", click_type=SizeType(), help="Bytes of the log a task; default 128 MiB."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished export in DEST.")] = False,
) -> int:
    """Export messages to Parquet: a table of messages, one of damaged ranges, and a manifest.

    Nothing appears in DEST before all of it is written and checked.

    Example: rmqctl export /data/orders --topic orders -s /data/rocketmq/store
    """
    from store_core.export.export import export_stores
    from store_core.export.local import LocalRunner
    from store_core.export.splits import SPLIT_SIZE_BYTES
    from store_core.read.log import LogFilter

    wanted = LogFilter(from_, to, begin, end, frozenset(topic or ()))
    runner = LocalRunner(jobs)
    with ctx.open_stores() as stores:
        total = sum(store.log.size_bytes for _, store in stores)
        with ctx.progress("export", total) as bar:
            report = export_stores(
                stores,
                dest,
                runner,
                wanted,
                split_size_bytes=SPLIT_SIZE_BYTES if split_size is None else split_size,
                overwrite=overwrite,
                on_progress=bar,
            )
    document = _document(report)
    ctx.emit(document, rows="files", blocks=_blocks(document))
    return exit_for_findings(report.findings)


def _document(report: ExportReport) -> dict[str, Any]:
    return {
        "dest": str(report.dest),
        "files": [part.as_json() for part in report.parts],
        "rows": report.rows,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "stores": [
            {
                "store": store.store,
                "from_phy_offset": store.from_phy_offset,
                "next_phy_offset": store.next_phy_offset,
                "findings": store.findings,
            }
            for store in report.stores
        ],
        "seconds": round(report.seconds, 3),
    }


def _blocks(document: dict[str, Any]) -> list[Facts | Table | Findings]:
    stores = [{key: value for key, value in store.items() if key != "findings"} for store in document["stores"]]
    return [
        Facts({key: document[key] for key in ("dest", "rows", "bytes_read", "bytes_written", "seconds")}),
        Table(stores, ["store", "from_phy_offset", "next_phy_offset"]),
        Findings([found for store in document["stores"] for found in store["findings"]]),
    ]

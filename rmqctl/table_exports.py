"""`rmqctl export --what queues|index|stats`: what is not messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqctl.blocks import Block, Facts, Findings, Table
from rmqctl.context import exit_for_findings
from rmqctl.copies import note_healed, of_copies
from store_core.errors import UsageError
from store_core.storage.remote_path import is_remote, path_of

if TYPE_CHECKING:
    from rmqctl.context import Context
    from rmqctl.running import SparkChoice
    from store_core.export.tables_export import TablesReport, What
    from store_core.read.log import LogFilter


def local_folder(dest: str, what: str, *, only_messages: dict[str, bool]) -> Path:
    """The destination of such an export. Raises UsageError for one elsewhere, and where options that only messages have, by
    their names, are given."""
    given = [name for name, is_given in only_messages.items() if is_given]
    if given:
        raise UsageError(f"{', '.join(given)}: for messages, not for {what}", to_do="leave it out")
    path = path_of(dest)
    if is_remote(path):
        raise UsageError(f"{what} go to a local folder", to_do="name one, and copy it where it is to be")
    return path


def export_tables_of(
    ctx: Context,
    dest: Path,
    what: What,
    wanted: LogFilter,
    choice: SparkChoice,
    *,
    jobs: int,
    split_size_bytes: int | None,
    overwrite: bool,
    joined: bool,
) -> int:
    """The command once its options are read; gives the exit code."""
    from store_core.export.tables_export import export_tables, size_of

    with (
        ctx.open_stores(joined=joined) as stores,
        choice.runner(ctx, jobs) as runner,
        ctx.progress(f"export {what}", size_of(stores, what, wanted.topics)) as bar,
    ):
        report = export_tables(
            stores,
            dest,
            what,
            runner,
            wanted,
            split_size_bytes=split_size_bytes,
            overwrite=overwrite,
            on_progress=bar,
        )
    note_healed(ctx, report.stores)
    document = _document(report)
    ctx.emit(document, rows="files", blocks=_blocks(document))
    return exit_for_findings(report.findings)


def _document(report: TablesReport) -> dict[str, Any]:
    return {
        "dest": report.dest,
        "what": report.what,
        "files": [file.as_json() for file in report.files],
        "rows": report.rows,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "stores": [
            {"store": told.store, "rows": told.rows, **of_copies(told), "findings": told.findings}
            for told in report.stores
        ],
        "seconds": round(report.seconds, 3),
    }


def _blocks(document: dict[str, Any]) -> list[Block]:
    rows: dict[tuple[str, str], int] = {}
    for file in document["files"]:
        key = file["store"], file["table"]
        rows[key] = rows.get(key, 0) + file["rows"]
    tables = [{"store": store, "table": table, "rows": count} for (store, table), count in rows.items()]
    return [
        Facts({key: document[key] for key in ("dest", "what", "rows", "bytes_read", "bytes_written", "seconds")}),
        Table(tables, ["store", "table", "rows"]),
        Findings([found for store in document["stores"] for found in store["findings"]]),
    ]

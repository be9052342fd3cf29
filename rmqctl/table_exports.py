"""Export tables other than the log's messages: `rmqctl export --what queues|index|compaction|stats`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rmqctl.context import exit_for_findings
from rmqctl.output.document import Block, Facts, Findings, Table
from store_core.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.context import Context
    from rmqctl.running import SparkChoice
    from store_core.export.dest.address import Format
    from store_core.export.dest.destination import Destination
    from store_core.export.tables_export import TablesReport, What
    from store_core.read.log import LogFilter


from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmqctl.context import Context


class Read(Protocol):
    """A log that was read. ``healed``: [start, end) of each range that came from another copy."""

    @property
    def store(self) -> str: ...
    @property
    def copies(self) -> Sequence[str]: ...
    @property
    def healed(self) -> Sequence[tuple[int, int]]: ...


def note_healed(ctx: Context, stores: Iterable[Read]) -> None:
    """Note on stderr how many damaged bytes other copies replaced."""
    for store in stores:
        if store.healed:
            size = sum(high - low for low, high in store.healed)
            ctx.note(f"{store.store}: {size} bytes around damage were taken from another copy")


def of_copies(store: Read) -> dict[str, Any]:
    """Return the members ``copies`` and ``healed`` of a store's result; none if it was read from a single copy."""
    if not store.copies:
        return {}
    return {
        "copies": store.copies,
        "healed": [{"phy_offset": low, "size_bytes": high - low} for low, high in store.healed],
    }


def destination_of_tables(
    dest: str,
    what: What,
    format_: Format,
    *,
    catalog: str | None,
    overwrite: bool,
    incremental: bool,
    others: list[str],
) -> Destination:
    """Return the destination of such an export. Raises UsageError for an option that does not fit.

    ``others``: given options that only an export of messages has.
    """
    from store_core.export.dest.address import destination_of
    from store_core.export.tables_export import table_set

    if incremental:
        to_do = "leave out --incremental, and replace the last one with --overwrite"
        raise UsageError(f"{what} are exported as a whole each time", to_do=to_do)
    if others:
        raise UsageError(f"{', '.join(others)}: for messages, not for {what}", to_do="leave it out")
    return destination_of(dest, format_, catalog=catalog, overwrite=overwrite, tables=table_set(what))


def export_tables_of(
    ctx: Context,
    dest: Destination,
    what: What,
    wanted: LogFilter,
    choice: SparkChoice,
    *,
    jobs: int,
    split_size_bytes: int | None,
    joined: bool,
) -> int:
    """Run the export and return the exit code."""
    from store_core.export.tables_export import export_tables
    from store_core.storage.modes import no_wider_than

    with (
        ctx.open_stores(joined=joined) as stores,
        no_wider_than(store.root for _, store in stores),
        choice.runner(ctx, jobs) as runner,
        told_what_is_kept(ctx, dest),
        ExitStack() as shown,
    ):
        report = export_tables(
            stores,
            dest,
            what,
            runner,
            wanted,
            split_size_bytes=split_size_bytes,
            on_plan=lambda size_bytes: shown.enter_context(ctx.progress(f"export {what}", size_bytes)),
        )
    note_healed(ctx, report.stores)
    note_taken(ctx, report.taken)
    document = _document(report)
    ctx.output.emit(document, rows="files", blocks=_blocks(document))
    return exit_for_findings(report.findings)


@contextmanager
def told_what_is_kept(ctx: Context, destination: Destination) -> Iterator[None]:
    """Note what an interrupted export keeps, and which files a finished one leaves for the next to remove."""
    try:
        yield
    except BaseException:
        if destination.is_published:
            ctx.note("the export is published: run the same command to have the rest of its work removed")
        elif destination.notes_kept:
            ctx.note(f"{destination.notes_kept} finished splits are kept: run the same command to go on")
        raise
    if destination.untidy:
        ctx.note(
            f"files that belong to no result any more could not be removed ({destination.untidy}): the next export here tries again"
        )


def note_taken(ctx: Context, taken: int) -> None:
    """Note how many splits an earlier export had done."""
    if taken:
        ctx.note(f"{taken} splits had been done before")


def _document(report: TablesReport) -> dict[str, Any]:
    return {
        "dest": report.dest,
        "what": report.what,
        "files": [file.as_json() for file in report.files],
        "rows": report.rows,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "stores": [
            {"store": part.store, "rows": part.rows, **of_copies(part), "findings": part.findings}
            for part in report.stores
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

"""`rmqctl export`: messages as Parquet."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from rmqctl.context import Context, exit_for_findings
from rmqctl.messages import Topics
from rmqctl.options import Begin, End, KeepCopiesOption, refuse_backwards
from rmqctl.output.document import Facts, Findings, Table
from rmqctl.running import ConfOption, MasterOption, PackEnvOption, SparkChoice, SparkOption, SplitSizeOption
from rmqctl.table_exports import note_healed, of_copies
from store_core.extras import assert_installed

if TYPE_CHECKING:
    from store_core.export.export import ExportReport

_LIBRARIES: Final = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}


def export(
    ctx: Context,
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="New or empty folder for the result; or s3://…, gs://…, abfss://….")
    ],
    what: Annotated[
        Literal["messages", "queues", "index", "compaction", "stats"],
        typer.Option(
            "--what",
            help="Messages; queue entries; index entries; compacted topics; or statistics by topic, queue and hour.",
        ),
    ] = "messages",
    format_: Annotated[
        Literal["parquet", "delta", "iceberg"], typer.Option("--format", help="Files with a manifest, or tables.")
    ] = "parquet",
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="URI", help="Iceberg's SQL catalog; default DEST/catalog.db.")
    ] = None,
    topic: Topics = None,
    begin: Begin = None,
    end: End = None,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="First offset in the log.")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="OFFSET", help="Offset to stop before.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes side by side, without --spark.")] = (
        os.cpu_count() or 1
    ),
    split_size: SplitSizeOption = None,
    spark: SparkOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    pack_env: PackEnvOption = False,
    partition_by: Annotated[
        Literal["topic", "day"] | None,
        typer.Option("--partition-by", help="A folder a topic, or a day of the store time."),
    ] = None,
    cluster: Annotated[
        Literal["topic", "offset"], typer.Option("--cluster", help="What the rows of a file are sorted by first.")
    ] = "topic",
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Add what has come since the last export into DEST.")
    ] = False,
    keep_copies: KeepCopiesOption = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished export in DEST.")] = False,
) -> int:
    """Export messages to Parquet: a table of messages, one of damaged ranges, and a manifest; or other tables (--what).

    Nothing appears in DEST before all of it is written and checked. An export that was stopped goes on when the same
    command is run again. With --spark, rows and values are the same.

    Example: rmqctl export /data/orders --topic orders -s /data/rocketmq/store
    """
    if spark:
        assert_installed("pyspark", "--spark")
    assert_installed(_LIBRARIES[format_], "export" if format_ == "parquet" else f"--format {format_}")
    from rmqctl.table_exports import destination_of_tables, export_tables_of, note_taken, told_what_is_kept
    from store_core.export.dest.address import destination_of
    from store_core.export.dest.layout import Layout
    from store_core.export.export import export_stores
    from store_core.export.splits.plan import SPLIT_SIZE_BYTES
    from store_core.read.log import LogFilter
    from store_core.storage.modes import no_wider_than

    refuse_backwards(from_, to, ("--from", "--to"))
    refuse_backwards(begin, end)
    wanted = LogFilter(from_, to, begin, end, frozenset(topic or ()))
    choice = SparkChoice(spark, master, conf, pack_env)
    if what != "messages":
        others = {"--partition-by": partition_by is not None, "--cluster": cluster != "topic"}
        tables = destination_of_tables(
            dest,
            what,
            format_,
            catalog=catalog,
            overwrite=overwrite,
            incremental=incremental,
            others=[name for name, is_given in others.items() if is_given],
        )
        return export_tables_of(
            ctx, tables, what, wanted, choice, jobs=jobs, split_size_bytes=split_size, joined=not keep_copies
        )
    destination = destination_of(dest, format_, catalog=catalog, overwrite=overwrite, incremental=incremental)
    with (
        ctx.open_stores(joined=not keep_copies) as stores,
        no_wider_than(store.root for _, store in stores),
        choice.runner(ctx, jobs) as runner,
        told_what_is_kept(ctx, destination),
        ExitStack() as shown,
    ):
        report = export_stores(
            stores,
            destination,
            runner,
            wanted,
            split_size_bytes=SPLIT_SIZE_BYTES if split_size is None else split_size,
            layout=Layout(partition_by, cluster, whole_files=format_ == "iceberg"),
            keep_copies=keep_copies,
            on_plan=lambda size_bytes: shown.enter_context(ctx.progress("export", size_bytes)),
        )
    note_healed(ctx, report.stores)
    note_taken(ctx, report.taken)
    if incremental and not report.parts:
        ctx.note("nothing new since the last export")
    elif not report.rows and report.commit == 1 and wanted == LogFilter(topics=wanted.topics) != LogFilter():
        ctx.note("no message of these topics is there")
    document = _document(report)
    ctx.output.emit(document, rows="files", blocks=_blocks(document))
    return exit_for_findings(report.findings)


def _document(report: ExportReport) -> dict[str, Any]:
    return {
        "dest": report.dest,
        "files": [part.as_json() for part in report.parts],
        "rows": report.rows,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "commit": report.commit,
        "stores": [
            {
                "store": store.store,
                "from_phy_offset": store.from_phy_offset,
                "next_phy_offset": store.next_phy_offset,
                **of_copies(store),
                "findings": store.findings,
            }
            for store in report.stores
        ],
        "seconds": round(report.seconds, 3),
    }


def _blocks(document: dict[str, Any]) -> list[Facts | Table | Findings]:
    stores = [{key: value for key, value in store.items() if key != "findings"} for store in document["stores"]]
    return [
        Facts({key: document[key] for key in ("dest", "commit", "rows", "bytes_read", "bytes_written", "seconds")}),
        Table(stores, ["store", "from_phy_offset", "next_phy_offset"]),
        Findings([found for store in document["stores"] for found in store["findings"]]),
    ]

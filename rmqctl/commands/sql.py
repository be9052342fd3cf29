"""`rmqctl sql`: a query over what stores hold, without an export."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.messages import shown_or_counted
from rmqctl.options import KeepCopiesOption, read_size
from rmqctl.output.cells import Column
from rmqctl.output.document import Block, Drawing, Findings, Table
from rmqctl.output.streams import standard_input
from store_core.errors import UsageError
from store_core.extras import assert_installed

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqctl.options import ColumnFormat
    from store_core.export.query.catalog import Tables
    from store_core.export.query.duck import Answer, Answers

_STDIN: Final = "-"
_PLAN: Final = ["explain_key", "explain_value"]  # the columns of EXPLAIN's answer
_FIRST_HOURS: Final = -12  # of the zones in the IANA database that are nothing but an offset
_LAST_HOURS: Final = 14


def sql(
    ctx: Context,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL; - reads it from stdin.")
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Show the tables and their columns.")] = False,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            callback=read_size,
            help="What sorting and grouping hold in memory; default 1 GiB.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Threads that sort, group and join.")] = os.cpu_count()
    or 1,
    keep_copies: KeepCopiesOption = False,
) -> int:
    """Query what stores hold with SQL: messages, queues, index, offsets and findings, read where they are.

    Only the columns and the part of the log that a query looks at are read. Nothing but these tables can be reached.

    Example: rmqctl sql "select topic, count(*) from messages group by 1 order by 2 desc" -s /data/rocketmq/store
    """
    if tables == (query is not None):
        raise UsageError("sql takes a query or --tables", to_do="give one of both")
    if tables and ctx.output.column_format is not None:
        raise UsageError("the list of tables is text", to_do="give another format with -o")
    assert_installed("duckdb", "sql")
    if query is None:
        from store_core.export.query.catalog import described

        columns = [Column("table"), Column("column"), Column("type"), Column("null", drop=1), Column("meaning")]
        ctx.output.emit({"tables": list(described())}, rows="tables", columns=columns)
        return exit_codes.OK
    from store_core.export.query.catalog import Tables
    from store_core.export.query.duck import MEMORY_BYTES, answered

    query = standard_input().read().decode(errors="replace") if query == _STDIN else query
    memory_bytes = MEMORY_BYTES if memory is None else memory
    zone = _zone_name(ctx.options.zone)
    with ctx.open_stores(joined=not keep_copies) as stores:
        total = sum(store.log.size_bytes for _, store in stores)
        with ctx.progress("sql", total) as bar:
            known = Tables(stores, lambda walked_bytes: bar(min(walked_bytes, total)))
            with answered(query, known, zone=zone, memory_bytes=memory_bytes, threads=jobs) as answers:
                _show(ctx, answers, known)
    return shown_or_counted(ctx, known.findings)


def _show(ctx: Context, answers: Answers, known: Tables) -> None:
    if ctx.output.column_format is not None:
        _write(ctx, answers, ctx.output.column_format)
    elif answers.count <= 1 or ctx.output.format in ("csv", "tsv", "ndjson"):
        for answer in answers:
            _show_one(ctx, answer, known)
    else:
        document = {"results": _results(ctx, answers), "findings": lambda: known.findings}
        ctx.output.emit(document, blocks=lambda: _blocks(ctx, answers, known))


def _write(ctx: Context, answers: Answers, form: ColumnFormat) -> None:
    from rmqctl.output.arrow_rows import write_answer

    if answers.count > 1:
        raise UsageError(f"{answers.count} statements give rows, and {form} holds those of one", to_do="give one query")
    for answer in answers:
        write_answer(answer, ctx.output.bytes_file, form)


def _show_one(ctx: Context, answer: Answer, known: Tables) -> None:
    document = {**_document(ctx, answer), "findings": lambda: known.findings}
    ctx.output.emit(document, rows="rows", fields=answer.schema.names, blocks=lambda: _blocks(ctx, [answer], known))


def _document(ctx: Context, answer: Answer) -> dict[str, Any]:
    from rmqctl.output.arrow_rows import rows_of

    types = zip(answer.schema.names, answer.types, strict=True)
    return {
        "columns": [{"name": name, "type": kind} for name, kind in types],
        "rows": rows_of(answer.batches, ctx.options.zone),
    }


def _results(ctx: Context, answers: Answers) -> list[dict[str, Any]]:
    """Yield what JSON shows of each answer, made when its turn has come: the statement behind it runs no sooner."""
    made: list[dict[str, Any]] = []
    coming = iter(answers)

    def columns() -> Any:
        made.append(_document(ctx, next(coming)))
        return made[-1]["columns"]

    def rows() -> Iterator[Any]:
        yield from made.pop()["rows"]

    return [{"columns": columns, "rows": rows()} for _ in range(answers.count)]


def _blocks(ctx: Context, answers: Iterable[Answer], known: Tables) -> Iterator[Block]:
    from store_core.kernel.text import one_by_one

    for answer in answers:
        rows = _document(ctx, answer)["rows"]
        if answer.schema.names == _PLAN:
            yield from (
                Drawing(str(plan).splitlines(), str(title)) for title, plan in map(dict.values, one_by_one(rows))
            )
        else:
            yield Table(rows, [_column(field) for field in answer.schema], empty="no rows")
    if findings := known.findings:
        yield Findings(findings, "Findings in what was read")


def _column(field: pa.Field) -> Column:
    import pyarrow as pa

    return Column(field.name, cut=pa.types.is_binary(field.type))


def _zone_name(zone: tzinfo) -> str:
    """The zone as DuckDB names it. Raises UsageError for one that has no name there."""
    if zone is UTC:
        return "UTC"
    if not isinstance(zone, timezone):
        if key := getattr(zone, "key", None):
            return str(key)
        raise UsageError(
            "the machine's zone has no name that sql knows", to_do="give --tz a name, such as Asia/Kolkata"
        )
    hours, rest = divmod(zone.utcoffset(None), timedelta(hours=1))
    if rest or not _FIRST_HOURS <= hours <= _LAST_HOURS:
        raise UsageError(
            f"sql knows offsets of whole hours only, {_FIRST_HOURS:+d} to {_LAST_HOURS:+d}",
            to_do="name the zone, such as Asia/Kolkata",
        )
    return f"Etc/GMT{-hours:+d}"  # POSIX counts the other way round

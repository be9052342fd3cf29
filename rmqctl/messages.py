"""Share options among the commands that read messages, and show messages and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl.context import Context, exit_for_findings
from rmqctl.options import COLUMN_FORMATS, read_time
from rmqctl.output.cells import Column
from store_core.errors import UsageError
from store_core.read.message_json import LongBody, MessageView

if TYPE_CHECKING:
    from store_core.findings import Finding
    from store_core.storage.store import Store

QueueIdArgument = Annotated[int, typer.Argument(metavar="QUEUE_ID", min=0, help="Queue id.")]
RawBody = Annotated[bool, typer.Option("--raw-body", help="Show bodies as stored, not decompressed.")]
NoBody = Annotated[bool, typer.Option("--no-body", help="Leave bodies out.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable.")]
Time = Annotated[
    int | None,
    typer.Option(
        "--time",
        metavar="TIME",
        callback=read_time,
        help="Start at the offset of this store time (ISO 8601, epoch ms, -15m).",
    ),
]

_ONLY_ROWS: Final = ("ndjson", "csv", "tsv", *COLUMN_FORMATS)
MESSAGE_COLUMNS: Final = (
    Column("store_timestamp_ms", "time", "stored"),
    Column("topic", folds_words=True),
    Column("queue_id", drop=1),
    Column("queue_offset", drop=3),
    Column("phy_offset", drop=5),
    Column("tags", drop=2),
    Column("keys", folds_words=True),
    Column("crc", drop=4),
    Column("size_bytes", "size", drop=6),
    Column("body", cut=True),
)
_PREVIEW_CHARACTERS: Final = 60
_READ_CHARACTERS: Final = 1 << 16


def view_of(raw_body: bool, no_body: bool) -> MessageView:
    """Return how bodies are shown. Raises UsageError if both options are given."""
    if raw_body and no_body:
        raise UsageError("--raw-body and --no-body exclude each other", to_do="give one of them")
    return MessageView("raw" if raw_body else "none" if no_body else "plain")


def preview(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a MESSAGE for one line of a table, with its body cut."""
    body = row.get("body")
    if isinstance(body, LongBody):
        body = body.head(_PREVIEW_CHARACTERS + 1)
    if not isinstance(body, str) or len(body) <= _PREVIEW_CHARACTERS:
        return dict(row)
    return {**row, "body": f"{body[:_PREVIEW_CHARACTERS]}…"}


def cut_for_people(ctx: Context, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a MESSAGE to show by itself; a body too large to read is cut, with a note."""
    body = row.get("body")
    if not isinstance(body, LongBody):
        return dict(row)
    ctx.note(
        f"the body has {body.size_bytes} bytes and is cut after {_READ_CHARACTERS} characters; -o json shows it all"
    )
    return {**row, "body": f"{body.head(_READ_CHARACTERS)}…"}


def is_for_people(ctx: Context) -> bool:
    """Return True if the output format is laid out for people rather than data."""
    return ctx.output.format in ("table", "plain", "github")


def shown_or_counted(ctx: Context, findings: Iterable[Finding]) -> int:
    """Return the exit code; report findings on stderr if the format has only rows (a document shows them itself)."""
    findings = list(findings)
    return told(ctx, findings) if ctx.output.format in _ONLY_ROWS else exit_for_findings(findings)


def note_unknown_topics(ctx: Context, store: Store, topics: Iterable[str]) -> None:
    """Note each topic that has neither a queue nor an entry in topics.json: a filter by it finds nothing."""
    unknown = set(topics)
    if not unknown:
        return
    if not store.queues_in_rocksdb:
        unknown -= {key.topic for queues in (store.queues, store.batch_queues) for key in queues}
    if unknown:
        from store_core.storage.config_files import read_config

        unknown -= read_config(store.root).topic_names
    for topic in sorted(unknown):
        ctx.note(f"topic {topic!r} has no queue in this store and is not in topics.json")


def told(ctx: Context, findings: Iterable[Finding]) -> int:
    """Report findings on stderr, for a result that has no place for them, and return the exit code."""
    findings = list(findings)
    for finding in findings:
        place = [f"{k} {v}" for k in ("file", "phy_offset", "queue_offset") if (v := getattr(finding, k)) is not None]
        text = f"{finding.code} {finding.message}" + (f" ({', '.join(place)})" if place else "")
        {"info": ctx.note, "warning": ctx.warn, "error": ctx.complain}[finding.severity](text)
    return exit_for_findings(findings)

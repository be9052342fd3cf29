"""`rmqctl log`: records of the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl.context import Context
from rmqctl.messages import (
    MESSAGE_COLUMNS,
    NoBody,
    RawBody,
    Topics,
    is_for_people,
    note_unknown_topics,
    preview,
    shown_or_counted,
    view_of,
)
from rmqctl.options import Begin, End, refuse_backwards
from store_core.errors import UsageError

if TYPE_CHECKING:
    from store_core.findings import Finding
    from store_core.read.content import ContentFilter
    from store_core.scan.frames import FrameTable

_RANGE_FIELDS: Final = ("code",)  # what rows of --all have that messages have not
_STANDS_FOR: Final = "(tombstone: a message was lost here)"


def log(
    ctx: Context,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="First offset in the log.")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="OFFSET", help="Offset to stop before.")] = None,
    begin: Begin = None,
    end: End = None,
    topic: Topics = None,
    queue_id: Annotated[int | None, typer.Option("--queue-id", min=0, metavar="N", help="Only this queue id.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key or unique key.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="EXPR", help="Only these tags, as in 'A || B'.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="K=V", help="Only messages with this property; repeatable."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only messages whose plain body matches.")
    ] = None,
    max_: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after so many messages.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show blanks and damaged ranges too.")] = False,
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Show records of the log, in log order, by offset or by store time. Damage that is met on the way is a finding.

    --key, --tag, --property and --grep show the messages that meet all of them.

    Example: rmqctl log --begin -15m --topic orders --max 100
    """
    from store_core.check.log import LogFindings
    from store_core.export.rows.kinds import TOMBSTONE
    from store_core.kernel.text import one_by_one
    from store_core.read.log import LogFilter, LogRange, has_message_after, read_log, size_of_walk
    from store_core.read.log_files import unread_log
    from store_core.read.message_rows import MessageRows
    from store_core.storage.live import is_live

    refuse_backwards(from_, to, ("--from", "--to"))
    refuse_backwards(begin, end)
    view = view_of(raw_body, no_body)
    content = _content(key, tag, property_ or (), grep)
    wanted = LogFilter(from_, to, begin, end, frozenset(topic or ()), queue_id, max_, all_, content)
    with ctx.open_store() as store:
        note_unknown_topics(ctx, store, wanted.topics)
        seen = LogFindings(store.log)
        bodies: list[Finding] = []
        messages = MessageRows(view, bodies, TOMBSTONE)

        def on_table(table: FrameTable) -> None:
            segment = store.log.find(table.window_phy_offset)
            seen.add(table, store.relative(segment.path) if segment else "")

        def rows() -> Iterator[Any]:
            with ctx.progress("log", size_of_walk(store, wanted)) as bar:
                for row in read_log(store, wanted, messages=messages.of, on_table=on_table, on_progress=bar):
                    yield row.as_json() if isinstance(row, LogRange) else row

        @cache
        def findings() -> list[Finding]:
            if to is not None and has_message_after(store, to):
                seen.good_after()
            found = seen.end(live=seen.may_be_torn and is_live(store.root).live)
            return [*unread_log(store), *found, *(one for one in bodies if one.code != "L001")]

        shown = map(_line, one_by_one(rows())) if is_for_people(ctx) else rows()
        fields = (*view.fields, "kind", *(_RANGE_FIELDS if all_ else ()))
        ctx.output.emit(
            {"messages": shown, "findings": findings}, rows="messages", columns=MESSAGE_COLUMNS, fields=fields
        )
        return shown_or_counted(ctx, findings())


def _content(key: str | None, tag: str | None, properties: Sequence[str], grep: str | None) -> ContentFilter:
    """Filters by the contents of messages. Raises UsageError for a property without ``=`` and for a pattern that is none."""
    from store_core.read.content import ContentFilter
    from store_core.read.tags import TagFilter

    pairs = [text.partition("=") for text in properties]
    for name, equals, value in pairs:
        if not (name and equals):
            raise UsageError(f"invalid value {name + equals + value!r} for --property: expected K=V")
    try:
        body = None if grep is None else re.compile(grep.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(f"invalid value {grep!r} for --grep: {error}", to_do="give a regular expression") from error
    return ContentFilter(key, TagFilter.parse(tag), {name: value for name, _, value in pairs}, body)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for one line of a table; a tombstone's body is nothing to read."""
    return preview({**row, "body": _STANDS_FOR} if "kind" in row and "body" in row else row)

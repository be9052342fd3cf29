"""`rmqctl log`: records of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    preview,
    shown_or_told,
    view_of,
)
from rmqctl.options import Begin, End, refuse_backwards

if TYPE_CHECKING:
    from store_core.findings import Finding
    from store_core.scan.frames import FrameTable

_RANGE_FIELDS: Final = ("code",)  # what rows of --all have that messages have not
_STANDS_FOR: Final = "(tombstone: a message was lost here)"


def log(
    ctx: Context,
    from_: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="First offset in the log.")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="OFFSET", help="Offset to stop in front of.")] = None,
    begin: Begin = None,
    end: End = None,
    topic: Topics = None,
    queue_id: Annotated[int | None, typer.Option("--queue-id", min=0, metavar="N", help="Only this queue id.")] = None,
    max_: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after so many messages.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show blanks and damaged ranges too.")] = False,
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Show records of the log, in log order, by offset or by store time. Damage that is met on the way is a finding.

    Example: rmqctl log --begin -15m --topic orders --max 100
    """
    from store_core.check.log import LogFindings
    from store_core.codec.record import Message
    from store_core.export.rows.kinds import TOMBSTONE
    from store_core.read.log import LogFilter, has_message_behind, read_log, size_of_walk
    from store_core.read.log_files import unread_log
    from store_core.storage.live import is_live

    refuse_backwards(from_, to, ("--from", "--to"))
    refuse_backwards(begin, end)
    view = view_of(raw_body, no_body)
    wanted = LogFilter(from_, to, begin, end, frozenset(topic or ()), queue_id, max_, all_)
    with ctx.open_store() as store:
        seen = LogFindings(store.log)
        bodies: list[Finding] = []

        def on_table(table: FrameTable) -> None:
            segment = store.log.find(table.window_phy_offset)
            seen.add(table, store.relative(segment.path) if segment else "")

        def rows() -> Iterator[dict[str, Any]]:
            with ctx.progress("log", size_of_walk(store, wanted)) as bar:
                for row in read_log(store, wanted, on_table=on_table, on_progress=bar):
                    shown = view.as_json(row, bodies) if isinstance(row, Message) else row.as_json()
                    is_ours = isinstance(row, Message) and row.is_tombstone
                    yield {"kind": TOMBSTONE, **shown} if is_ours else shown

        @cache
        def findings() -> list[Finding]:
            if to is not None and has_message_behind(store, to):
                seen.good_behind()
            found = seen.end(live=seen.may_be_torn and is_live(store.root).live)
            return [*unread_log(store), *found, *(one for one in bodies if one.code != "L001")]

        shown = map(_line, rows()) if is_for_people(ctx) else rows()
        fields = (*view.fields, "kind", *(_RANGE_FIELDS if all_ else ()))
        ctx.output.emit(
            {"messages": shown, "findings": findings}, rows="messages", columns=MESSAGE_COLUMNS, fields=fields
        )
        return shown_or_told(ctx, findings())


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for one line of a table; a tombstone's body is nothing to read."""
    return preview({**row, "body": _STANDS_FOR} if "kind" in row and "body" in row else row)

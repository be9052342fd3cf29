"""`rmqctl tail`: the newest messages, and those that come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.messages import (
    MESSAGE_COLUMNS,
    NoBody,
    RawBody,
    Topics,
    is_for_people,
    note_unknown_topics,
    preview,
    told,
    view_of,
)
from rmqctl.output.document import PAGE_ROWS

if TYPE_CHECKING:
    from store_core.codec.record import Message
    from store_core.findings import Finding


def tail(
    ctx: Context,
    count: Annotated[
        int, typer.Option("-n", "--lines", min=0, metavar="N", help="Begin with the newest so many.")
    ] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with messages as they are stored.")] = False,
    topic: Topics = None,
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Show the newest messages of the log, and with --follow those that come, until interrupted.

    Example: rmqctl tail -n 5 --follow --topic orders
    """
    from store_core.read.tail import follow as follow_log
    from store_core.read.tail import last_messages

    if follow:
        ctx.refuse_remote()
    view = view_of(raw_body, no_body)
    topics = frozenset(topic or ())
    findings: list[Finding] = []

    def wanted(message: Message) -> bool:
        return not topics or message.topic in topics

    def lost(found: Finding) -> None:
        told(ctx, [found])

    with ctx.open_store() as store:
        note_unknown_topics(ctx, store, topics)
        newest, end = last_messages(store, count, topics, findings)
        at_once = list(islice(newest, PAGE_ROWS)) if is_for_people(ctx) else []

        def rows() -> Iterator[dict[str, Any]]:
            for message in chain(at_once, newest):
                yield view.as_json(message, findings)
            if follow:
                for message in filter(wanted, follow_log(store, end, on_loss=lost)):
                    yield view.as_json(message)

        shown = map(preview, rows()) if is_for_people(ctx) else rows()
        try:
            ctx.output.emit(
                {"messages": shown},
                rows="messages",
                columns=MESSAGE_COLUMNS,
                fields=view.fields,
                live=True,
                live_rows=len(at_once),
            )
        except KeyboardInterrupt:
            if not follow:
                raise
            return exit_codes.INTERRUPTED  # the only end that a follow has is no error
    return told(ctx, findings)

"""`rmqctl query-key`: messages by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.context import Context
from rmqctl.messages import MESSAGE_COLUMNS, NoBody, RawBody, is_for_people, note_unknown_topics, preview, told, view_of
from rmqctl.options import Begin, End, TopicArgument, refuse_backwards

if TYPE_CHECKING:
    from store_core.findings import Finding


def query_key(
    ctx: Context,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A user key or a unique key.")],
    begin: Begin = None,
    end: End = None,
    max_: Annotated[int, typer.Option("--max", min=1, metavar="N", help="The newest so many messages.")] = 64,
    source: Annotated[
        Literal["auto", "index", "scan"],
        typer.Option("--source", help="Exact from index and log, as a broker's index answers, or from the log alone."),
    ] = "auto",
    type_: Annotated[
        Literal["any", "key", "unique"], typer.Option("--type", help="What KEY is: either, a user key, a unique key.")
    ] = "any",
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Find messages of a topic by key: the newest, in log order. What only shares the key's hash is left out.

    Example: rmqctl query-key orders K1001 --begin -2h
    """
    from store_core.codec.times import END_OF_TIME_MS
    from store_core.read.query import KeyQuery
    from store_core.read.query import query_key as find

    refuse_backwards(begin, end)
    view = view_of(raw_body, no_body)
    query = KeyQuery(topic, key, type_, begin or 0, END_OF_TIME_MS if end is None else end, max_)
    with ctx.open_store() as store:
        note_unknown_topics(ctx, store, (topic,))
        answer = find(store, query, source)
    findings: list[Finding] = list(answer.findings)
    messages = [view.as_json(message, findings) for message in answer.messages]
    document = {
        "topic": topic,
        "key": key,
        "source": answer.source,
        "index_last_phy_offset": answer.index_last_phy_offset,
        "index_last_timestamp_ms": answer.index_last_timestamp_ms,
        "messages": messages,
    }
    facts = tuple(name for name in document if name != "messages")
    shown = {**document, "messages": [preview(row) for row in messages]} if is_for_people(ctx) else document
    ctx.output.emit(shown, rows="messages", columns=MESSAGE_COLUMNS, fields=view.fields, facts=facts)
    return told(ctx, findings)

"""`rmqctl get`: one message by its id or offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.context import Context
from rmqctl.messages import NoBody, RawBody, cut_for_people, is_for_people, told, view_of
from rmqctl.output.document import Facts
from store_core.errors import FailedError, UsageError

if TYPE_CHECKING:
    from store_core.codec.record import Message
    from store_core.findings import Finding


def get(
    ctx: Context,
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="Offset message id, offset in the log, or unique key.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="Take ID for a unique key of this topic.")] = None,
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Read one message: by 32 or 56 hex digits of an offset message id, by a decimal offset in the log, or with --topic
    by its unique key; the newest of several. Where the message is laid out for people, a body of more than 1 MiB is cut.

    Example: rmqctl get 7F0000010000740E0000000000000000 -o json
    """
    from store_core.read.query import find_message, is_id

    view = view_of(raw_body, no_body)
    findings: list[Finding] = []
    with ctx.open_store() as store:
        message = find_message(store, identifier, topic)
        if message is None:
            if topic is None and not is_id(identifier):
                to_do = "give an offset in the log, 32 or 56 hex digits, or a unique key with --topic"
                raise UsageError(f"{identifier!r} is no message id", to_do=to_do)
            to_do = "check id and topic" if topic else "no record starts there; name the topic if this is a unique key"
            raise FailedError(f"no message {identifier!r}", path=str(store.root), to_do=to_do)
        document = view.as_json(message, findings)
    parts = _parts(message)
    shown = cut_for_people(ctx, document) if is_for_people(ctx) else document
    ctx.output.emit(document, blocks=[Facts(shown), *([Facts(parts, "In the unique key")] if parts else [])])
    return told(ctx, findings)


def _parts(message: Message) -> dict[str, Any] | None:
    """Return what a client's unique key contains: who made the message, and when. None for keys of another form."""
    from store_core.codec.message_id import parse_unique_key

    parts = parse_unique_key(message.unique_key or "", message.born_timestamp_ms)
    if parts is None:
        return None
    return {
        "address": parts.address,
        "process_id": parts.process_id,
        "made_timestamp_ms": parts.timestamp_ms,
        "counter": parts.counter,
    }
